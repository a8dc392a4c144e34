//! Ctrl-C and SIGTERM: nothing that this process has started outlives it, and no folder of a guest stays behind.
//!
//! Problem: the default is that this process ends and what it has started goes on (a compiler, a test with a lock on
//! `target`), with gigabytes of a guest's files left in `/tmp`. Approach: a thread waits for the signals; it ends all
//! descendants, removes the folders in its list with what is mounted in them, and exits with 128 + signal, as a shell
//! has it. What is started is in process groups of its own, so that a Ctrl-C reaches this process alone, and whatever
//! loses its parent becomes a child of this process. Guests are protected against SIGKILL of this process, too
//! (`setpriv`). Locks are of open files: they go with the process. What the cache keeps is made in such a folder and
//! renamed when it is whole.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

use crate::progress::last_words;
use crate::schedulable_time::{descendants, stat};

/// Time for descendants to end by SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// Time for them to be gone after SIGKILL, which takes no effect before they have a CPU: longer only where the kernel
/// cannot end one.
const KILLED: Duration = Duration::from_secs(10);

/// How often a folder is removed that is not empty at the end: another thread was just making a file in it.
const REMOVALS_MAX: u32 = 10;

/// Folders to be removed. Who holds it is not interrupted; nobody else ever holds it again after a signal.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn folders() -> MutexGuard<'static, Vec<PathBuf>> {
    match FOLDERS.lock() {
        Ok(folders) => folders,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// A temporary folder that also goes when this process is interrupted.
pub(crate) struct Folder {
    folder: Option<TempDir>,
    path: PathBuf,
}

impl Folder {
    /// An empty one where this machine has its temporary files.
    pub(crate) fn new() -> Result<Self> {
        Self::inside(&std::env::temp_dir())
    }

    /// An empty one in `folder`, so that what is in it can be renamed to a place beside it.
    pub(crate) fn inside(folder: &Path) -> Result<Self> {
        install()?;
        // Held over both: a signal finds it in the list, or it is never made.
        let mut folders = folders();
        let folder = tempfile::Builder::new()
            .prefix(".plimsoll-")
            .tempdir_in(folder)
            .with_context(|| format!("cannot make a temporary folder in {}", folder.display()))?;
        let path = folder.path().to_owned();
        folders.push(path.clone());
        Ok(Self {
            folder: Some(folder),
            path,
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Held until it is removed: a signal does not end this process half-way.
        let mut folders = folders();
        if let Some(folder) = self.folder.take() {
            // What cannot be removed stays, as it does of any temporary folder.
            let _left = clear(&folder.keep());
        }
        folders.retain(|folder| *folder != self.path);
    }
}

/// From now on a signal ends everything. Once is enough, more does nothing.
pub(crate) fn install() -> Result<()> {
    static INSTALLED: OnceLock<Result<(), String>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // What loses its parent becomes a child of this process, and is still found.
        let this = rustix::process::getpid();
        rustix::process::set_child_subreaper(Some(this)).map_err(|error| error.to_string())?;
        let mut handled = vec![SIGINT, SIGTERM];
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if !ignores_hangup(&status) {
            handled.push(SIGHUP);
        }
        let mut signals = Signals::new(handled).map_err(|error| error.to_string())?;
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                end(signal);
            }
        });
        Ok(())
    });
    installed
        .as_ref()
        .map_err(|error| anyhow::anyhow!("cannot prepare for Ctrl-C: {error}"))
        .copied()
}

/// To be called before this process ends by itself: while a signal ends what was started, that decides how this process
/// ends.
pub(crate) fn finish() {
    drop(folders());
}

/// Starts a program. Every start is made here: after a signal, no thread starts another one, which nobody would end.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let _not_interrupted = folders();
    command.spawn()
}

/// [`spawn`], and its end.
pub(crate) fn status(command: &mut Command) -> io::Result<ExitStatus> {
    spawn(command)?.wait()
}

/// [`spawn`], its end and what it has said.
pub(crate) fn output(command: &mut Command) -> io::Result<Output> {
    let child = spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    child.wait_with_output()
}

