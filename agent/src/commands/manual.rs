//! `plimsoll man` and `plimsoll completions`: the manual pages and what shells complete, made from the command line's
//! own definition.
//!
//! Both come from the program itself, so that a package has those of exactly its version, and a person without a
//! package can have them too. What `--help` hides is in neither.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::commands::exit_status::CommandError;
use crate::host::output::{StdoutError, print};
use crate::host::shown::Show as _;

/// What a page is written to before it gets its name.
const UNFINISHED: &str = ".plimsoll-unfinished";

/// Write manual pages, one for each command
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll man --dir /usr/local/share/man/man1       then: man plimsoll-run
  plimsoll man --dir ./debian/man                    for a package

Creates the directory if necessary. Existing pages are replaced atomically.")]
pub struct ManArgs {
    /// Directory for plimsoll.1, plimsoll-run.1 and so on
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

/// Print a shell completion script
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll completions bash > /etc/bash_completion.d/plimsoll
  plimsoll completions zsh > /usr/local/share/zsh/site-functions/_plimsoll
  plimsoll completions fish > ~/.config/fish/completions/plimsoll.fish
  source <(plimsoll completions bash)                for the current shell")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: CompletedShell,
}

/// Shells that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CompletedShell {
    /// GNU Bash
    Bash,
    /// Z shell
    Zsh,
    /// fish
    Fish,
}

/// Why it is not written.
#[derive(Debug, thiserror::Error)]
pub enum ManualError {
    /// A page, or its directory.
    #[error("{path}: cannot be written: {source}; name another directory", path = path.shown())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Standard output.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl CommandError for ManualError {}

/// `plimsoll man`, of `command`.
///
/// # Errors
/// [`ManualError::Write`].
pub fn man(args: &ManArgs, command: Command) -> Result<ExitCode, ManualError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| ManualError::Write { path, source }
    };
    fs::create_dir_all(&args.dir).map_err(failed(&args.dir))?;
    for (name, page) in pages(command).map_err(failed(&args.dir))? {
        let path = args.dir.join(name);
        write(&args.dir, &path, &page).map_err(failed(&path))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Under its name it is whole or not there.
fn write(dir: &Path, path: &Path, page: &[u8]) -> io::Result<()> {
    let unfinished = dir.join(UNFINISHED);
    let mut file = File::create(&unfinished)?;
    file.write_all(page)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&unfinished, path))
        .inspect_err(|_| {
            fs::remove_file(&unfinished).ok();
        })
}

/// Names and text of all pages.
fn pages(mut command: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        left.extend(
            command
                .get_subcommands()
                .filter(|it| !it.is_hide_set())
                .cloned(),
        );
        let man = clap_mangen::Man::new(command);
        let mut page = Vec::new();
        man.render(&mut page)?;
        pages.push((man.get_filename(), page));
    }
    Ok(pages)
}

/// `plimsoll completions`, of `command`.
///
/// # Errors
/// [`ManualError::Output`].
pub fn completions(args: &CompletionsArgs, command: Command) -> Result<ExitCode, ManualError> {
    let shell = match args.shell {
        CompletedShell::Bash => Shell::Bash,
        CompletedShell::Zsh => Shell::Zsh,
        CompletedShell::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut shown(&command), "plimsoll", &mut text);
    print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// `command` as a shell is to see it: `clap_complete` offers hidden commands and options too, and clap has no way to
/// take one out.
fn shown(command: &Command) -> Command {
    let about = command.get_about().cloned().unwrap_or_default();
    let version = command.get_version().unwrap_or_default().to_owned();
    let mut page = Command::new(command.get_name().to_owned())
        .about(about)
        .disable_version_flag(version.is_empty())
        .version(version);
    for argument in command.get_arguments().filter(|it| !it.is_hide_set()) {
        page = page.arg(argument.clone());
    }
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        page = page.subcommand(shown(below));
    }
    page
}
