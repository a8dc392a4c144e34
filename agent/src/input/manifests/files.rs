//! Which files commands that only look read: the ones named, those of a directory, and standard input.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::{ManifestError, is_manifest, read_text, text_of, unreadable};

/// The name of standard input among the paths.
pub const STDIN: &str = "-";

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
