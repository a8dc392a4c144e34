//! What a step that failed leaves behind, for who has to find out why.

use std::fmt::Write as _;
use std::fs;

use super::super::agent::Agent;
use super::super::memory;
use super::super::node::Node;
use super::super::table::bytes;

/// Lines of each log.
const LINES_MAX: usize = 20;

/// Memory, what the agent said last, and the end of each file that a program of the scene has written.
pub(super) fn of(node: &Node, agent: Option<&mut Agent>) -> String {
    let mut text = String::new();
    if let Ok(info) = memory::read() {
        let _always_ok = write!(
            text,
            "memory: {} of {} available, {} free",
            bytes(info.working_set_available_bytes()),
            bytes(info.total_bytes),
            bytes(info.free_bytes)
        );
    }
    if let Some(agent) = agent {
        // A line that cannot be read is as good as one that was not written.
        let _unreadable = agent.drain();
        let events: Vec<String> = agent
            .events
            .iter()
            .map(|(_, event)| format!("{event:?}"))
            .collect();
        text += &tail("what the agent said", &events.join("\n"));
    }
    let mut files: Vec<_> = fs::read_dir(node.directory.join("log"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    for file in files {
        let said = fs::read_to_string(&file).unwrap_or_default();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        text += &tail(&name, &said);
    }
    text
}

/// The last lines of a text under a heading; nothing when it is empty.
fn tail(name: &str, said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    let last = &lines[lines.len().saturating_sub(LINES_MAX)..];
    if last.is_empty() {
        return String::new();
    }
    format!("\n{name}, last lines:\n    {}", last.join("\n    "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_shown_by_its_end() {
        assert_eq!(tail("a.out", ""), "");
        let long: String = (0..30).map(|line| format!("line {line}\n")).collect();
        let text = tail("a.out", &long);
        assert!(
            text.starts_with("\na.out, last lines:\n    line 10\n"),
            "{text}"
        );
        assert!(text.ends_with("    line 29"), "{text}");
    }
}
