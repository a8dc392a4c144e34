//! `plimsoll-runtime`, as all that start it see it: its frames, its greeting, why nothing more comes of it, and when it
//! is started again.
//!
//! What each protocol says is with those who speak it; here is what they have in common. Each bounds the time: the
//! other end is killed when it is silent or sends what is no frame, since it may then be anywhere in one.
#![forbid(unsafe_code)]

use std::io::{self, Read as _};
use std::time::{Duration, Instant};

use plimsoll_core::protocol::backoff::Backoff;
use plimsoll_core::protocol::framing::{FrameError, Framing, LENGTH_BYTES};
use serde::de::DeserializeOwned;

use super::child_program::ChildProgram;
use super::panics;

/// After a failure it is not started again before a second, and twice that after each further one, up to a minute.
pub const RESTARTS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Why nothing more comes of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// It has ended.
    #[error("plimsoll-runtime has ended; its last line in the log of the agent says why")]
    Ended,
    /// It is silent.
    #[error("plimsoll-runtime has not answered in time, and was ended")]
    Late,
    /// It takes nothing.
    #[error("plimsoll-runtime does not read, and was ended")]
    Unread,
    /// Of another release.
    #[error(
        "plimsoll-runtime speaks protocol {theirs}, and this agent {ours}; install programs of one release"
    )]
    Protocol {
        /// What it speaks.
        theirs: u32,
        /// What this program speaks.
        ours: u32,
    },
    /// More than is taken.
    #[error("plimsoll-runtime announced {0}")]
    TooLong(FrameError),
    /// More in all frames of an answer than is taken.
    #[error("plimsoll-runtime announced {bytes} bytes in one answer, and {bytes_max} are the most")]
    LongAnswer {
        /// So far.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// No frame of the protocol, or not one that may come now.
    #[error(
        "plimsoll-runtime sent what is no frame, and was ended; install programs of one release"
    )]
    Nonsense,
    /// What reads a frame has panicked.
    #[error(transparent)]
    Panicked(#[from] panics::Panicked),
    /// The system's answer.
    #[error("plimsoll-runtime: {0}")]
    Io(String),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
        match error.kind() {
            WouldBlock | TimedOut => Self::Late,
            UnexpectedEof | BrokenPipe | ConnectionReset => Self::Ended,
            _ => Self::Io(error.to_string()),
        }
    }
}

impl From<Lost> for String {
    fn from(lost: Lost) -> Self {
        lost.to_string()
    }
}

/// Whether its greeting is that of the same release.
///
/// # Errors
/// [`Lost::Protocol`].
pub fn same_protocol(theirs: u32, ours: u32) -> Result<(), Lost> {
    match theirs == ours {
        true => Ok(()),
        false => Err(Lost::Protocol { theirs, ours }),
    }
}

/// What a frame says, given without its length.
///
/// # Errors
/// [`Lost::Nonsense`], also where it has too many values; [`Lost::Panicked`].
pub fn parsed<T: DeserializeOwned>(framing: &Framing, frame: &[u8]) -> Result<T, Lost> {
    let body = framing.body(frame).map_err(|_| Lost::Nonsense)?;
    panics::guard(|| serde_json::from_slice(body))?.map_err(|_| Lost::Nonsense)
}

/// How long it is until then.
///
/// # Errors
/// [`Lost::Late`]: that was before.
pub fn left(until: Instant) -> Result<Duration, Lost> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(Lost::Late),
        false => Ok(left),
    }
}

impl ChildProgram {
    /// The next frame without its length, whole by then.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn read_frame(&mut self, framing: &Framing, until: Instant) -> Result<Vec<u8>, Lost> {
        let mut length = [0; LENGTH_BYTES];
        self.fill(&mut length, until)?;
        let length = framing.announced(length).map_err(Lost::TooLong)?;
        let mut frame = vec![0; length];
        self.fill(&mut frame, until)?;
        Ok(frame)
    }

    /// Reads so much.
    fn fill(&mut self, mut buffer: &mut [u8], until: Instant) -> Result<(), Lost> {
        while !buffer.is_empty() {
            self.stream.set_read_timeout(Some(left(until)?))?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(Lost::Ended),
                Ok(read) => buffer = &mut std::mem::take(&mut buffer)[read..],
                // What is left of the time decides.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    const FRAMING: Framing = Framing {
        bytes_max: 16,
        values_max: 3,
    };

    /// What is read of it when the other end has written these bytes and is then closed, or not.
    fn read(bytes: &[u8], is_closed: bool) -> Result<u64, Lost> {
        let (stream, mut other) = UnixStream::pair().unwrap();
        other.write_all(bytes).unwrap();
        let _open = (!is_closed).then_some(other);
        let process = None;
        let mut program = ChildProgram { stream, process };
        // Past: only what is there already is no matter of time.
        let within = if is_closed { 60 } else { 0 };
        let until = Instant::now() + Duration::from_secs(within);
        parsed(&FRAMING, &program.read_frame(&FRAMING, until)?)
    }

    #[test]
    fn a_frame_is_read_or_it_is_said_why_not() {
        assert_eq!(read(b"\x02\0\0\0", true), Err(Lost::Ended));
        assert_eq!(read(b"\x02\x00\x00\x0042", true), Ok(42));
        assert_eq!(read(b"\x02\0\0\0{}", true), Err(Lost::Nonsense));
        assert_eq!(read(b"\x09\0\0\0[1,2,3,4]", true), Err(Lost::Nonsense));
        let too_long = FrameError::TooLong {
            bytes: 17,
            bytes_max: 16,
        };
        assert_eq!(read(b"\x11\0\0\0", true), Err(Lost::TooLong(too_long)));
        assert_eq!(read(b"", false), Err(Lost::Late));
        assert_eq!(same_protocol(3, 3), Ok(()));
        let other = same_protocol(9, 3).unwrap_err().to_string();
        assert!(
            other.contains("speaks protocol 9, and this agent 3"),
            "{other}"
        );
    }
}