/// Whether this process was started to go on without its terminal (`nohup`), from `/proc/self/status`.
fn ignores_hangup(status: &str) -> bool {
    let mask = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// Ends the descendants and this process.
fn end(signal: i32) -> ! {
    // Both held to the end: nobody makes another folder or ends first (`finish`), and nobody says how what is ended
    // here has failed.
    let folders = folders();
    let mut words = last_words();
    words.say("interrupted", "ending what was started");
    end_all(|| descendants(std::process::id()));
    for folder in folders.iter() {
        if let Err(error) = clear(folder) {
            words.say("left", format_args!("{}: {error}", folder.display()));
        }
    }
    std::process::exit(128 + signal);
}

/// Removes a folder, and first what is mounted in it: a removal would go on into that.
fn clear(folder: &Path) -> io::Result<()> {
    // As the kernel names what is mounted in it: no link leads there.
    let folder = match fs::canonicalize(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result?,
    };
    // Those that were mounted last, which may lie on others, are at the end.
    for mount in mounts_in(&folder, &fs::read("/proc/self/mountinfo")?)
        .iter()
        .rev()
    {
        match unmount(mount, UnmountFlags::DETACH) {
            // It is not mounted any more.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // Threads of this process still write into it, which find nothing under another name.
    let gone = folder.with_extension("gone");
    let gone = match fs::rename(&folder, &gone) {
        Ok(()) => gone,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => folder,
    };
    for _ in 1..REMOVALS_MAX {
        match fs::remove_dir_all(&gone) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            result => return result,
        }
    }
    fs::remove_dir_all(gone)
}

/// The places in `folder` where something is mounted, from `/proc/self/mountinfo`.
fn mounts_in(folder: &Path, mountinfo: &[u8]) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    lines
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(|field| PathBuf::from(OsString::from_vec(unescaped(field))))
        .filter(|place| place.starts_with(folder))
        .collect()
}

/// A field of mountinfo: blanks, tabs, line ends and backslashes are written as `\040` (proc_pid_mountinfo(5)).
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let code = after
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        text.push(code.unwrap_or(*first));
        rest = code.map_or(after, |_| &after[3..]);
    }
    text
}

/// Ends a child that leads a process group, and all that it has started. The caller waits for the child.
pub(crate) fn end_tree(child: u32) {
    let child_process = Process::running(child);
    end_all(|| {
        // Those that have lost their parent are still in the group.
        let orphans = descendants(std::process::id())
            .into_iter()
            .filter(|pid| *pid != child && group(*pid) == Some(child));
        orphans.chain(descendants(child)).collect()
    });
    send(&child_process, Signal::KILL);
}

/// Ends all processes that are found: SIGTERM, and after a while SIGKILL. Returns when they are gone.
fn end_all(find: impl Fn() -> Vec<u32>) {
    // What is found once is remembered: it may leave the place where it was found.
    let mut started: BTreeSet<Process> = BTreeSet::new();
    let end = Instant::now() + GRACE;
    loop {
        let new: BTreeSet<Process> = find()
            .into_iter()
            .filter_map(Process::running)
            .filter(|process| !started.contains(process))
            .collect();
        send(&new, Signal::TERM);
        started.extend(new);
        started.retain(Process::is_running);
        if started.is_empty() || Instant::now() >= end {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    send(&started, Signal::KILL);
    let end = Instant::now() + KILLED;
    while started.iter().any(Process::is_running) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn send<'a>(to: impl IntoIterator<Item = &'a Process>, signal: Signal) {
    for process in to {
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        // An error means that it has ended meanwhile.
        let _gone = pid.map(|pid| kill_process(pid, signal));
    }
}

/// A process, told from another that has the same pid later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    pid: u32,
    start_time: String,
}

impl Process {
    /// `None` when it has ended: it is there until somebody waits for it.
    fn running(pid: u32) -> Option<Self> {
        let fields = stat(pid)?;
        (fields.first()? != "Z").then_some(Self {
            pid,
            start_time: fields.get(19)?.clone(),
        })
    }

    fn is_running(&self) -> bool {
        Self::running(self.pid).as_ref() == Some(self)
    }
}

/// The process group of a process.
fn group(pid: u32) -> Option<u32> {
    stat(pid)?.get(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_seen() {
        assert!(ignores_hangup("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("Name:\tx\nSigIgn:\t0000000000001000\n"));
        assert!(!ignores_hangup(""));
    }

    #[test]
    fn mounts_are_found_by_folder() {
        let info = b"22 1 0:20 / / rw - ext4 /dev/vda rw\n\
            30 22 0:40 / /tmp/a\\040b/m rw - tmpfs none rw\n\
            31 30 0:41 / /tmp/a\\040b/m/n\\1344 rw - tmpfs none rw\n\
            32 22 0:42 / /tmp/a\\040bc rw - tmpfs none rw\n";
        let places = mounts_in(Path::new("/tmp/a b"), info);
        assert_eq!(
            places,
            [Path::new("/tmp/a b/m"), Path::new("/tmp/a b/m/n\\4")]
        );
        assert!(mounts_in(Path::new("/x"), info).is_empty());
    }

    /// Without the other name, one of twelve is not empty when it is removed.
    #[test]
    fn a_folder_goes_while_threads_write_into_it() {
        for _ in 0..60 {
            let folder = tempfile::tempdir().unwrap().keep();
            let (writes, wait) = std::sync::mpsc::channel();
            let writers = ["a", "b", "c", "d"].map(|name| {
                let (folder, writes) = (folder.clone(), writes.clone());
                std::thread::spawn(move || {
                    for file in 0.. {
                        if fs::write(folder.join(format!("{name}{file}")), "").is_err() {
                            break;
                        }
                        writes.send(()).ok();
                    }
                })
            });
            for _ in 0..20 {
                wait.recv().unwrap();
            }
            clear(&folder).unwrap();
            for writer in writers {
                writer.join().unwrap();
            }
            assert!(!folder.exists() && !folder.with_extension("gone").exists());
        }
    }
}
