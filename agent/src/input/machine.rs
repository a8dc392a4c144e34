//! Files that describe a machine: `machine.json`.

use std::path::Path;
use std::sync::Arc;

use plimsoll_core::placement::machine::{Machine, MachineError, MachineFile};

use crate::host::shown::Show as _;
use crate::input::manifests::{Bounds, ManifestError, read_or_stdin};

/// Why a machine is not known. The messages name the file and the field.
#[derive(Debug, thiserror::Error)]
pub enum MachineFileError {
    /// The file cannot be read.
    #[error(transparent)]
    Unreadable(#[from] ManifestError),
    /// The file is no JSON.
    #[error("{file}: {error}; plimsoll topology --output json shows what such a file looks like", file = file.shown())]
    Syntax {
        /// Its name.
        file: Arc<Path>,
        /// What the parser says.
        error: serde_json::Error,
    },
    /// The file describes no machine.
    #[error("{file}: {error}; plimsoll topology --output json shows what such a file looks like", file = file.shown())]
    Machine {
        /// Its name.
        file: Arc<Path>,
        /// What is wrong.
        error: MachineError,
    },
}

/// The machine that a file describes; `-` is `stdin`.
///
/// # Errors
/// [`MachineFileError`] names the file and the field.
pub fn read(path: &Path, stdin: impl std::io::Read) -> Result<Machine, MachineFileError> {
    let (file, text) = read_or_stdin(path, stdin, Bounds::OFFLINE.bytes);
    let described: MachineFile =
        serde_json::from_str(&text?).map_err(|error| MachineFileError::Syntax {
            file: Arc::clone(&file),
            error,
        })?;
    described
        .machine()
        .map_err(|error| MachineFileError::Machine { file, error })
}
