//! Manifests for commands that only look: files, directories and standard input, read once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::kube::pod_uid::PodUid;

use super::files::{STDIN, manifests_in, read_or_stdin};
use super::pods::{Parsed, parse};
use super::{Bounds, ManifestError, ManifestPod, read_text};

/// Reads all of `paths`, in which [`STDIN`] stands for `stdin`. In a directory the same files are read as by
/// `plimsoll run`.
///
/// # Errors
/// All errors of all files, beside the pods of correct documents. A pod that is there twice is one.
pub fn gather(paths: &[PathBuf], mut stdin: impl Read) -> (Vec<ManifestPod>, Vec<ManifestError>) {
    let bounds = Bounds::OFFLINE;
    let mut all = Parsed::default();
    let mut take = |file: &Arc<Path>, text: Result<String, ManifestError>| match text {
        Ok(text) => {
            // Commands that only look know no state in which a budget could be used up.
            let Parsed {
                pods,
                limits,
                errors,
                ..
            } = parse(file, &text, bounds);
            all.pods.extend(pods);
            all.errors.extend(errors);
            // Without an error they would seem to count.
            all.errors.extend(limits.iter().filter(|limit| limit.object.is_some()).map(|limit| {
                let what = format!("{} does not count here; ask `plimsoll admit`, which prints pods with what it sets (--output yaml)", limit.key);
                limit.error("kind", what)
            }));
        }
        Err(error) => all.errors.push(error),
    };
    for path in paths {
        if path.as_os_str() == STDIN || !path.is_dir() {
            let (file, text) = read_or_stdin(path, &mut stdin, bounds.bytes);
            take(&file, text);
            continue;
        }
        let file: Arc<Path> = Arc::from(path.as_path());
        match manifests_in(&file) {
            Ok(files) => {
                for file in files {
                    take(&file, read_text(&file, bounds.bytes));
                }
            }
            Err(error) => take(&file, Err(error)),
        }
    }
    let Parsed {
        pods, mut errors, ..
    } = all;
    let mut first: BTreeMap<PodUid, (Arc<Path>, u64)> = BTreeMap::new();
    for pod in &pods {
        match first.entry(pod.pod.uid()) {
            Entry::Vacant(vacant) => {
                vacant.insert((Arc::clone(&pod.file), pod.line));
            }
            Entry::Occupied(known) => {
                let (first_file, first_line) = known.get();
                errors.push(ManifestError::Duplicate {
                    file: Arc::clone(&pod.file),
                    line: pod.line,
                    uid: known.key().clone(),
                    first_file: Arc::clone(first_file),
                    first_line: *first_line,
                });
            }
        }
    }
    (pods, errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> String {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c}}]}}}}\n"
        )
    }

    #[test]
    fn files_directories_and_standard_input() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        let one = write("one.txt", &pod("one"));
        write("all/b.yaml", &pod("b"));
        write("all/a.json", &pod("a"));
        write("all/notes.md", "no manifest");
        let paths = [one, dir.path().join("all"), PathBuf::from(STDIN)];
        let (pods, errors) = gather(&paths, pod("piped").as_bytes());
        assert_eq!(errors, []);
        let names: Vec<_> = pods.iter().map(|pod| &pod.pod.metadata.name).collect();
        assert_eq!(names, ["one", "a", "b", "piped"]);
    }

    #[test]
    fn a_pod_that_is_there_twice_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        std::fs::write(&path, pod("a")).unwrap();
        let missing = dir.path().join("missing.yaml");
        let (_, errors) = gather(&[path, STDIN.into(), missing], pod("a").as_bytes());
        let text: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert!(text[0].contains("missing.yaml: cannot be read"), "{text:?}");
        assert!(
            text[1].starts_with("standard input:1: pod default_a is already defined at"),
            "{text:?}"
        );
    }

    #[test]
    fn more_pods_than_a_manifest_may_hold() {
        let count = super::super::DOCUMENTS_PER_FILE_MAX * 8;
        let text: String = (0..count)
            .map(|index| format!("---\n{}", pod(&format!("p{index}"))))
            .collect();
        let (pods, errors) = gather(&[STDIN.into()], text.as_bytes());
        assert_eq!((pods.len(), errors), (count, Vec::new()));
    }
}
