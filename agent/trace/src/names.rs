//! The names of functions in one file that a container controls, read by a process that may fail.
//!
//! **Problem.** Who runs a pod chooses what is in the files that it maps. A C++ symbol of 200 bytes can stand for
//! megabytes of text, a name can have 100 MB, and a file that is cut while it is mapped ends who reads it by SIGBUS,
//! which nothing catches. A file on a file system of the pod's own (FUSE) answers when its server likes. The session
//! has the samples of all pods, often in the agent's own container, where to run out of memory ends the agent too.
//!
//! **Approach.** A child, the same program, reads one file and ends ([`child`]). It gets the file as its standard
//! input, by a descriptor that is only a place (`O_PATH`): the session itself opens and maps nothing. Offsets go to it
//! and names come back over one socket. It bounds its own memory and CPU time; the session waits for it until a
//! deadline, reads no more than it asked for, and keeps a bounded amount of names. A child that dies, is late, or says
//! what makes no sense costs the names of its file ([`NoNames`]). Demangling is not blazesym's, but writes into a
//! buffer of [`NAME_BYTES_MAX`] ([`demangle`]), so that one symbol does not cost its file all others.
//!
//! **Not chosen.** A reader of our own, with `pread` and no mapping, needs no child against SIGBUS; it would still wait
//! for a file system that does not answer, in the process that has everything, and be a second ELF parser.
//!
//! **Format.** To the child: the number of offsets, then the offsets, each a `u64`. Back: a byte ([`READ`] or why not),
//! and then for each offset the length of its name as a `u16` and the name, or [`NO_NAME`]. All of one byte order: both
//! ends are one program.

pub mod child;
pub mod demangle;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tracing::debug;

pub use self::demangle::NAME_BYTES_MAX;

/// Names of all files together, bytes.
const NAMES_BYTES_MAX: usize = 64 << 20;
/// What a name takes besides its text, about.
const ENTRY_BYTES: usize = 48;
/// A child that was killed is waited for as long as this. One that the kernel holds, because a file system does not
/// answer, ends later.
const KILLED_WAIT: Duration = Duration::from_millis(500);
/// Children that the kernel may hold at one time; then no other is started.
const HELD_MAX: usize = 4;
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The child has read the file.
const READ: u8 = 1;
/// The child has looked at the file and left it: [`NoNames::TooLarge`].
const TOO_LARGE: u8 = 2;
/// The child cannot read the file: [`NoNames::Unreadable`].
const UNREADABLE: u8 = 3;
/// Instead of a length: there is no symbol at this offset.
const NO_NAME: u16 = u16::MAX;
/// The exit status of a Rust program whose main thread panicked.
const PANICKED: i32 = 101;

/// Why a file has no names, or not all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum NoNames {
    /// It is mapped, and could not be opened when it was first seen.
    #[error("not opened: no right to it, already gone, or too many files")]
    NotOpened,
    /// Its symbols alone may be more than the machine has to spare.
    #[error("larger than 512Mi")]
    TooLarge,
    /// It is no ELF file, or one that makes no sense.
    #[error("no readable ELF file")]
    Unreadable,
    /// It was not read within its time.
    #[error("reading took too long")]
    Late,
    /// It needs more memory than its child may have.
    #[error("reading took too much memory")]
    Memory,
    /// It was cut while it was read.
    #[error("it changed while it was read")]
    Changed,
    /// The child was ended by another signal, or ended by itself before its time.
    #[error("reading it ended early; please report the file")]
    Died,
    /// The child panicked.
    #[error("reading it panicked; please report the file")]
    Panicked,
    /// The child answered something else than what it was asked for.
    #[error("reading it gave nonsense; please report the file")]
    Nonsense,
    /// The child cannot be started.
    #[error("no process to read it could be started")]
    NotStarted,
    /// File systems that do not answer hold [`HELD_MAX`] children.
    #[error("processes that read others hang")]
    Held,
    /// Its names are more than its share of the memory for names. It has those that fit.
    #[error("more names than there is room for")]
    Full,
}

/// Names that are shared by all frames that have them, within a bound.
#[derive(Debug)]
pub struct Names {
    known: HashSet<Arc<str>>,
    /// Bytes that names may still take.
    left: usize,
}

impl Default for Names {
    fn default() -> Self {
        Self::within(NAMES_BYTES_MAX)
    }
}

impl Names {
    /// Names that take no more than `bytes`.
    #[must_use]
    pub fn within(bytes: usize) -> Self {
        Self {
            known: HashSet::new(),
            left: bytes,
        }
    }

    /// The share of one of `files` that are still to come.
    #[must_use]
    pub fn share(&self, files: usize) -> usize {
        self.left / files.max(1)
    }

