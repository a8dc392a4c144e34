//! One client: frames in and out, within bounds.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use plimsoll_core::kube::cluster_link::{FRAME_BYTES_MAX, ToAgent, ToCluster};

use crate::host::boundary;

/// Of a frame's length.
const LENGTH_BYTES: usize = 4;
/// Read in one go.
const CHUNK_BYTES: usize = 64 << 10;
/// What waits for a client that does not read: all intents, several times.
const OUTPUT_BYTES_MAX: usize = 8 << 20;
/// Values in one frame: many times those of the largest pod. A value takes up to a hundred bytes of memory and three of a frame.
const VALUES_MAX: usize = 32_768;
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

    /// How long it is waited for.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        Some(self.until?.saturating_duration_since(now))
    }

    /// The length of the frame that has begun.
    fn length(&self) -> Option<usize> {
        let bytes = self.input.first_chunk::<LENGTH_BYTES>()?;
        usize::try_from(u32::from_le_bytes(*bytes)).ok()
    }

    pub(super) fn has_whole_frame(&self) -> bool {
        self.length()
            .is_some_and(|length| self.input.len() >= LENGTH_BYTES + length)
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
        while !self.has_whole_frame() {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err("it has closed the connection".to_owned()),
                Ok(read) => self.input.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.to_string()),
            }
            if self.length().is_some_and(|length| length > FRAME_BYTES_MAX) {
                let length = self.length().unwrap_or_default();
                return Err(format!(
                    "it announced a frame of {length} bytes, more than {FRAME_BYTES_MAX}"
                ));
            }
        }
        if self.has_whole_frame() {
            return Ok(());
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
        let length = self.length().filter(|_| self.has_whole_frame())?;
        let rest = self.input.split_off(LENGTH_BYTES + length);
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
pub(super) fn frame(message: &ToCluster) -> Vec<u8> {
    // Plain data with text keys: it can always be written.
    let json = serde_json::to_vec(message).unwrap_or_default();
    let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), &json[..]].concat()
}

/// The message in a frame.
///
/// # Errors
/// It is none, or has more values than any that is right.
pub(super) fn parse(frame: &[u8]) -> Result<ToAgent, String> {
    let separators = frame
        .iter()
        .filter(|byte| matches!(byte, b',' | b'{' | b'['));
    if separators.count() > VALUES_MAX {
        return Err(format!("more than {VALUES_MAX} values"));
    }
    boundary::guard(|| serde_json::from_slice(frame))
        .map_err(|panicked| panicked.to_string())?
        .map_err(|error| error.to_string())
}
