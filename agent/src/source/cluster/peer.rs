//! One client: frames in and out, within bounds.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use plimsoll_core::protocol::cluster_link::{FRAMING, ToAgent, ToCluster};
use plimsoll_core::protocol::framing::LENGTH_BYTES;

use crate::host::panics;

/// Read in one go.
const CHUNK_BYTES: usize = 64 << 10;
/// What waits for a client that does not read: all intents, several times.
const OUTPUT_BYTES_MAX: usize = 8 << 20;
/// Frames of one client that are refused before it is sent away.
const REFUSED_MAX: u32 = 1024;
/// For the first frame, and for a frame that has begun.
const FRAME_WITHIN: Duration = Duration::from_secs(30);

/// What follows from a frame that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// It is the first: say so.
    First,
    Silent,
    /// It is one too many.
    Over,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) stream: UnixStream,
    /// It has introduced itself.
    pub(super) has_hello: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of `output` that are on their way.
    written: usize,
    refused: u32,
    /// By then what has begun must be whole.
    until: Option<Instant>,
}

impl Peer {
    pub(super) fn new(stream: UnixStream, now: Instant) -> Self {
        Self {
            stream,
            has_hello: false,
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            refused: 0,
            until: Some(now + FRAME_WITHIN),
        }
    }

    /// How long it is waited for: not at all where a frame is whole already, of which no descriptor tells.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        if self.has_whole_frame() {
            return Some(Duration::ZERO);
        }
        Some(self.until?.saturating_duration_since(now))
    }

    /// The end of the first frame. One that is too long ends the connection when it is read.
    fn frame_end(&self) -> Option<usize> {
        FRAMING.first(&self.input).ok().flatten()
    }

    fn has_whole_frame(&self) -> bool {
        self.frame_end().is_some()
    }

    pub(super) fn has_output(&self) -> bool {
        self.written < self.output.len()
    }

    /// Takes what has come, one frame and a chunk at most.
    ///
    /// # Errors
    /// Why it is to be sent away, or has gone.
    pub(super) fn read(&mut self, now: Instant) -> Result<(), String> {
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            match FRAMING.first(&self.input) {
                Ok(None) => {}
                Ok(Some(_)) => return Ok(()),
                Err(error) => return Err(format!("it announced {error}")),
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err("it has closed the connection".to_owned()),
                Ok(read) => self.input.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        if self.until.is_some_and(|until| until <= now) {
            let seconds = FRAME_WITHIN.as_secs();
            return Err(format!("it left a frame unfinished for {seconds} s"));
        }
        if !self.input.is_empty() {
            self.until.get_or_insert(now + FRAME_WITHIN);
        }
        Ok(())
    }

    /// The next whole frame.
    pub(super) fn take_frame(&mut self, now: Instant) -> Option<Vec<u8>> {
        let rest = self.input.split_off(self.frame_end()?);
        let mut frame = std::mem::replace(&mut self.input, rest);
        frame.drain(..LENGTH_BYTES);
        self.until = (!self.input.is_empty()).then(|| now + FRAME_WITHIN);
        Some(frame)
    }

    pub(super) fn refuse(&mut self) -> Patience {
        self.refused += 1;
        match self.refused {
            1 => Patience::First,
            refused if refused < REFUSED_MAX => Patience::Silent,
            _ => Patience::Over,
        }
    }

    /// Sends a frame when the client takes it.
    ///
    /// # Errors
    /// Too much waits.
    pub(super) fn queue(&mut self, frame: &[u8]) -> Result<(), String> {
        if self.output.len() - self.written + frame.len() > OUTPUT_BYTES_MAX {
            return Err("it does not read what it is sent".to_owned());
        }
        self.output.drain(..self.written);
        self.written = 0;
        self.output.extend_from_slice(frame);
        Ok(())
    }

    /// Sends what the client takes now.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn write(&mut self) -> Result<(), String> {
        while self.has_output() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err("it takes nothing".to_owned()),
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }
}

/// A message as it goes over the socket.
///
/// # Errors
/// It is too long, which no message of ours is.
pub(super) fn frame(message: &ToCluster) -> Result<Vec<u8>, String> {
    let json = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    FRAMING.frame(&json).map_err(|error| error.to_string())
}

/// The message in a frame.
///
/// # Errors
/// It is none, or has more values than any that is right.
pub(super) fn parse(frame: &[u8]) -> Result<ToAgent, String> {
    let body = FRAMING.body(frame).map_err(|error| error.to_string())?;
    panics::guard(|| serde_json::from_slice(body))
        .map_err(|panicked| panicked.to_string())?
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_whole_is_not_waited_for() {
        let (stream, mut client) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let now = Instant::now();
        let mut peer = Peer::new(stream, now);
        assert_eq!(peer.patience(now), Some(FRAME_WITHIN));
        let frame = FRAMING.frame(b"{}").unwrap();
        client
            .write_all(&[&frame[..], &frame, &frame[..1]].concat())
            .unwrap();
        peer.read(now).unwrap();
        for _ in 0..2 {
            assert_eq!(peer.patience(now), Some(Duration::ZERO));
            assert!(peer.take_frame(now).is_some());
        }
        assert_eq!(peer.patience(now), Some(FRAME_WITHIN));
    }
}
