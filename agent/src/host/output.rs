//! The forms in which commands print, `--output`, which chooses one, and how what is printed gets to standard output.

use std::io::{self, IsTerminal, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;

/// A form that every command can print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// For people: lines and aligned tables
    #[default]
    Text,
    /// For programs: one JSON document, or one object per line
    Json,
}

/// A form that commands print which can draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Drawing {
    /// For people: lines and aligned tables
    #[default]
    Text,
    /// For programs: one JSON document
    Json,
    /// A picture, for a browser or a document
    Svg,
}

/// A form in which commands print that answer with objects of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Document {
    /// For people: lines and aligned tables
    #[default]
    Text,
    /// For programs: one JSON document
    Json,
    /// The same document as YAML
    Yaml,
}

/// `--output`, the same for every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Args)]
pub struct OutputArgs<F = Output>
where
    F: ValueEnum + Default + Copy + Send + Sync + 'static,
{
    /// Output format
    #[arg(
        long = "output",
        short = 'o',
        value_name = "FORMAT",
        value_enum,
        default_value_t
    )]
    pub format: F,
}

impl From<Output> for OutputArgs {
    fn from(format: Output) -> Self {
        Self { format }
    }
}

/// Standard output takes no more; the system's answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub struct StdoutError(io::Error);

// The message has the cause, so it is no source.
impl From<io::Error> for StdoutError {
    fn from(error: io::Error) -> Self {
        Self(error)
    }
}

impl From<serde_json::Error> for StdoutError {
    fn from(error: serde_json::Error) -> Self {
        Self(error.into())
    }
}

/// A document in JSON, for people and programs.
///
/// # Errors
/// [`StdoutError`] where the value cannot be written as JSON.
pub fn json(value: &impl Serialize) -> Result<String, StdoutError> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Writes all that a command prints. A reader that has closed the pipe has read enough.
///
/// # Errors
/// [`StdoutError`].
pub fn print(text: impl AsRef<[u8]>) -> Result<(), StdoutError> {
    print_to(&mut io::stdout().lock(), text.as_ref())
}

fn print_to(out: &mut impl Write, text: &[u8]) -> Result<(), StdoutError> {
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// ANSI styles, or none.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Whether anything is painted.
    pub color: bool,
}

impl Style {
    /// What `out` is to have: colour only on a terminal, and not where `NO_COLOR` is set (<https://no-color.org>).
    pub fn of(out: &impl IsTerminal) -> Self {
        let color =
            out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { color }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.color {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Bold, for headings.
    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Faint, for what is beside the point.
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Red, for what does not work.
    pub fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    /// Green, for what is as it should be.
    pub fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Yellow, for what works with a loss.
    pub fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_read_enough_is_no_failure() {
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        print_to(&mut writer, b"text").unwrap();
        let mut full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let error = print_to(&mut full, b"text").unwrap_err().to_string();
        assert!(
            error.starts_with("cannot write to standard output: No space left"),
            "{error}"
        );
    }
}
