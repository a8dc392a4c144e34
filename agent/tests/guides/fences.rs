//! The commands in README.md and in the guides, as a test runs them: on this machine, or in a guest if they need a
//! kernel to themselves.
//!
//! The blocks of a page are one shell session in a scratch directory, with `plimsoll` in the PATH and `sh -e`: the
//! first command that fails ends it. The mark of a fence says where the block runs:
//!
//! | mark | where |
//! |---|---|
//! | `sh` | on any machine, and in the guest |
//! | `sh guest` | in a guest only |
//! | `sh guest background` | the same, and the session does not wait for it: the reader's other terminal |
//! | `sh repository` | nowhere here: another test checks which file of the repository runs each line |
//! | `sh cluster` | nowhere here: a test of `plimsoll-cluster` runs it against a real API server (agent/cluster/tests/api_server/guide.rs). A word after it is the way of whom it belongs to: blocks of one way are a session |
//! | `text`, `yaml`, `json` | not a command |
//!
//! A `text` block directly below a command block is the expected output, compared line by line; a line `...` stands for
//! any lines. A comment `<!-- until: COMMAND -->` repeats the command until it succeeds: a reader waits, a test has to
//! be told for what. Any other mark is an error, so that a typing error does not take a command out of the test.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// All pages with commands, relative to the root of the repository: name and text.
pub(crate) const PAGES: &[(&str, &str)] = &[
    ("README.md", include_str!("../../../README.md")),
    (
        "docs/guide/cluster.md",
        include_str!("../../../docs/guide/cluster.md"),
    ),
    (
        "docs/guide/first-run.md",
        include_str!("../../../docs/guide/first-run.md"),
    ),
    (
        "docs/guide/install.md",
        include_str!("../../../docs/guide/install.md"),
    ),
    (
        "docs/guide/journal.md",
        include_str!("../../../docs/guide/journal.md"),
    ),
    (
        "docs/guide/limits.md",
        include_str!("../../../docs/guide/limits.md"),
    ),
    (
        "docs/guide/place.md",
        include_str!("../../../docs/guide/place.md"),
    ),
    (
        "docs/guide/sharing.md",
        include_str!("../../../docs/guide/sharing.md"),
    ),
    (
        "docs/guide/trace.md",
        include_str!("../../../docs/guide/trace.md"),
    ),
    (
        "docs/guide/tune.md",
        include_str!("../../../docs/guide/tune.md"),
    ),
    (
        "docs/guide/watch.md",
        include_str!("../../../docs/guide/watch.md"),
    ),
    (
        "docs/incident.md",
        include_str!("../../../docs/incident.md"),
    ),
];

/// A session that prints nothing for this long is stopped. A single block may wait for memory to fill in an emulated
/// guest.
const SILENCE_MAX: Duration = Duration::from_secs(600);
/// What a session has left in the background has this long to stop after SIGTERM.
const STOP_MAX: Duration = Duration::from_secs(30);
/// Printed before the output of a block; no command prints this.
const BEGIN: &str = "--- block at line ";
/// Where background blocks print, in the scratch directory.
const BACKGROUND_OUTPUT: &str = ".background";

/// Where a block is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    /// On any machine.
    Anywhere,
    /// In a guest, as root.
    Guest,
    /// In the repository, by another test or by CI.
    Repository,
    /// With an API server.
    Cluster(Way),
}

/// How a reader installs on a cluster: each goes another way through the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// `kubectl apply -k` on Kubernetes 1.30 or later.
    Kubectl,
    /// The same before 1.30.
    Before130,
    /// With the chart.
    Helm,
    /// Not at all any more: what is to be taken off the nodes.
    LeftBehind,
}

/// Commands of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its first line, from 1.
    pub(crate) line: usize,
    /// Where it is run.
    pub(crate) on: Where,
    /// The commands, as the shell gets them.
    pub(crate) script: String,
    /// The expected output, if the page has it.
    pub(crate) prints: Option<String>,
}

