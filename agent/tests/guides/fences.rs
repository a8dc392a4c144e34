//! The commands in docs/guide, as a test runs them: here on any machine, and in a guest those that need a kernel to themselves.
//!
//! A guide's blocks are one shell session, in a scratch directory, with `plimsoll` in the PATH and `sh -e`: the first command that fails
//! ends it. Marks of a fence: `sh` is run everywhere, `sh guest` in a guest alone. A `text` block directly below one of these is what it
//! prints, compared line by line; a line `...` stands for any lines. Other fences are `yaml`, `json` and `text`. Everything else is an error, so
//! that a typo does not take a command out of the test.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// All guides, and the incident that they are of use in: name and text.
pub(crate) const GUIDES: &[(&str, &str)] = &[
    ("install.md", include_str!("../../../docs/guide/install.md")),
    ("journal.md", include_str!("../../../docs/guide/journal.md")),
    ("trace.md", include_str!("../../../docs/guide/trace.md")),
    ("tune.md", include_str!("../../../docs/guide/tune.md")),
    ("watch.md", include_str!("../../../docs/guide/watch.md")),
    ("../incident.md", include_str!("../../../docs/incident.md")),
];

/// Longer than any guide takes on a slow machine.
const TIME_MAX: Duration = Duration::from_secs(240);
/// Before what a block prints; no command prints this.
const BEGIN: &str = "--- block at line ";

/// Where a block is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    /// On any machine.
    Anywhere,
    /// Where a kernel can be had for oneself, as root.
    Guest,
}

/// Commands of a guide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its first line, from 1.
    pub(crate) line: usize,
    /// Where it is run.
    pub(crate) on: Where,
    /// The commands.
    pub(crate) script: String,
    /// What they print, if the guide says so.
    pub(crate) prints: Option<String>,
}

/// The blocks of a guide.
pub(crate) fn blocks(guide: &str, text: &str) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = text.lines().zip(1..);
    // Whether only empty lines have come since the last block.
    let mut is_below = false;
    while let Some((line, number)) = lines.next() {
        let Some(mark) = line.trim_start().strip_prefix("```") else {
            is_below &= line.trim().is_empty();
            continue;
        };
        let mut body = String::new();
        loop {
            match lines.next() {
                Some((line, _)) if line.trim() == "```" => break,
                Some((line, _)) => body += &format!("{line}\n"),
                None => return Err(format!("{guide}:{number}: the block has no end")),
            }
        }
        let on = match mark {
            "sh" => Some(Where::Anywhere),
            "sh guest" => Some(Where::Guest),
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
                    "{guide}:{number}: no block is marked {other:?}: one of sh, sh guest, text, yaml, json"
                ));
            }
        };
        is_below = on.is_some();
        if let Some(on) = on {
            if body.trim().is_empty() {
                return Err(format!("{guide}:{number}: the block is empty"));
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

/// Runs the blocks of a guide that are for such a place, in `scratch`, and compares what they print.
pub(crate) fn run(
    guide: &str,
    text: &str,
    places: &[Where],
    plimsoll: &Path,
    scratch: &Path,
) -> Result<usize, String> {
    let mut blocks = blocks(guide, text)?;
    blocks.retain(|block| places.contains(&block.on));
    let mut script = String::new();
    for block in &blocks {
        script += &format!("echo '{BEGIN}{}'\n{}", block.line, block.script);
    }
    let failed = |what: &str, error: std::io::Error| format!("{guide}: {what}: {error}");
    let dirs = plimsoll.parent().map(|own| own.display().to_string());
    let path = std::env::var("PATH").unwrap_or_default();
    let output = scratch.join(".output");
    let file = File::create(&output).map_err(|error| failed("its output", error))?;
    let errors = file
        .try_clone()
        .map_err(|error| failed("its output", error))?;
    let mut shell = Command::new("sh")
        .args(["-e", "-c", &script])
        .current_dir(scratch)
        .env("PATH", format!("{}:{path}", dirs.unwrap_or_default()))
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(|error| failed("sh", error))?;
    let start = Instant::now();
    let status = loop {
        match shell.try_wait().map_err(|error| failed("sh", error))? {
            Some(status) => break Ok(status),
            None if start.elapsed() > TIME_MAX => break Err("it takes too long".to_owned()),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    // What it has left in the background.
    if let Some(group) = rustix::process::Pid::from_raw(shell.id().cast_signed()) {
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
    }
    let printed = fs::read(&output).map_err(|error| failed("its output", error))?;
    let printed = String::from_utf8_lossy(&printed);
    let status = status.map_err(|why| format!("{guide}: {why}:\n{printed}"))?;
    if !status.success() {
        return Err(format!(
            "{guide}: the last of these commands failed ({status}):\n{printed}"
        ));
    }
    let mut parts = printed.split(BEGIN).skip(1);
    for block in &blocks {
        let part = parts.next().unwrap_or_default();
        let (_, printed) = part.split_once('\n').unwrap_or_default();
        if let Some(says) = &block.prints {
            let says: Vec<&str> = says.lines().map(str::trim_end).collect();
            let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
            if !is_like(&says, &printed) {
                return Err(format!(
                    "{guide}:{}: it prints\n{}\nand not\n{}",
                    block.line,
                    printed.join("\n"),
                    says.join("\n")
                ));
            }
        }
    }
    Ok(blocks.len())
}

/// Whether lines are as the guide says; `...` stands for any, also none.
fn is_like(says: &[&str], printed: &[&str]) -> bool {
    match says {
        [] => printed.is_empty(),
        ["...", rest @ ..] => (0..=printed.len()).any(|skipped| is_like(rest, &printed[skipped..])),
        [first, rest @ ..] => printed.first() == Some(first) && is_like(rest, &printed[1..]),
    }
}
