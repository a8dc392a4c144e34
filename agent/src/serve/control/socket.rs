//! The socket in the file system: made with the right owner and mode at once, a dead agent's replaced, a living agent's
//! left alone.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown, fchown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::host::shown::Show as _;
use crate::host::state_dir::{Changeable, changeable_above};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::{SOCKET_FILE, group_dir};

/// Owner and group may ask; no other user.
const MODE: u32 = 0o660;
/// Of the directory of a socket that a group may use: they may search it.
const GROUP_DIR_MODE: u32 = 0o750;

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
    /// A group cannot get at it.
    #[error("{path}: --control-group has no effect on a socket in the state directory, which is root's alone; name another place with --control-socket, or leave that out", path = path.shown())]
    InStateDir {
        /// The socket.
        path: PathBuf,
    },
    /// Its directory is not one that this agent made.
    #[error("{path}: must be a directory that only the agent's user can write; remove it, or name another place with --control-socket", path = path.shown())]
    NotOurDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// A directory above it can be changed by somebody else.
    #[error("{path}: {above} above it can be changed by others (user {uid}, mode {mode:04o}), who could replace the control socket: name another place with --control-socket", path = path.shown(), above = above.shown())]
    Above {
        /// The socket.
        path: PathBuf,
        /// The directory above it.
        above: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its mode.
        mode: u32,
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

/// Where the socket is to be: `option`, or in the state directory, or for a group in a directory of its own beside
/// that, which is made. The caller holds the state directory's lock.
///
/// # Errors
/// [`SocketError`].
pub fn prepare_place(
    state_dir: &Path,
    option: Option<&Path>,
    group: Option<&str>,
) -> Result<PathBuf, SocketError> {
    if let Some(path) = option {
        check_above(path)?;
        let is_inside = path
            .parent()
            .and_then(|parent| parent.canonicalize().ok())
            .is_some_and(|parent| state_dir.canonicalize().is_ok_and(|dir| dir == parent));
        return match group {
            Some(_) if is_inside => Err(SocketError::InStateDir {
                path: path.to_owned(),
            }),
            _ => Ok(path.to_owned()),
        };
    }
    let dir = group_dir(state_dir);
    match group {
        Some(group) => {
            make_group_dir(&dir, group_id(group)?)?;
            Ok(dir.join(SOCKET_FILE))
        }
        None => {
            remove_group_dir(&dir); // of an agent that was killed: clients would ask there
            Ok(state_dir.join(SOCKET_FILE))
        }
    }
}

/// Takes the directory for a group's socket away, if only a dead agent's socket is in it. The caller holds the state
/// directory's lock.
pub(crate) fn remove_group_dir(dir: &Path) -> bool {
    let is_ours = std::fs::symlink_metadata(dir).is_ok_and(|metadata| {
        metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw()
    });
    if !is_ours {
        return false;
    }
    std::fs::remove_file(dir.join(SOCKET_FILE)).ok();
    std::fs::remove_dir(dir).is_ok()
}

/// Who can change a directory above the socket can put another file in the place of the one that is made and gets an
/// owner there.
fn check_above(path: &Path) -> Result<(), SocketError> {
    match changeable_above(path) {
        Ok(Some(Changeable { above, uid, mode })) => Err(SocketError::Above {
            path: path.to_owned(),
            above,
            uid,
            mode,
        }),
        // What is not there is said when the socket is made.
        Ok(None) | Err(_) => Ok(()),
    }
}

fn make_group_dir(dir: &Path, group: u32) -> Result<(), SocketError> {
    let failed = |source| SocketError::Io {
        path: dir.to_owned(),
        what: "its directory",
        source,
    };
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let not_ours = || SocketError::NotOurDirectory {
        path: dir.to_owned(),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::empty()).map_err(|_| not_ours())?;
    let file = File::from(fd);
    let metadata = file.metadata().map_err(failed)?;
    if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
        return Err(not_ours());
    }
    fchown(&file, None, Some(group)).map_err(failed)?;
    file.set_permissions(Permissions::from_mode(GROUP_DIR_MODE))
        .map_err(failed)
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
        // A socket gets its mode from the umask, and is open to connections at once. So it is made where no client can
        // reach it, and moved to its place when owner and mode are right; moving it also replaces a dead agent's.
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
    // Not through a link that somebody has made there.
    if !std::fs::symlink_metadata(private).is_ok_and(|metadata| metadata.is_dir()) {
        return;
    }
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
    match try_connect(path) {
        // No agent listens any more.
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        // Connected, or its queue is full: somebody is there, though perhaps stopped.
        Ok(()) | Err(Errno::AGAIN) => Err(SocketError::Live {
            path: path.to_owned(),
        }),
        Err(errno) => Err(SocketError::Io {
            path: path.to_owned(),
            what: "the one that is there",
            source: errno.into(),
        }),
    }
}

