//! What the operator wants: a configuration file with the kubelet's field names, and flags that override it.
//!
//! Problem: a node has a KubeletConfiguration already, and an operator will not write a second file; but what Plimsoll does not
//! understand, or understands and does not do, must not pass in silence. Approach: the file is read into a tree that knows its
//! lines ([`document`]), checked against one table of all fields ([`schema`], [`kubelet`], [`plimsoll`]) and the kubelet's rules
//! ([`rules`]), and resolved with defaults and flags ([`resolve`]) into a [`Config`]. Everything that is wrong is said at once
//! ([`problem`]). This is the only place that knows defaults.

pub mod document;
pub mod flags;
pub mod kubelet;
pub mod plimsoll;
pub mod problem;
pub mod resolve;
pub mod rules;
pub mod schema;
mod tree;

use std::path::{Path, PathBuf};

pub use flags::EvictionFlags;
pub use problem::{Problem, Problems};
pub use resolve::{Config, Effective, Remark};

use document::{Node, Value};

/// A configuration file, read and not yet checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigFile {
    path: Option<PathBuf>,
    root: Node,
}

/// No file: all defaults.
impl Default for ConfigFile {
    fn default() -> Self {
        Self {
            path: None,
            root: Node::default_of(Value::Map(Vec::new())),
        }
    }
}

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: the configuration cannot be read: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The file or a flag is not what it should be.
    #[error(transparent)]
    Invalid(#[from] Problems),
}

impl ConfigFile {
    /// Reads a file, YAML or JSON.
    ///
    /// # Errors
    /// [`ConfigError`] with the file, and the line where it is malformed.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, Some(path))
    }
}

#[cfg(test)]
mod tests;
