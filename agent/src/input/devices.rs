//! Files that describe the devices of a node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::placement::device::{AllocatableDevices, Inventory};
use plimsoll_core::placement::node::DeviceSettings;

use crate::host::shown::Show as _;
use crate::input::manifests::{Bounds, ManifestError, read_text};

/// Why devices are not known.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// The file cannot be read.
    #[error(transparent)]
    Unreadable(#[from] ManifestError),
    /// The file has another form.
    #[error("{file}: {reason}", file = file.shown())]
    Form {
        /// The file.
        file: PathBuf,
        /// What is wrong, and what is right.
        reason: String,
    },
}

/// The devices of a file, in plimsoll's form or as the kubelet's PodResources API lists what is allocatable.
///
/// # Errors
/// [`DevicesError`] names the file.
pub fn read(file: &Path) -> Result<DeviceSettings, DevicesError> {
    #[derive(serde::Deserialize)]
    struct Allocatable {
        devices: Vec<AllocatableDevices>,
    }
    let wrong = |reason: String| DevicesError::Form {
        file: file.to_owned(),
        reason,
    };
    let name: Arc<Path> = Arc::from(file);
    let text = read_text(&name, Bounds::OFFLINE.bytes)?;
    if let Ok(Allocatable { devices }) = serde_json::from_str(&text) {
        let inventory =
            Inventory::from_pod_resources(&devices).map_err(|error| wrong(error.to_string()))?;
        return Ok(DeviceSettings::from(&inventory));
    }
    serde_json::from_str(&text).map_err(|error| {
        wrong(format!(
            "{error}; `plimsoll place --help` shows what such a file looks like"
        ))
    })
}