/// The blocks of a page.
pub(crate) fn blocks(page: &str, text: &str) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = text.lines().zip(1..);
    // Only empty lines since the last block of commands.
    let mut is_below = false;
    while let Some((line, number)) = lines.next() {
        if let Some(command) = line
            .strip_prefix("<!-- until: ")
            .and_then(|rest| rest.strip_suffix(" -->"))
        {
            blocks.push(Block {
                line: number,
                on: Where::Guest,
                script: format!("until {command} > /dev/null 2>&1; do sleep 0.2; done\n"),
                prints: None,
            });
        }
        let Some(mark) = line.trim_start().strip_prefix("```") else {
            is_below &= line.trim().is_empty();
            continue;
        };
        let mut body = String::new();
        loop {
            match lines.next() {
                Some((line, _)) if line.trim() == "```" => break,
                Some((line, _)) => body += &format!("{line}\n"),
                None => return Err(format!("{page}:{number}: the block is not closed")),
            }
        }
        let on = match mark {
            "sh" => Some(Where::Anywhere),
            "sh guest" => Some(Where::Guest),
            "sh guest background" => {
                body = format!("{{\n{body}}} >> {BACKGROUND_OUTPUT} 2>&1 &\n");
                Some(Where::Guest)
            }
            "sh repository" => Some(Where::Repository),
            "sh cluster kubectl" => Some(Where::Cluster(Way::Kubectl)),
            "sh cluster before-1.30" => Some(Where::Cluster(Way::Before130)),
            "sh cluster helm" => Some(Where::Cluster(Way::Helm)),
            "sh cluster left-behind" => Some(Where::Cluster(Way::LeftBehind)),
            "text" if is_below => {
                if let Some(block) = blocks.last_mut() {
                    block.prints = Some(body);
                }
                is_below = false;
                continue;
            }
            "text" | "yaml" | "json" => None,
            other => {
                return Err(format!(
                    "{page}:{number}: unknown mark {other:?}: write sh, sh guest, sh guest background, sh repository, sh cluster kubectl, sh cluster before-1.30, sh cluster helm, text, yaml or json"
                ));
            }
        };
        is_below = on.is_some();
        if let Some(on) = on {
            if body.trim().is_empty() {
                return Err(format!("{page}:{number}: the block is empty"));
            }
            blocks.push(Block {
                line: number + 1,
                on,
                script: body,
                prints: None,
            });
        }
    }
    Ok(blocks)
}

/// Runs the blocks of a page that belong to these places, in `scratch`, and compares their output. Returns how many
/// there were.
pub(crate) fn run(
    page: &str,
    text: &str,
    places: &[Where],
    plimsoll: &Path,
    scratch: &Path,
) -> Result<usize, String> {
    let mut blocks = blocks(page, text)?;
    blocks.retain(|block| places.contains(&block.on));
    let mut script = String::new();
    for block in &blocks {
        script += &format!("echo '{BEGIN}{}'\n{}", block.line, block.script);
    }
    let failed = |what: &str, error: std::io::Error| format!("{page}: {what}: {error}");
    let dir = plimsoll
        .parent()
        .map(|dir| dir.to_string_lossy().into_owned());
    let path = std::env::var("PATH").unwrap_or_default();
    let output = scratch.join(".output");
    let file = File::create(&output).map_err(|error| failed("create its output", error))?;
    let errors = file
        .try_clone()
        .map_err(|error| failed("duplicate its output", error))?;
    let mut shell = Command::new("sh")
        .args(["-e", "-c", &script])
        .current_dir(scratch)
        .env("PATH", format!("{}:{path}", dir.unwrap_or_default()))
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(|error| failed("start sh", error))?;
    let mut printed_bytes = 0;
    let mut printed_at = Instant::now();
    let status = loop {
        if let Some(status) = shell.try_wait().map_err(|error| failed("wait", error))? {
            break Ok(status);
        }
        let bytes = fs::metadata(&output).map_or(0, |file| file.len());
        if bytes != printed_bytes {
            (printed_bytes, printed_at) = (bytes, Instant::now());
        }
        if printed_at.elapsed() > SILENCE_MAX {
            break Err(format!("printed nothing for {} s", SILENCE_MAX.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    stop_group(shell.id());
    let printed = fs::read(&output).map_err(|error| failed("read its output", error))?;
    let printed = String::from_utf8_lossy(&printed);
    let background = fs::read(scratch.join(BACKGROUND_OUTPUT)).unwrap_or_default();
    let background = String::from_utf8_lossy(&background);
    let status =
        status.map_err(|why| format!("{page}: {why}:\n{printed}\nbackground:\n{background}"))?;
    if !status.success() {
        return Err(format!(
            "{page}: the last of these commands failed ({status}):\n{printed}\nbackground:\n{background}"
        ));
    }
    let mut parts = printed.split(BEGIN).skip(1);
    for block in &blocks {
        let part = parts.next().unwrap_or_default();
        let (_, printed) = part.split_once('\n').unwrap_or_default();
        if let Some(expected) = &block.prints {
            let expected: Vec<&str> = expected.lines().map(str::trim_end).collect();
            let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
            if !matches(&expected, &printed) {
                return Err(format!(
                    "{page}:{}: the block prints\n{}\nand not\n{}",
                    block.line,
                    printed.join("\n"),
                    expected.join("\n")
                ));
            }
        }
    }
    Ok(blocks.len())
}

/// Ends what a session has left in the background: SIGTERM, so that an agent puts back what it changed, then SIGKILL.
fn stop_group(leader: u32) {
    let Some(group) = Pid::from_raw(leader.cast_signed()) else {
        return;
    };
    if kill_process_group(group, Signal::TERM).is_err() {
        return; // nothing is left
    }
    let start = Instant::now();
    while test_kill_process_group(group).is_ok() && start.elapsed() < STOP_MAX {
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process_group(group, Signal::KILL).ok();
}

/// Compares lines; an expected line `...` stands for any number of lines.
fn matches(expected: &[&str], printed: &[&str]) -> bool {
    match expected {
        [] => printed.is_empty(),
        ["...", rest @ ..] => (0..=printed.len()).any(|skipped| matches(rest, &printed[skipped..])),
        [first, rest @ ..] => printed.first() == Some(first) && matches(rest, &printed[1..]),
    }
}
