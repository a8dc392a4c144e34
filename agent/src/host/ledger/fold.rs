//! Keeps the ledger short where a file is written again and again, such as the weight of a tier whose pods come and go,
//! or one that the kernel refuses to change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::{Change, Line};

/// Joins writes of one file into the first of them, where each found what the one before had written. The last write of
/// a file stays as it is: it may not have been made yet, and then the one before it has to be undone. A write that
/// found what the one before it had found comes after one that was refused, or undone by somebody else: it takes that
/// one's place. A cgroup that is made again after somebody has removed it has one line.
pub(super) fn fold(lines: Vec<Line>) -> Vec<Line> {
    let mut folded: Vec<Line> = Vec::with_capacity(lines.len());
    // Places in `folded` of a file's joined writes, and of its last one.
    let mut places: BTreeMap<PathBuf, (usize, usize)> = BTreeMap::new();
    let mut made = BTreeSet::new();
    for line in lines {
        let Change::Write {
            path,
            old,
            new,
            process: None,
        } = &line.change
        else {
            if made.insert(line.clone()) {
                folded.push(line);
            }
            continue;
        };
        let Some((first, last)) = places.get(path).copied() else {
            places.insert(path.clone(), (folded.len(), folded.len()));
            folded.push(line);
            continue;
        };
        let before = found_and_left(&folded[last]);
        let before = before.filter(|_| folded[last].boot_id == line.boot_id);
        if before.is_some_and(|(found, _)| found == old) {
            folded[last] = line;
            continue;
        }
        let follows = before.is_some_and(|(_, left)| left == old);
        match (follows, first == last) {
            (false, _) => {
                places.insert(path.clone(), (folded.len(), folded.len()));
                folded.push(line);
            }
            (true, true) => {
                places.insert(path.clone(), (first, folded.len()));
                folded.push(line);
            }
            (true, false) => {
                let (old, new) = (old.clone(), new.clone());
                if let Change::Write { new, .. } = &mut folded[first].change {
                    new.clone_from(&old);
                }
                if let Change::Write {
                    old: before,
                    new: after,
                    ..
                } = &mut folded[last].change
                {
                    *before = old;
                    *after = new;
                }
            }
        }
    }
    folded
}

/// What a write found in its file, and what it left there.
fn found_and_left(line: &Line) -> Option<(&str, &str)> {
    match &line.change {
        Change::Write { old, new, .. } => Some((old, new)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(path: &str, old: &str, new: &str) -> Line {
        Line {
            boot_id: "boot".to_owned(),
            change: Change::Write {
                path: path.into(),
                old: old.to_owned(),
                new: new.to_owned(),
                process: None,
            },
        }
    }

    #[test]
    fn writes_of_one_file_become_two_lines() {
        let folded = fold(vec![
            line("a", "1", "2"),
            line("b", "7", "8"),
            line("a", "2", "3"),
            line("a", "3", "4"),
            line("a", "4", "5"),
        ]);
        assert_eq!(
            folded,
            [
                line("a", "1", "4"),
                line("b", "7", "8"),
                line("a", "4", "5")
            ]
        );
        assert_eq!(fold(folded.clone()), folded);
    }

    #[test]
    fn what_is_refused_again_and_again_is_one_line() {
        let refused = |wanted: &str| [line("a", "3", wanted), line("b", "7", "0-2")];
        let lines: Vec<Line> = (0..100).flat_map(|_| refused("0-2")).collect();
        assert_eq!(fold(lines), refused("0-2"));
        let changing = (0..100).flat_map(|at| refused(if at % 2 == 0 { "0-2" } else { "0-1" }));
        assert_eq!(fold(changing.collect()), refused("0-1"));
        // Also after writes that were made.
        let lines = ["3", "4", "5"].map(|new| line("a", "2", new));
        let lines = [vec![line("a", "1", "2")], lines.to_vec()].concat();
        assert_eq!(fold(lines), [line("a", "1", "2"), line("a", "2", "5")]);
    }

    #[test]
    fn a_cgroup_that_is_made_again_and_again_is_one_line() {
        let of_pod = |name: &str| {
            let cgroup = PathBuf::from(name);
            let controller = "memory".to_owned();
            let changes = [
                Change::Create {
                    cgroup: cgroup.clone(),
                },
                Change::Enable { cgroup, controller },
            ];
            changes.map(|change| Line {
                change,
                ..line("", "", "")
            })
        };
        let lines = [of_pod("a"), of_pod("b"), of_pod("a")].concat();
        assert_eq!(fold(lines), [of_pod("a"), of_pod("b")].concat());
    }

    #[test]
    fn what_somebody_else_wrote_in_between_is_kept() {
        let lines = vec![
            line("a", "1", "2"),
            line("a", "9", "3"),
            line("a", "3", "4"),
        ];
        assert_eq!(fold(lines.clone()), lines);
    }
}
