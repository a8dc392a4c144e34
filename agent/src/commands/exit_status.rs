//! What the exit statuses of `plimsoll` mean: one table, from which help, manual pages and
//! docs/reference/exit-status.md have them.

use std::fmt::Write as _;

use clap::Command;

pub(crate) use crate::host::exit_status::{
    DONE, EXEC_CANNOT_EXECUTE, EXEC_FAILED, EXEC_NOT_FOUND, FAILED, REFUSED, WRONG_USAGE,
};

use crate::input::error::InputError;

/// The loop of the agent hung ([`crate::daemon::watchdog`]).
pub const HUNG: u8 = crate::daemon::watchdog::EXIT_HUNG;

/// An error with which a command ends.
pub(crate) trait CommandError {
    /// The exit status.
    fn exit_status(&self) -> u8 {
        FAILED
    }
}

impl CommandError for anyhow::Error {}

impl CommandError for InputError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::StdinTwice => WRONG_USAGE,
            Self::Invalid { .. } => FAILED,
        }
    }
}

impl CommandError for crate::host::program::NotStarted {}

/// A status (`None`: that of the command that was started), and what it means.
pub type Meaning = (Option<u8>, &'static str);

/// What each command's statuses mean, beside [`WRONG_USAGE`]. No status stands for that of another program.
pub const TABLE: [(&str, &[Meaning]); 22] = [
    (
        "run",
        &[
            (Some(DONE), "stopped by SIGINT or SIGTERM"),
            (Some(FAILED), "could not start or go on"),
            (
                Some(HUNG),
                "its loop hung for a minute; standard error says where",
            ),
        ],
    ),
    (
        "exec",
        &[
            (None, "the exit status of the command"),
            (Some(EXEC_FAILED), "plimsoll failed"),
            (
                Some(EXEC_CANNOT_EXECUTE),
                "the command is there and cannot be executed",
            ),
            (Some(EXEC_NOT_FOUND), "the command is not found"),
        ],
    ),
    (
        "check",
        &[
            (Some(DONE), "every signal has its best mechanism"),
            (
                Some(FAILED),
                "plimsoll works here, with the losses listed; or the report cannot be written",
            ),
            (
                Some(REFUSED),
                "plimsoll cannot work here (no cgroup memory controller)",
            ),
        ],
    ),
    (
        "events",
        &[
            (Some(DONE), "no record was lost or unreadable"),
            (
                Some(FAILED),
                "a record was lost or unreadable, or BPF cannot be used",
            ),
        ],
    ),
    (
        "trace",
        &[
            (
                Some(DONE),
                "recorded; the summary and each file name what was lost",
            ),
            (
                Some(FAILED),
                "nothing can be recorded here, or a file cannot be written (the others are)",
            ),
            (
                Some(REFUSED),
                "there is no such pod or cgroup; the message names similar ones",
            ),
        ],
    ),
    (
        "rank",
        &[
            (Some(DONE), "ranked"),
            (
                Some(FAILED),
                "a file cannot be read or is wrong; each message names file, line and field",
            ),
        ],
    ),
    (
        "place",
        &[
            (Some(DONE), "every pod is placed"),
            (
                Some(FAILED),
                "a file cannot be read or is wrong (the message names file, line and field), or the machine does not allow the settings",
            ),
            (
                Some(REFUSED),
                "a pod is refused; the output shows why, and what would have to be free",
            ),
        ],
    ),
    (
        "admit",
        &[
            (Some(DONE), "every object would be admitted"),
            (
                Some(FAILED),
                "a file cannot be read or is wrong; each message names file, line and field",
            ),
            (
                Some(REFUSED),
                "an object would be refused; the output has the API server's sentence",
            ),
        ],
    ),
    (
        "quota",
        &[
            (Some(DONE), "every object fits, and no quota is exceeded"),
            (
                Some(FAILED),
                "a file cannot be read or is wrong; each message names file, line and field; without files: no agent answers, or this user may not ask",
            ),
            (
                Some(REFUSED),
                "an object would be refused, or more is in use than a quota allows",
            ),
        ],
    ),
    (
        "web",
        &[
            (Some(DONE), "ended by a signal"),
            (
                Some(FAILED),
                "no agent answers, the journal cannot be read, or the address cannot be listened on",
            ),
        ],
    ),
    (
        "arbitrate",
        &[
            (
                Some(DONE),
                "computed; conditions of objects are part of the answer",
            ),
            (
                Some(FAILED),
                "a file cannot be read or is wrong; each message names file, line and field",
            ),
            (
                Some(REFUSED),
                "--why or --what-if names a Consumer or namespace that is not there",
            ),
        ],
    ),
    (
        "rehearse",
        &[
            (Some(DONE), "rehearsed, whatever the policies did"),
            (
                Some(FAILED),
                "a file cannot be read or is wrong; each message names file, line and field",
            ),
            (Some(REFUSED), "the load makes more than 100000 pods"),
        ],
    ),
    (
        "topology",
        &[
            (Some(DONE), "drawn"),
            (
                Some(FAILED),
                "the machine or the file cannot be read or is wrong; the message names file and field",
            ),
        ],
    ),
    (
        "config check",
        &[
            (
                Some(DONE),
                "every file is accepted; remarks name what plimsoll does not act on",
            ),
            (Some(FAILED), "a file is refused or cannot be read"),
        ],
    ),
    (
        "config print",
        &[
            (Some(DONE), "printed"),
            (Some(FAILED), "the file is refused or cannot be read"),
        ],
    ),
    (
        "explain",
        &[
            (Some(DONE), "explained"),
            (
                Some(FAILED),
                "no agent answers, this user may not ask, or the journal cannot be read; or one of `--quotas` cannot, and all else is explained",
            ),
            (
                Some(REFUSED),
                "there is no such pod or signal, or several pods have that name",
            ),
        ],
    ),
    (
        "top",
        &[
            (Some(DONE), "left by a key or a signal, or printed"),
            (
                Some(FAILED),
                "no agent answers, this user may not ask, the journal cannot be read, or there is no terminal",
            ),
        ],
    ),
    (
        "health",
        &[
            (
                Some(DONE),
                "the agent's loop answers; with `--ready`: and its pods are listed",
            ),
            (
                Some(FAILED),
                "it does not, no agent runs, or this user may not ask",
            ),
        ],
    ),
    (
        "uninstall",
        &[
            (
                Some(DONE),
                "everything is as it was (with `--dry-run`: would be)",
            ),
            (
                Some(FAILED),
                "something is left: each is named with its reason, and running it again finishes the work; or it failed",
            ),
            (
                Some(REFUSED),
                "an agent runs; the message names its process",
            ),
        ],
    ),
    (
        "completions",
        &[
            (Some(DONE), "printed"),
            (Some(FAILED), "standard output cannot be written"),
        ],
    ),
    (
        "man",
        &[
            (Some(DONE), "written"),
            (
                Some(FAILED),
                "a page cannot be written; the message names it",
            ),
        ],
    ),
    (
        "replay",
        &[
            (Some(DONE), "the decisions are the same"),
            (Some(FAILED), "the journal cannot be read or replayed"),
            (Some(REFUSED), "the decisions differ"),
        ],
    ),
];

/// Adds the exit statuses to the help of every command of `plimsoll`. Where the help has them already they stay: that
/// of `run` and `trace` is the help of other programs, too.
pub(crate) fn explained(plimsoll: Command) -> Command {
    plimsoll.mut_subcommands(|command| {
        let outer = command.get_name().to_owned();
        let inner = |command: Command| {
            let name = format!("{outer} {}", command.get_name());
            with_statuses_of(command, &name)
        };
        with_statuses_of(command.mut_subcommands(inner), &outer)
    })
}

fn with_statuses_of(command: Command, name: &str) -> Command {
    match TABLE.iter().find(|(row, _)| *row == name) {
        Some((_, statuses)) => with_statuses(command, statuses),
        None => command,
    }
}

fn with_statuses(command: Command, statuses: &[(Option<u8>, &str)]) -> Command {
    let mut help = command
        .get_after_help()
        .map_or_else(String::new, ToString::to_string);
    if help.contains("Exit status:") {
        return command;
    }
    if !help.is_empty() {
        help.push_str("\n\n");
    }
    help.push_str("Exit status:");
    for (status, meaning) in statuses.iter().copied() {
        // Writing to a String cannot fail.
        write!(help, "\n  {:<4} {meaning}", text(status)).ok();
    }
    write!(help, "\n  {WRONG_USAGE:<4} wrong usage").ok();
    command.after_help(help)
}

fn text(status: Option<u8>) -> String {
    status.map_or_else(|| "any".to_owned(), |status| status.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As docs/reference/exit-status.md has it.
    fn table() -> String {
        let mut table = format!(
            "| command | status | meaning |\n|---|---|---|\n| every command | {WRONG_USAGE} | wrong usage; nothing else |\n"
        );
        for (name, statuses) in TABLE {
            for (index, (status, meaning)) in statuses.iter().enumerate() {
                let name = if index == 0 {
                    format!("`plimsoll {name}` ")
                } else {
                    String::new()
                };
                table += &format!("| {name}| {} | {meaning} |\n", text(*status));
            }
        }
        table
    }

    #[test]
    fn the_reference_is_this_table() {
        let reference = include_str!("../../../docs/reference/exit-status.md");
        assert!(reference.contains(&table()), "write there:\n{}", table());
    }

    #[test]
    fn wrong_usage_has_a_status_of_its_own() {
        for (name, statuses) in TABLE {
            let is_usage = |(status, _): &(Option<u8>, &str)| *status == Some(WRONG_USAGE);
            assert!(!statuses.iter().any(is_usage), "{name}");
        }
    }

    #[test]
    fn every_command_explains_its_statuses_once() {
        fn check(path: &str, command: &Command) {
            let inner: Vec<_> = command.get_subcommands().collect();
            if inner.is_empty() && !command.is_hide_set() {
                assert!(TABLE.iter().any(|(name, _)| *name == path), "{path}");
                let help = command.clone().render_long_help().to_string();
                assert_eq!(help.matches("Exit status:").count(), 1, "{path}:\n{help}");
            }
            for command in inner {
                check(format!("{path} {}", command.get_name()).trim(), command);
            }
        }
        check("", &crate::commands::cli::command());
    }
}