    /// The shared name, if it is known or takes no more than what is left of `share`.
    pub(crate) fn keep(&mut self, name: &str, share: &mut usize) -> Option<Arc<str>> {
        if let Some(known) = self.known.get(name) {
            return Some(Arc::clone(known));
        }
        let bytes = name.len() + ENTRY_BYTES;
        let (rest, left) = (share.checked_sub(bytes)?, self.left.checked_sub(bytes)?);
        (*share, self.left) = (rest, left);
        let name: Arc<str> = name.into();
        self.known.insert(Arc::clone(&name));
        Some(name)
    }
}

/// What one file may take.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// Until its child is killed.
    pub time: Duration,
    /// Bytes of names that no other file has.
    pub bytes: usize,
}

/// The names of one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// One for each offset; `None` where there is no symbol.
    pub names: Vec<Option<Arc<str>>>,
    /// Whether some found no room.
    pub is_cut: bool,
}

/// Starts a child for each file, one at a time.
#[derive(Debug)]
pub struct Reader {
    program: PathBuf,
    arguments: Vec<OsString>,
    /// Killed, and held by the kernel. They end when it lets go of them, or when the server of their file system does.
    held: Vec<Child>,
}

impl Reader {
    /// Children are this program, which must begin with [`child::asked_for`].
    #[must_use]
    pub fn new() -> Self {
        // Not by its name, under which another version may be by now.
        Self::of("/proc/self/exe", [child::ARGUMENT])
    }

    /// Children are another program.
    #[must_use]
    pub fn of<A: Into<OsString>>(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            held: Vec::new(),
        }
    }

    /// The names at `offsets` of a file.
    ///
    /// # Errors
    /// [`NoNames`]; never later than its time and half a second.
    pub fn look_up(
        &mut self,
        file: &File,
        offsets: &[u64],
        share: Share,
        names: &mut Names,
    ) -> Result<Found, NoNames> {
        self.held
            .retain_mut(|held| !matches!(held.try_wait(), Ok(Some(_))));
        if self.held.len() >= HELD_MAX {
            return Err(NoNames::Held);
        }
        let end = Instant::now() + share.time;
        let (mut child, stream) = self.start(file).map_err(|error| {
            debug!(%error, "no process for names");
            NoNames::NotStarted
        })?;
        let found = ask(&stream, end, offsets, share.bytes, names);
        // Where the answer is whole, or the child gone, it ends by itself, and how it ended says why.
        let waits = match found {
            Err(Broken::Late | Broken::Nonsense) => Instant::now(),
            Ok(_) | Err(Broken::Left(_) | Broken::Ended) => end,
        };
        drop(stream);
        let status = match wait_until(&mut child, waits) {
            Some(status) => Some(status),
            None => {
                child.kill().ok();
                if wait_until(&mut child, Instant::now() + KILLED_WAIT).is_none() {
                    self.held.push(child);
                }
                None
            }
        };
        match found {
            Ok(found) if status.is_some_and(|status| status.success()) => Ok(found),
            Ok(_) | Err(Broken::Ended) => Err(status.map_or(NoNames::Late, why)),
            Err(Broken::Left(why)) => Err(why),
            Err(Broken::Late) => Err(NoNames::Late),
            Err(Broken::Nonsense) => Err(NoNames::Nonsense),
        }
    }

    fn start(&self, file: &File) -> io::Result<(Child, UnixStream)> {
        let (stream, theirs) = UnixStream::pair()?;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            // Ctrl-C is for the session, which then writes what it has.
            .process_group(0)
            .stdin(file.try_clone()?)
            .stdout(OwnedFd::from(theirs))
            // What it could say there comes from the file.
            .stderr(Stdio::null())
            .spawn()?;
        Ok((child, stream))
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for held in &mut self.held {
            // They have been killed; those that are gone leave nothing behind.
            held.try_wait().ok();
        }
    }
}

/// Why there is no answer, as far as the socket shows.
#[derive(Debug)]
enum Broken {
    Late,
    /// The child has closed its end before its time.
    Ended,
    Nonsense,
    /// The child says why.
    Left(NoNames),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::Late,
            // UnexpectedEof, BrokenPipe, ConnectionReset.
            _ => Self::Ended,
        }
    }
}

