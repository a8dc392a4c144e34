//! What the operator wants: a configuration file with the kubelet's field names, and flags that override it.
//!
//! Problem: a node has a KubeletConfiguration already, and an operator will not write a second file; but what Plimsoll
//! does not understand, or understands and does not do, must not pass in silence. Approach: the file is read into a
//! tree that knows its lines ([`document`]), checked against one table of all fields ([`schema`], [`kubelet`],
//! [`plimsoll`]) and the kubelet's rules ([`rules`]), and resolved with defaults and flags ([`resolve`]) into a
//! [`Config`]. Everything that is wrong is said at once ([`problem`]). This is the only place that knows defaults.

pub mod document;
pub mod flags;
pub mod kubelet;
mod placement;
pub mod plimsoll;
pub mod problem;
pub mod remarks;
pub mod resolve;
pub mod rules;
pub mod schema;
pub mod settings;
pub(crate) mod tree;

use std::io::Read as _;
use std::path::{Path, PathBuf};

pub use flags::EvictionFlags;
pub use problem::{Problem, Problems};
pub use remarks::Remark;
pub use resolve::Effective;
pub use settings::Config;

use document::{Node, Value};

use crate::host::shown::Show as _;

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
    #[error("{}: the configuration cannot be read: {error}", display_name(path))]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        error: std::io::Error,
    },
    /// The file or a flag is not what it should be.
    #[error(transparent)]
    Invalid(#[from] Problems),
}

/// More than any configuration has.
const FILE_MAX_BYTES: u64 = 1 << 20;
/// The path that stands for standard input.
pub const STDIN: &str = "-";

/// A path as people read it.
pub(crate) fn display_name(path: &Path) -> String {
    if path.as_os_str() == STDIN {
        "standard input".to_owned()
    } else {
        path.shown().to_string()
    }
}

impl ConfigFile {
    /// Reads a file, YAML or JSON; [`STDIN`] is standard input.
    ///
    /// # Errors
    /// [`ConfigError`] with the file, and the line where it is malformed.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |error| ConfigError::Read {
            path: path.to_owned(),
            error,
        };
        let mut bytes = Vec::new();
        if path.as_os_str() == STDIN {
            let stdin = std::io::stdin().lock();
            stdin.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes)
        } else {
            let file = std::fs::File::open(path).map_err(unreadable)?;
            file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes)
        }
        .map_err(unreadable)?;
        let refuse = |reason: String| {
            let problem = Problem::new(document::Origin::Default, "", reason);
            ConfigError::Invalid(Problems::new(Some(path), vec![problem]))
        };
        if bytes.len() as u64 > FILE_MAX_BYTES {
            return Err(refuse(format!(
                "it is larger than {FILE_MAX_BYTES} bytes, and no configuration of a node is"
            )));
        }
        let text = String::from_utf8(bytes)
            .map_err(|error| refuse(format!("it is not UTF-8 text: {error}")))?;
        Self::parse(&text, Some(path))
    }
}

#[cfg(test)]
mod tests;
