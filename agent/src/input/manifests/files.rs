//! Which files commands that only look read: the ones named, those of a directory, and standard input.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ManifestError, is_manifest, read_text, text_of, unreadable};
use crate::input::error::InputError;

/// The name of standard input among the paths.
pub const STDIN: &str = "-";

/// Standard input can be read once: whether it is among all paths of a command no more than once.
///
/// # Errors
/// [`InputError::StdinTwice`].
pub(crate) fn stdin_once<'a>(
    paths: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), InputError> {
    let is_stdin = |path: &&PathBuf| path.as_os_str() == STDIN;
    match paths.into_iter().filter(is_stdin).count() {
        0 | 1 => Ok(()),
        _ => Err(InputError::StdinTwice),
    }
}

/// The text of a file, or of `stdin` for [`STDIN`], and what messages call it.
pub(crate) fn read_or_stdin(
    path: &Path,
    stdin: impl Read,
    bytes_max: u64,
) -> (Arc<Path>, Result<String, ManifestError>) {
    if path.as_os_str() == STDIN {
        let name = Arc::from(Path::new("standard input"));
        let text = text_of(&name, stdin, bytes_max);
        return (name, text);
    }
    let file = Arc::from(path);
    let text = read_text(&file, bytes_max);
    (file, text)
}

/// The manifests of a directory, by name.
pub(super) fn manifests_in(dir: &Arc<Path>) -> Result<Vec<Arc<Path>>, ManifestError> {
    let failed = |error: std::io::Error| unreadable(dir, &error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if is_manifest(&path) && path.is_file() {
            files.push(Arc::from(path));
        }
    }
    files.sort_unstable();
    Ok(files)
}
