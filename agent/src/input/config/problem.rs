//! What is wrong with a configuration: everything, not only the first thing.

use std::fmt;
use std::path::{Path, PathBuf};

use super::display_name;
use super::document::Origin;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where the value comes from.
    pub origin: Origin,
    /// The field, as `memorySwap.swapBehavior`, `evictionHard: memory.available` or `reservedMemory[0].limits: memory`;
    /// empty for the file as a whole.
    pub field: String,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl Problem {
    /// Puts the three together.
    pub fn new(origin: Origin, field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            origin,
            field: field.into(),
            reason: reason.into(),
        }
    }
}

/// Everything that is wrong with a file and the flags that override it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problems {
    /// The file; `None` where there is none.
    pub path: Option<PathBuf>,
    /// At least one, in the order of the file's lines.
    pub problems: Vec<Problem>,
}

impl Problems {
    /// Sorts them by line; flags come first.
    pub(super) fn new(path: Option<&Path>, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| match problem.origin {
            Origin::File { line } => line,
            Origin::Flag(_) | Origin::Default => 0,
        });
        problems.dedup();
        Self {
            path: path.map(Path::to_owned),
            problems,
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            match (problem.origin, &self.path) {
                (Origin::Flag(flag), _) => write!(f, "--{flag}: ")?,
                (Origin::File { line }, Some(path)) => {
                    write!(f, "{}:{line}: ", display_name(path))?;
                }
                (Origin::File { line }, None) => write!(f, "line {line}: ")?,
                (Origin::Default, Some(path)) => write!(f, "{}: ", display_name(path))?,
                (Origin::Default, None) => {}
            }
            if !problem.field.is_empty() {
                write!(f, "{}: ", problem.field)?;
            }
            f.write_str(&problem.reason)?;
        }
        Ok(())
    }
}
