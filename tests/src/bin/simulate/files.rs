//! Open files: which are the model's, and where the others are.
//!
//! `/proc` and `/sys` of the agent are directories of plain files in a temporary one. A control file is there as an
//! empty file, so that it can be opened, listed and watched; what it says is made when it is read, by
//! [`Machine::content`](crate::machine::Machine::content).

use std::ffi::{CStr, CString};
use std::sync::Arc;

use libc::c_int;

use crate::kernel;
use crate::machine::CGROUPS;
use crate::world::{AGENT_PID, World};

/// What a descriptor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file or directory like any other.
    Plain,
    /// A control file of that cgroup.
    Control {
        cgroup: usize,
    },
    /// A file that the model makes when it is read.
    Made,
    Pidfd {
        pid: i32,
        started: u64,
    },
    PsiTrigger,
    Map(String),
    /// A BPF program or link.
    BpfObject,
}

#[derive(Debug, Clone)]
pub(crate) struct Fd {
    pub(crate) kind: Kind,
    /// As the agent names it.
    pub(crate) path: String,
    /// Of what the model makes: where the next `read` goes on.
    pub(crate) position: usize,
    /// A list of processes, as it was when its reading was begun: what follows goes on with that.
    pub(crate) list: Option<Arc<[u8]>>,
    pub(crate) incarnation: u32,
}

impl World {
    pub(crate) fn add(&mut self, fd: isize, kind: Kind, path: String) -> isize {
        if let Ok(fd) = i32::try_from(fd)
            && fd >= 0
        {
            let incarnation = self.incarnation;
            self.fds.insert(
                fd,
                Fd {
                    kind,
                    path,
                    position: 0,
                    list: None,
                    incarnation,
                },
            );
            self.checks.descriptors(self.fds.len(), self.now_ns);
        }
        fd
    }

    /// What the agent means by a path, from the root.
    pub(crate) fn path_of(&self, dirfd: c_int, path: &CStr) -> String {
        let path = path.to_string_lossy();
        if path.starts_with('/') {
            return path.into_owned();
        }
        match self.fds.get(&dirfd) {
            Some(dir) if path.is_empty() || path == "." => dir.path.clone(),
            Some(dir) => format!("{}/{path}", dir.path.trim_end_matches('/')),
            None => path.into_owned(),
        }
    }

    /// Where that is.
    pub(crate) fn place_of(&self, path: &str) -> CString {
        let self_dir = format!("/proc/{AGENT_PID}");
        let place = if let Some(rest) = path.strip_prefix(&self_dir)
            && (rest.is_empty() || rest.starts_with('/'))
        {
            self.root
                .join("proc/self")
                .join(rest.trim_start_matches('/'))
        } else if ["/proc", "/sys"]
            .iter()
            .any(|top| path == *top || path.starts_with(&format!("{top}/")))
        {
            self.root.join(path.trim_start_matches('/'))
        } else {
            path.into()
        };
        CString::new(place.into_os_string().into_encoded_bytes()).unwrap_or_default()
    }

    /// `open(2)`, without its cost.
    pub(crate) fn open(&mut self, path: String, flags: c_int, mode: u32) -> isize {
        if let Some(rest) = path.strip_prefix("/proc/pressure/")
            && !rest.contains('/')
            && flags & libc::O_ACCMODE == libc::O_RDWR
        {
            // SAFETY: no pointers.
            let fd = unsafe {
                kernel::raw(
                    libc::SYS_eventfd2,
                    [0, libc::EFD_CLOEXEC as usize, 0, 0, 0, 0],
                )
            };
            return self.add(fd, Kind::PsiTrigger, path);
        }
        let is_made = self.machine.makes(&path);
        if is_made == Some(false) {
            return -(libc::ENOENT as isize);
        }
        let (place, kind) = if is_made == Some(true) {
            (self.place_of("/proc/placeholder"), Kind::Made)
        } else {
            let kind = self
                .machine
                .control(&path)
                .map_or(Kind::Plain, |cgroup| Kind::Control { cgroup });
            (self.place_of(&path), kind)
        };
        let is_plain = kind == Kind::Plain;
        let keep = if is_plain {
            !0
        } else {
            !(libc::O_TRUNC | libc::O_CREAT)
        };
        let arguments = [
            libc::AT_FDCWD as usize,
            place.as_ptr() as usize,
            (flags & keep) as usize,
            mode as usize,
            0,
            0,
        ];
        // SAFETY: the path lives for the call.
        let fd = unsafe { kernel::raw(libc::SYS_openat, arguments) };
        self.add(fd, kind, path)
    }

    pub(crate) fn close_all(&mut self, incarnation: u32) {
        let gone: Vec<i32> = self
            .fds
            .iter()
            .filter(|(_, fd)| fd.incarnation == incarnation)
            .map(|(fd, _)| *fd)
            .collect();
        for fd in gone {
            self.fds.remove(&fd);
            // SAFETY: no thread that could use it goes on.
            unsafe { kernel::raw(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
        }
    }

    /// Below the mount of cgroups, from there.
    pub(crate) fn cgroup_path(path: &str) -> Option<&str> {
        let rest = path.strip_prefix(CGROUPS)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_matches('/'))
    }
}
