//! Another program of the project that this one has started, with a socket as its standard input.
//!
//! Its life is this value's: it is killed when this is dropped, and the end of the socket ends it where this process
//! was killed.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::program::NotStarted;

/// The other end.
#[derive(Debug)]
pub struct ChildProgram {
    /// What goes to and from its standard input.
    pub stream: UnixStream,
    /// `None`: it is no process of its own.
    pub process: Option<Child>,
}

impl ChildProgram {
    /// Starts `program`, without an environment. Its standard error is this one's.
    ///
    /// # Errors
    /// The system's; [`NotStarted`] where the program cannot be run.
    pub fn start<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> io::Result<Self> {
        let (stream, theirs) = UnixStream::pair()?;
        let process = Command::new(program)
            .args(arguments)
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn();
        let process = process.map_err(|source| {
            io::Error::other(NotStarted {
                program: program.to_owned(),
                source,
            })
        })?;
        Ok(Self {
            stream,
            process: Some(process),
        })
    }
}

impl Drop for ChildProgram {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // One that has ended already is only waited for.
            process.kill().ok();
            process.wait().ok();
        }
    }
}
