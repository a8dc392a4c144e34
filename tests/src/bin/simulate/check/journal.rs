//! What the agent's journal must say when it has ended.

use std::path::Path;

use super::*;

/// A disk that had no room is tried again after this at the latest (the journal's longest pause, and a step to begin
/// with).
pub(crate) const AGAIN_NS: u64 = 62 * SECOND;

fn at_ns(line: &str) -> Option<u64> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line.get("event")?.get("at_ns")?.as_u64()
}

/// When the newest event of a journal was.
pub(crate) fn newest_ns(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("journal")).ok()?;
    text.lines().filter_map(at_ns).max()
}

impl World {
    /// Each file is lines of JSON, and begins with a header. The earlier file of an agent that was killed may end in
    /// the middle of a line.
    pub(super) fn check_journal(&mut self) {
        for name in ["journal", "journal.1"] {
            let Ok(text) = std::fs::read_to_string(self.root.join(name)) else {
                continue;
            };
            let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
            if name == "journal.1" && self.incarnation > 0 {
                lines.pop_if(|line| !line.ends_with('\n'));
            }
            let is_whole = |line: &&str| {
                line.ends_with('\n') && serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok()
            };
            let torn = lines.iter().position(|line| !is_whole(line));
            let has_header = lines
                .first()
                .is_none_or(|line| line.starts_with("{\"journal\":"));
            if torn.is_some() || !has_header {
                let text = format!(
                    "{name}: line {torn:?} of {} is no JSON, or the first is no header",
                    lines.len()
                );
                self.checks.broken("journal", text, self.now_ns);
            }
        }
    }
}
