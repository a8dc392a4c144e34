//! The file systems of a node that images, writable layers and the kubelet's directory are on.

use serde::{Deserialize, Serialize};

/// How images, container layers and the kubelet's own directory are spread over file systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFsLayout {
    /// All on one.
    #[default]
    Shared,
    /// Images and layers together on a second one.
    Dedicated,
    /// Images on a second one, layers beside the kubelet's directory.
    Split,
}

/// The file systems that signals are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileSystem {
    /// The kubelet's directory: logs and local volumes.
    Node,
    /// Images.
    Image,
    /// Writable layers of containers.
    Container,
}