/// Without waiting: the queue of a stopped agent may be full for ever.
fn try_connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
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
    use std::os::unix::net::UnixStream;

    /// As an agent that is stopped, and has been asked often since.
    #[test]
    fn a_full_queue_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
            let socket = socket.unwrap();
            if connect(&socket, &SocketAddrUnix::new(&path).unwrap()).is_err() {
                break;
            }
            waiting.push(socket);
        }
        let error = ControlSocket::bind(&path, None).unwrap_err();
        assert!(matches!(error, SocketError::Live { .. }), "{error}");
    }

    /// Who may rename what is there has root give another file a mode and a group.
    #[test]
    fn a_socket_is_not_made_where_others_can_rename_it() {
        let dir = tempfile::tempdir().unwrap();
        let (state, shared) = (dir.path().join("state"), dir.path().join("shared"));
        for made in [&state, &shared] {
            std::fs::create_dir(made).unwrap();
        }
        let path = shared.join("s.sock");
        for (mode, is_taken) in [
            (0o755, true),
            (0o775, false),
            (0o757, false),
            (0o1777, true),
        ] {
            std::fs::set_permissions(&shared, Permissions::from_mode(mode)).unwrap();
            let place = prepare_place(&state, Some(&path), None);
            assert_eq!(place.is_ok(), is_taken, "{mode:o}");
        }
        // What somebody has put in the place of the directory in which the socket is made is not gone through.
        let theirs = dir.path().join("theirs");
        std::fs::create_dir(&theirs).unwrap();
        std::fs::write(theirs.join("s"), "").unwrap();
        std::os::unix::fs::symlink(&theirs, shared.join(".s.sock.new")).unwrap();
        assert!(ControlSocket::bind(&path, None).is_err());
        assert!(theirs.join("s").exists());
    }

    #[test]
    fn a_group_gets_a_directory_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("plimsoll");
        std::fs::create_dir(&state).unwrap();
        let gid = rustix::process::getegid().as_raw().to_string();
        let place = |option, group| prepare_place(&state, option, group);
        assert_eq!(place(None, None).unwrap(), state.join(SOCKET_FILE));
        let path = place(None, Some(&gid)).unwrap();
        let made = dir.path().join("plimsoll-control");
        assert_eq!(path, made.join(SOCKET_FILE));
        assert_eq!(std::fs::metadata(&made).unwrap().mode() & 0o7777, 0o750);
        let args = super::super::AgentArgs {
            state_dir: state.clone(),
            control_socket: None,
        };
        assert_eq!(args.socket(), state.join(SOCKET_FILE));
        let bound = ControlSocket::bind(&path, Some(&gid)).unwrap();
        assert_eq!(args.socket(), path);
        std::mem::forget(bound); // as an agent that is killed
        assert_eq!(place(None, Some(&gid)).unwrap(), path);
        assert_eq!(place(None, None).unwrap(), state.join(SOCKET_FILE));
        assert_eq!(args.socket(), state.join(SOCKET_FILE));
        assert!(!made.exists());
        let inside = state.join("other.sock");
        let error = place(Some(&inside), Some(&gid)).unwrap_err();
        assert!(error.to_string().contains("--control-socket"), "{error}");
        assert_eq!(place(Some(&inside), None).unwrap(), inside);
        // Somebody else's directory, or a link to it.
        std::os::unix::fs::symlink(&state, &made).unwrap();
        let error = place(None, Some(&gid)).unwrap_err();
        assert!(matches!(error, SocketError::NotOurDirectory { .. }));
        std::fs::remove_file(&made).unwrap();
        std::fs::create_dir(&made).unwrap();
        std::fs::set_permissions(&made, Permissions::from_mode(0o777)).unwrap();
        assert!(place(None, Some(&gid)).is_err());
    }

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
        // A process that another test is starting has the listener until its program begins.
        let (_second, _listener) = loop {
            match ControlSocket::bind(&path, None) {
                Err(SocketError::Live { .. }) => std::thread::yield_now(),
                bound => break bound.unwrap(),
            }
        };
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
