//! What the supervisor of the agent is told: the protocol of systemd's `sd_notify(3)`, one datagram for each message.
//!
//! A supervisor that listens names its socket in `NOTIFY_SOCKET`. With `WATCHDOG_USEC` it expects a sign of life in
//! that time, and restarts the process if there is none.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The socket of the supervisor.
#[derive(Debug)]
pub struct Supervisor {
    socket: UnixDatagram,
    address: SocketAddr,
    /// How often it expects a sign of life; `None`: it expects none.
    pub watchdog: Option<Duration>,
}

/// What it can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The agent works.
    Ready,
    /// It still does.
    Alive,
    /// It has been asked to end.
    Stopping,
}

impl Supervisor {
    /// The supervisor that the environment names; `None` without one.
    ///
    /// # Errors
    /// When its socket cannot be used.
    pub fn from_environment() -> io::Result<Option<Self>> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
            return Ok(None);
        };
        let watchdog_us = std::env::var("WATCHDOG_USEC").ok();
        // Names another process if this one was started by the one that systemd started.
        let is_ours =
            std::env::var("WATCHDOG_PID").is_ok_and(|pid| pid.parse() == Ok(std::process::id()));
        let watchdog = watchdog_us
            .filter(|_| is_ours)
            .and_then(|us| us.parse().ok())
            .map(Duration::from_micros);
        Self::at(&name, watchdog).map(Some)
    }

    /// The supervisor at a path or, behind a `@`, at an abstract name.
    ///
    /// # Errors
    /// When the name is none of a socket, or no socket can be had.
    pub fn at(name: &OsString, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A supervisor that is busy is told the next time.
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            address,
            watchdog,
        })
    }

    /// Tells it. Does not wait.
    ///
    /// # Errors
    /// When it is gone, or its queue is full.
    pub fn tell(&self, message: Message) -> io::Result<()> {
        let text: &[u8] = match message {
            Message::Ready => b"READY=1",
            Message::Alive => b"WATCHDOG=1",
            Message::Stopping => b"STOPPING=1",
        };
        self.socket.send_to_addr(text, &self.address).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_a_datagram() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let received = UnixDatagram::bind(&path).unwrap();
        let supervisor = Supervisor::at(&path.clone().into(), None).unwrap();
        for (message, text) in [
            (Message::Ready, "READY=1"),
            (Message::Alive, "WATCHDOG=1"),
            (Message::Stopping, "STOPPING=1"),
        ] {
            supervisor.tell(message).unwrap();
            let mut buffer = [0; 64];
            let length = received.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], text.as_bytes());
        }
    }

    #[test]
    fn an_abstract_name_begins_with_an_at_sign() {
        let name = format!("plimsoll-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let received = UnixDatagram::bind_addr(&address).unwrap();
        let supervisor = Supervisor::at(&format!("@{name}").into(), None).unwrap();
        supervisor.tell(Message::Alive).unwrap();
        assert_eq!(received.recv(&mut [0; 64]).unwrap(), "WATCHDOG=1".len());
    }
}
