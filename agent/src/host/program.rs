//! What every program of this project does at its start and end: it logs to standard error, and prints its error.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::host::shown::{self, Show as _};

/// What is logged: `LEVEL` or `TARGET=LEVEL`, several with commas between.
const LOG_VARIABLE: &str = "PLIMSOLL_LOG";

/// Logs to standard error what `PLIMSOLL_LOG` asks for, else warnings and errors.
pub fn log_to_stderr() {
    let asked = std::env::var(LOG_VARIABLE).unwrap_or_default();
    let (filter, wrong) = match asked.parse::<Targets>() {
        Ok(filter) if !asked.is_empty() => (filter, None),
        Ok(_) => (Targets::new().with_default(Level::WARN), None),
        Err(error) => (Targets::new().with_default(Level::WARN), Some(error)),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| LogLines(std::io::stderr()))
        .with_ansi(false);
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .init();
    if let Some(error) = wrong {
        tracing::warn!(
            "{LOG_VARIABLE}={asked}: {error}; write it like warn, or info,plimsoll::daemon::start=debug"
        );
    }
}

/// Writes what it is given at one time as one line: the subscriber hands over whole lines, and the fields in them may
/// be foreign.
struct LogLines<W>(W);

impl<W: Write> Write for LogLines<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let line = text.strip_suffix(b"\n").unwrap_or(text);
        // In one piece: other threads write lines too.
        let line = format!("{}\n", shown::line_of(line));
        self.0.write_all(line.as_bytes())?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Prints an error once and gives the exit status: the causes are in the error's own message, or, of `anyhow`, in the
/// chain that `#` asks for.
pub fn failed(error: &impl Display, status: u8) -> ExitCode {
    eprint!("{}", shown::page(&format!("plimsoll: {error:#}\n")));
    ExitCode::from(status)
}

/// Another program of the project cannot be started.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot start {program}: {source}; install plimsoll, plimsoll-agent, plimsoll-trace and plimsoll-runtime in one directory", program = program.shown()
)]
pub struct NotStarted {
    /// Where it was looked for.
    pub program: PathBuf,
    /// Why.
    #[source]
    pub source: std::io::Error,
}

/// Becomes the program `name` in the directory of this one, with the arguments after the subcommand: the process ID,
/// the standard streams and the exit status are this process's.
///
/// # Errors
/// [`NotStarted`]. Does not return otherwise.
pub fn become_program(name: &str) -> Result<std::convert::Infallible, NotStarted> {
    let program = match std::env::current_exe() {
        Ok(current) => current.with_file_name(name),
        Err(source) => {
            return Err(NotStarted {
                program: name.into(),
                source,
            });
        }
    };
    let source = exec(&program);
    Err(NotStarted { program, source })
}

/// Only returns where it fails.
fn exec(program: &std::path::Path) -> std::io::Error {
    use std::os::unix::process::CommandExt as _;
    // The first two are this program's name and the subcommand; no option can be before that.
    std::process::Command::new(program)
        .args(std::env::args_os().skip(2))
        .exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_is_one_line_whatever_is_in_it() {
        let mut written = Vec::new();
        let line = b"WARN a pod: a\nWARN forged \x1b[8m\xff\n";
        LogLines(&mut written).write_all(line).unwrap();
        assert_eq!(written, b"WARN a pod: a\\nWARN forged \\x1b[8m\\xff\n");
    }
}
