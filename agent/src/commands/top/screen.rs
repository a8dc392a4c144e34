//! The terminal: entered, read, drawn on, and given back on every way out.
//!
//! Given back by [`Drop`] when the loop ends or fails, by ratatui's panic hook, and for signals that end a program by
//! ending the loop.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::{TopError, overview, recorded};
use crate::record::journal_player::JournalPlayer;
use crate::show::top::draw;
use crate::show::top::model::{Command, Message, Model};

/// A key, an answer and a signal are seen within this time.
const TICK: Duration = Duration::from_millis(100);
/// Keys that are taken in before the screen is drawn again.
const KEYS_MAX: usize = 64;

/// The screen, until it is dropped.
struct Screen(DefaultTerminal);

impl Screen {
    fn enter() -> io::Result<Self> {
        // Also sets a panic hook that gives the terminal back before the message is printed.
        ratatui::try_init()
            .map(Self)
            .inspect_err(|_| ratatui::restore())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows a running agent until the user leaves.
///
/// # Errors
/// [`TopError::Terminal`].
pub(super) fn live(
    model: &mut Model,
    socket: PathBuf,
    every: Duration,
) -> Result<ExitCode, TopError> {
    let (sender, answers) = sync_channel(1);
    std::thread::Builder::new()
        .name("asks".into())
        .spawn(move || {
            loop {
                std::thread::sleep(every);
                let message = match overview(&socket) {
                    Ok(it) => Message::Answer(Box::new(it)),
                    Err(error) => Message::NoAnswer(error.to_string()),
                };
                // The screen is gone, and the process ends.
                if sender.send(message).is_err() {
                    return;
                }
            }
        })
        .map_err(TopError::Terminal)?;
    until_left(model, Some(&answers), |_| Ok(None))
}

/// Shows a journal until the user leaves.
///
/// # Errors
/// [`TopError::Terminal`], or the journal's.
pub(super) fn replayed(
    model: &mut Model,
    recording: &mut JournalPlayer,
) -> Result<ExitCode, TopError> {
    until_left(model, None, |command| {
        let Command::Seek(to) = command else {
            return Ok(None);
        };
        let before = recording.position().step;
        recording.seek(to)?;
        let position = recording.position();
        if position.step == before {
            return Ok(None);
        }
        Ok(Some(Message::At(position, Box::new(recorded(recording)?))))
    })
}

fn until_left(
    model: &mut Model,
    answers: Option<&Receiver<Message>>,
    mut carry_out: impl FnMut(Command) -> Result<Option<Message>, TopError>,
) -> Result<ExitCode, TopError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(TopError::Terminal)?;
    }
    let mut screen = Screen::enter().map_err(TopError::Terminal)?;
    let start = Instant::now();
    loop {
        screen
            .0
            .draw(|frame| draw(frame, model))
            .map_err(TopError::Terminal)?;
        let mut messages = keys().map_err(TopError::Terminal)?;
        if stop.load(Ordering::Relaxed) {
            return Ok(ExitCode::SUCCESS);
        }
        messages.insert(0, Message::Tick(start.elapsed()));
        messages.extend(answers.iter().flat_map(|it| it.try_iter()));
        for message in messages {
            let mut next = Some(message);
            while let Some(message) = next.take() {
                match model.update(message) {
                    Some(Command::Quit) => return Ok(ExitCode::SUCCESS),
                    Some(command) => next = carry_out(command)?,
                    None => {}
                }
            }
        }
    }
}

/// Waits for keys, not longer than a tick.
fn keys() -> io::Result<Vec<Message>> {
    let mut keys = Vec::new();
    let mut wait = TICK;
    while keys.len() < KEYS_MAX {
        match event::poll(wait) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
            Err(error) => return Err(error),
        }
        // A resize is seen when the screen is drawn.
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            keys.push(Message::Key(key));
        }
        wait = Duration::ZERO;
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, tcgetattr};

    use super::*;

    /// Set for the process that this test starts: its own program, with a terminal.
    const ON_A_TERMINAL: &str = "PLIMSOLL_TEST_ON_A_TERMINAL";

    /// As the released program dies ([`crate::host::panics`]): after a panic nothing is dropped, only the hooks run.
    #[test]
    fn a_panic_gives_the_terminal_back() {
        const NAME: &str = "commands::top::screen::tests::a_panic_gives_the_terminal_back";
        if std::env::var_os(ON_A_TERMINAL).is_some() {
            let screen = Screen::enter().unwrap();
            let panics = std::thread::spawn(|| panic!("as if it could not be drawn"));
            assert!(panics.join().is_err());
            std::mem::forget(screen);
            std::process::abort();
        }
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let terminal = File::options().read(true).write(true).open(name).unwrap();
        let modes = || tcgetattr(&terminal).unwrap().local_modes;
        let before = modes();
        assert!(before.contains(LocalModes::ICANON | LocalModes::ECHO));
        let stdio = || Stdio::from(terminal.try_clone().unwrap());
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
            .env(ON_A_TERMINAL, "1")
            .env("TERM", "xterm-256color")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .status()
            .unwrap();
        assert!(!status.success(), "{status}");
        assert_eq!(modes(), before, "lines are read as lines again");
        // So that reading ends.
        (&terminal).write_all(b"\x04").unwrap();
        let mut drawn = String::new();
        let mut ours = File::from(ours);
        let mut buffer = [0; 4096];
        while !drawn.contains('\x04') {
            let read = ours.read(&mut buffer).unwrap();
            drawn += &String::from_utf8_lossy(&buffer[..read]);
        }
        let entered = drawn.rfind("\x1b[?1049h").unwrap();
        let left = drawn.rfind("\x1b[?1049l").unwrap();
        let said = drawn.rfind("as if it could not be drawn").unwrap();
        assert!(entered < left && left < said, "the other screen: {drawn:?}");
    }
}