/// A socket on which everything together may take until `end`.
struct Until<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl Until<'_> {
    fn left(&self) -> io::Result<Duration> {
        self.end
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
            .ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(bytes)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn ask(
    stream: &UnixStream,
    end: Instant,
    offsets: &[u64],
    mut share: usize,
    names: &mut Names,
) -> Result<Found, Broken> {
    let count = offsets.len() as u64;
    let question: Vec<u8> = std::iter::once(&count)
        .chain(offsets)
        .flat_map(|number| number.to_ne_bytes())
        .collect();
    Until { stream, end }.write_all(&question)?;
    drop(question);

    let mut answer = BufReader::new(Until { stream, end });
    let mut status = [0];
    answer.read_exact(&mut status)?;
    match status[0] {
        READ => {}
        TOO_LARGE => return Err(Broken::Left(NoNames::TooLarge)),
        UNREADABLE => return Err(Broken::Left(NoNames::Unreadable)),
        _ => return Err(Broken::Nonsense),
    }
    let mut found = Found {
        names: Vec::with_capacity(offsets.len()),
        is_cut: false,
    };
    let mut name = [0; NAME_BYTES_MAX];
    for _ in offsets {
        let mut length = [0; 2];
        answer.read_exact(&mut length)?;
        let length = u16::from_ne_bytes(length);
        if length == NO_NAME {
            found.names.push(None);
            continue;
        }
        let Some(name) = name.get_mut(..usize::from(length)) else {
            return Err(Broken::Nonsense);
        };
        answer.read_exact(name)?;
        let Ok(name) = std::str::from_utf8(name) else {
            return Err(Broken::Nonsense);
        };
        let kept = names.keep(name, &mut share);
        found.is_cut |= kept.is_none();
        found.names.push(kept);
    }
    match answer.read(&mut [0])? {
        0 => Ok(found),
        _ => Err(Broken::Nonsense),
    }
}

fn wait_until(child: &mut Child, end: Instant) -> Option<ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Why a child ended without an answer.
fn why(status: ExitStatus) -> NoNames {
    match (
        status.signal().and_then(Signal::from_named_raw),
        status.code(),
    ) {
        (Some(Signal::BUS), _) => NoNames::Changed,
        // Its own limits, [`child::bound`]: Rust aborts where it gets no memory.
        (Some(Signal::XCPU), _) => NoNames::Late,
        (Some(Signal::ABORT), _) => NoNames::Memory,
        (None, Some(PANICKED)) => NoNames::Panicked,
        _ => NoNames::Died,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: Share = Share {
        time: Duration::from_secs(60),
        bytes: 1 << 20,
    };

    /// What comes of a child that is this script; its standard output is the socket.
    fn of(script: &str, share: Share) -> Result<Found, NoNames> {
        let file = File::open("/dev/null").unwrap();
        let mut reader = Reader::of("/bin/sh", ["-c", script]);
        reader.look_up(&file, &[1, 2], share, &mut Names::default())
    }

    #[test]
    fn a_child_that_dies_by_a_signal_costs_names_and_says_why() {
        for (signal, why) in [
            ("BUS", NoNames::Changed),
            ("ABRT", NoNames::Memory),
            ("XCPU", NoNames::Late),
            ("SEGV", NoNames::Died),
            ("KILL", NoNames::Died),
        ] {
            assert_eq!(of(&format!("kill -{signal} $$"), SHARE), Err(why));
        }
        assert_eq!(of("exit 101", SHARE), Err(NoNames::Panicked));
        assert_eq!(of("exit 0", SHARE), Err(NoNames::Died));
        // After a whole answer, too: it may have been made of what was no longer there.
        let answer = r"printf '\001\002\000ab\377\377'; kill -BUS $$";
        assert_eq!(of(answer, SHARE), Err(NoNames::Changed));
    }

    #[test]
    fn a_child_that_hangs_is_killed_at_its_time() {
        let share = Share {
            time: Duration::from_millis(200),
            ..SHARE
        };
        for script in [
            "exec sleep 600",
            // A byte now and then is no progress. Four would be an answer.
            r"printf '\001'; while :; do printf '\000'; sleep 0.1; done",
            // It has closed its end, and stays.
            "exec sleep 600 >&-",
        ] {
            let start = Instant::now();
            assert_eq!(of(script, share), Err(NoNames::Late), "{script}");
            assert!(start.elapsed() < Duration::from_secs(30), "{script}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_no_name() {
        for nonsense in [
            r"printf '\007'; exec sleep 600",
            // Longer than any name.
            r"printf '\001\377\177'; exec sleep 600",
            // No UTF-8.
            r"printf '\001\001\000\377'; exec sleep 600",
            // More than was asked for.
            r"printf '\001\377\377\377\377x'; exec sleep 600",
            "exec cat /dev/zero",
        ] {
            assert_eq!(of(nonsense, SHARE), Err(NoNames::Nonsense), "{nonsense}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_said() {
        let file = File::open("/dev/null").unwrap();
        let mut reader = Reader::of("/nonexistent", [""; 0]);
        let found = reader.look_up(&file, &[1], SHARE, &mut Names::default());
        assert_eq!(found, Err(NoNames::NotStarted));
    }

    #[test]
    fn frames_share_their_names_and_a_file_has_no_more_than_its_share() {
        let mut names = Names::within(1000);
        assert_eq!(names.share(4), 250);
        let mut share = 2 * ENTRY_BYTES + 4;
        let first = names.keep("ab", &mut share).unwrap();
        let again = names.keep("ab", &mut share).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert!(names.keep("cde", &mut share).is_none());
        assert!(names.keep("cd", &mut share).is_some());
        assert!(names.keep("ab", &mut share).is_some(), "known");
        assert_eq!(names.share(1), 1000 - 2 * ENTRY_BYTES - 4);
    }
}
