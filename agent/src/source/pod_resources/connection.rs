//! One `plimsoll-runtime resources`, and its frames.

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_core::protocol::framing::LENGTH_BYTES;
use plimsoll_core::protocol::pod_resources::{FRAMING, FromKubelet, PROTOCOL, ToKubelet};
use plimsoll_core::protocol::runtime_link;
use rustix::net::SendFlags;

use super::ResourceSettings;
use crate::host::child_program::ChildProgram;
use crate::host::panics;

/// A frame comes every second, or after the kubelet's bounds: ten seconds each for two questions, and five to connect.
const FRAME_WITHIN: Duration = Duration::from_secs(40);

pub(super) type Start = Box<dyn FnMut() -> io::Result<Connection> + Send>;

/// The other end; killed with this.
#[derive(Debug)]
pub(super) struct Connection(pub(super) ChildProgram);

/// Ends the thread, also while it reads.
#[derive(Debug, Default)]
pub(super) struct Stopper {
    is_stopped: AtomicBool,
    stream: Mutex<Option<UnixStream>>,
}

impl Stopper {
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// From now on [`Self::stop`] ends this connection.
    pub(super) fn watch(&self, connection: &Connection) -> Result<(), String> {
        let stream = connection.0.stream.try_clone();
        let stream = stream.map_err(|error| error.to_string())?;
        let mut watched = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_stopped() {
            shut(&stream);
        }
        *watched = Some(stream);
        Ok(())
    }

    /// Sends a frame to the other end, if there is one and it has room.
    pub(super) fn send(&self, frame: &ToKubelet) {
        let json = serde_json::to_vec(frame).ok();
        let frame = json.and_then(|json| runtime_link::FRAMING.frame(&json).ok());
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(frame), Some(stream)) = (frame, &*stream) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = rustix::net::send(stream, &frame, flags);
            if sent.is_ok_and(|sent| sent < frame.len()) {
                shut(stream); // the rest of a frame is lost, and no other could be told from it
            }
        }
    }

    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.iter().for_each(shut);
    }
}

/// The other end may have closed it already.
fn shut(stream: &UnixStream) {
    stream.shutdown(Shutdown::Both).ok();
}

pub(super) fn started(settings: &ResourceSettings) -> io::Result<Connection> {
    let arguments = ["resources", "--pod-resources"].map(OsStr::new);
    let socket = [settings.socket.as_os_str()];
    ChildProgram::start(&settings.program, arguments.into_iter().chain(socket)).map(Connection)
}

impl Connection {
    pub(super) fn greet(&mut self) -> Result<(), String> {
        match self.read()? {
            FromKubelet::Hello { protocol } if protocol == PROTOCOL => Ok(()),
            FromKubelet::Hello { protocol } => Err(format!(
                "plimsoll-runtime speaks protocol {protocol}, and this agent {PROTOCOL}; install programs of one release"
            )),
            _ => Err(nonsense()),
        }
    }

    /// The next frame.
    pub(super) fn read(&mut self) -> Result<FromKubelet, String> {
        let until = Instant::now() + FRAME_WITHIN;
        let mut length = [0; LENGTH_BYTES];
        self.fill(&mut length, until)?;
        let length = FRAMING.announced(length);
        let length = length.map_err(|error| format!("plimsoll-runtime announced {error}"))?;
        let mut frame = vec![0; length];
        self.fill(&mut frame, until)?;
        let body = FRAMING.body(&frame).map_err(|error| error.to_string())?;
        panics::guard(|| serde_json::from_slice(body))
            .map_err(|panicked| panicked.to_string())?
            .map_err(|_| nonsense())
    }

    /// Reads so much, by then.
    fn fill(&mut self, mut buffer: &mut [u8], until: Instant) -> Result<(), String> {
        while !buffer.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("plimsoll-runtime is silent, and was ended".to_owned());
            }
            let read = self.0.stream.set_read_timeout(Some(left));
            match read.and_then(|()| self.0.stream.read(buffer)) {
                Ok(0) => {
                    return Err(
                        "plimsoll-runtime has ended; its last line in the log of the agent says why"
                            .to_owned(),
                    );
                }
                Ok(read) => buffer = &mut std::mem::take(&mut buffer)[read..],
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted
                    | io::ErrorKind::WouldBlock
                    | io::ErrorKind::TimedOut => {}
                    _ => return Err(format!("plimsoll-runtime: {error}")),
                },
            }
        }
        Ok(())
    }
}

pub(super) fn nonsense() -> String {
    "plimsoll-runtime sent what is no answer, and was ended; install programs of one release"
        .to_owned()
}
