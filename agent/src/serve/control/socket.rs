//! The socket in the file system: made with the right owner and mode at once, a dead agent's replaced, a living agent's left alone.

use std::fs::{DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::host::shown::Show as _;

/// Owner and group may ask; nobody else.
const MODE: u32 = 0o660;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// An agent answers there.
    #[error("{path}: another agent serves this control socket; stop it, or give this one another --control-socket", path = path.shown())]
    Live {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{path}: exists and is not a socket; remove it, or give another --control-socket", path = path.shown())]
    NotASocket {
        /// What is there.
        path: PathBuf,
    },
    /// The group does not exist.
    #[error(
        "--control-group: there is no group {group:?} in /etc/group; create it (groupadd {group}) or give a number"
    )]
    Group {
        /// As written.
        group: String,
    },
    /// The kernel refuses.
    #[error("{path}: the control socket cannot be created: {what}: {source}; give another --control-socket (at most about 100 characters)", path = path.shown())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Which step.
        what: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// A listening socket. Its file is removed when this is dropped, if it is still the same.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    path: PathBuf,
    inode: (u64, u64),
}

impl ControlSocket {
    /// Makes the socket at `path`, for root and `group`.
    ///
    /// # Errors
    /// [`SocketError`]; a file that is no socket, or that an agent serves, is left alone.
    pub(crate) fn bind(
        path: &Path,
        group: Option<&str>,
    ) -> Result<(Self, UnixListener), SocketError> {
        let failed = |what| {
            move |source| SocketError::Io {
                path: path.to_owned(),
                what,
                source,
            }
        };
        let group = group.map(group_id).transpose()?;
        look_for_another(path)?;
        // A socket gets its mode from the umask, and is open to connections at once. So it is made where nobody can reach it, and moved to
        // its place when owner and mode are right; moving it also replaces a dead agent's.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let private = path.with_file_name(format!(".{name}.new"));
        remove_private(&private);
        DirBuilder::new()
            .mode(0o700)
            .create(&private)
            .map_err(failed("its directory"))?;
        let made = private.join("s");
        let bind = || {
            let listener = UnixListener::bind(&made).map_err(failed("bind"))?;
            chown(&made, None, group).map_err(failed("chown"))?;
            std::fs::set_permissions(&made, Permissions::from_mode(MODE))
                .map_err(failed("chmod"))?;
            let metadata = std::fs::symlink_metadata(&made).map_err(failed("stat"))?;
            std::fs::rename(&made, path).map_err(failed("rename"))?;
            let inode = (metadata.dev(), metadata.ino());
            let path = path.to_owned();
            Ok((Self { path, inode }, listener))
        };
        let bound = bind();
        remove_private(&private);
        bound
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let is_ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|now| (now.dev(), now.ino()) == self.inode);
        if is_ours {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

/// Also what an agent left that was killed between making it and moving the socket.
fn remove_private(private: &Path) {
    std::fs::remove_file(private.join("s")).ok();
    std::fs::remove_dir(private).ok();
}

fn look_for_another(path: &Path) -> Result<(), SocketError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NotASocket {
                path: path.to_owned(),
            });
        }
        _ => {}
    }
    match UnixStream::connect(path) {
        // Nobody listens any more.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::ConnectionRefused | ErrorKind::NotFound
            ) =>
        {
            Ok(())
        }
        Err(source) if source.kind() != ErrorKind::WouldBlock => Err(SocketError::Io {
            path: path.to_owned(),
            what: "the one that is there",
            source,
        }),
        // Connected, or its queue is full: somebody is there.
        Ok(_) | Err(_) => Err(SocketError::Live {
            path: path.to_owned(),
        }),
    }
}

/// A group's number, by `/etc/group` where it is a name.
fn group_id(group: &str) -> Result<u32, SocketError> {
    let unknown = || SocketError::Group {
        group: group.to_owned(),
    };
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let text = std::fs::read_to_string("/etc/group").map_err(|_| unknown())?;
    text.lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.first() == Some(&group))
        .and_then(|fields| fields.get(2)?.parse().ok())
        .ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_agents_socket_is_replaced_and_a_living_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead agent leaves its file");

        let (socket, listener) = ControlSocket::bind(&path, None).unwrap();
        let mode = std::fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(mode, MODE);
        UnixStream::connect(&path).unwrap();
        assert!(matches!(
            ControlSocket::bind(&path, None).unwrap_err(),
            SocketError::Live { .. }
        ));
        drop(listener);
        drop(socket);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_successors_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let (first, listener) = ControlSocket::bind(&path, None).unwrap();
        drop(listener);
        let (_second, _listener) = ControlSocket::bind(&path, None).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn other_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        std::fs::write(&path, "precious").unwrap();
        let error = ControlSocket::bind(&path, None).unwrap_err();
        assert!(error.to_string().contains("is not a socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        let away = dir.path().join("missing/control.sock");
        assert!(matches!(
            ControlSocket::bind(&away, None).unwrap_err(),
            SocketError::Io { .. }
        ));
        let long = dir.path().join("x".repeat(200));
        assert!(ControlSocket::bind(&long, None).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn groups_by_name_and_number() {
        assert_eq!(group_id("root").unwrap(), 0);
        assert_eq!(group_id("1234").unwrap(), 1234);
        let error = group_id("no-such-group").unwrap_err().to_string();
        assert!(error.contains("groupadd no-such-group"), "{error}");
    }
}
