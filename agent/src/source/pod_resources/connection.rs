//! One `plimsoll-runtime resources`, and its frames.

use std::ffi::OsStr;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_core::protocol::pod_resources::{FRAMING, FromKubelet, PROTOCOL, ToKubelet};
use plimsoll_core::protocol::runtime_link;
use rustix::net::SendFlags;

use super::ResourceSettings;
use crate::host::child_program::ChildProgram;
use crate::host::runtime_program::{Lost, parsed, same_protocol};

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
    pub(super) fn greet(&mut self) -> Result<(), Lost> {
        match self.read()? {
            FromKubelet::Hello { protocol } => same_protocol(protocol, PROTOCOL),
            _ => Err(Lost::Nonsense),
        }
    }

    /// The next frame.
    pub(super) fn read(&mut self) -> Result<FromKubelet, Lost> {
        let frame = self.0.read_frame(&FRAMING, Instant::now() + FRAME_WITHIN)?;
        parsed(&FRAMING, &frame)
    }
}
