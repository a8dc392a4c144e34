//! Processes in cgroups beyond those that are kept, where nothing but signals ends them (cgroup v1, or a kernel before
//! 5.14).
//!
//! **Problem.** A pod may hide processes in its three hundredth cgroup. To walk all of its cgroups takes long, and
//! memory. **Approach.** A thread that may take both does it ([`Sweep::end`]): it thaws and kills what it finds, and
//! walks again until a walk finds no process. What it has found out is shared with the loop ([`SweepState`]).

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use super::file_error;
use super::freezer::thaw_at;
use super::member::{Processes, SeenPids};
use super::spared::Spared;
use crate::host::file::{FileError, errno_of};
use crate::pods::walk::{Step, Walk};

/// Walks at most: for as long as a pod that was killed may take to go before it counts as stuck, at a walk each 10 ms.
const WALKS_MAX: u32 = 3000;

/// Whether the cgroups beyond the bound are known to be empty.
#[derive(Debug, Default)]
pub struct SweepState(AtomicBool);

impl SweepState {
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn forget(&self) {
        self.0.store(false, Ordering::Release);
    }

    fn found_empty(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// All cgroups of a pod, whatever their number, to be walked and emptied. A copy shares everything and allocates
/// nothing.
#[derive(Debug, Clone)]
pub struct Sweep {
    dir: Arc<Path>,
    freezer: Option<Arc<Path>>,
    /// What lives on; `None`: nothing.
    pub(super) spared: Option<Arc<Spared>>,
    pub(super) state: Arc<SweepState>,
}

/// How [`Sweep::end`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweepEnded {
    /// Whether the last walk found no process. Else they outlived every walk, or it was to stop.
    pub is_empty: bool,
    /// Walks.
    pub walks: u32,
    /// Signals that were sent.
    pub signals: u64,
}

impl Sweep {
    pub(in crate::pods) fn of(dir: &Path, freezer: Option<&Path>) -> Self {
        Self {
            dir: Arc::from(dir),
            freezer: freezer.map(Arc::from),
            spared: None,
            state: Arc::default(),
        }
    }

    /// The pod's cgroup.
    pub(super) fn directory(&self) -> &Arc<Path> {
        &self.dir
    }

    /// What is known of it.
    pub fn state(&self) -> &Arc<SweepState> {
        &self.state
    }

    /// Thaws and kills every process in the pod's cgroups, in walks, until a walk finds none or the bound is met.
    /// `pause` is called after each cgroup (`false`) and each walk (`true`), and says whether to go on. Allocates, and
    /// waits as long as `pause` does.
    ///
    /// # Errors
    /// When processes can neither be read nor signalled, in the last walk. A cgroup that is gone is empty.
    pub fn end(&self, pause: &mut dyn FnMut(bool) -> bool) -> Result<SweepEnded, FileError> {
        let mut ended = SweepEnded {
            is_empty: false,
            walks: 0,
            signals: 0,
        };
        let mut failed = None;
        while ended.walks < WALKS_MAX {
            ended.walks += 1;
            match self.walk(pause) {
                Ok(Some(0)) => {
                    self.state.found_empty();
                    ended.is_empty = true;
                    return Ok(ended);
                }
                Ok(Some(signals)) => {
                    ended.signals += signals;
                    failed = None;
                }
                Ok(None) => break,
                Err(error) => failed = Some(error),
            }
            if !pause(true) {
                break;
            }
        }
        failed.map_or(Ok(ended), Err)
    }

    /// One walk: how many processes were signalled. `None`: it was to stop.
    fn walk(&self, pause: &mut dyn FnMut(bool) -> bool) -> Result<Option<u64>, FileError> {
        let mut signals = 0;
        // What cannot be thawed keeps nothing else from being killed.
        let thawed = self.thaw(pause);
        let goes_on = !matches!(thawed, Ok(false))
            && each_below(&self.dir, pause, &mut |dir, top| {
                let spared = self.spared.as_ref().zip(top);
                if spared.is_some_and(|(spared, name)| spared.has(name)) {
                    return Ok(());
                }
                let processes = Processes::of(dir, Arc::clone(&self.dir))?;
                let round = processes.signal_all(Signal::KILL, &mut SeenPids::new())?;
                signals += u64::from(round.signalled);
                Ok(())
            })?;
        // What was frozen again meanwhile has its SIGKILL by now.
        let goes_on = goes_on && (signals == 0 || self.thaw(pause)?);
        thawed?;
        Ok(goes_on.then_some(signals))
    }

    fn thaw(&self, pause: &mut dyn FnMut(bool) -> bool) -> Result<bool, FileError> {
        let Some(freezer) = &self.freezer else {
            return Ok(true);
        };
        each_below(freezer, pause, &mut |dir, _| {
            thaw_at(&dir).map_err(|errno| file_error(freezer, errno))
        })
    }
}

/// What is done to a directory, with the name of the child of the root that it is or is below.
type Visit<'a> = dyn FnMut(OwnedFd, Option<&OsStr>) -> Result<(), FileError> + 'a;

/// Calls `f` for a directory and each below it, with the name of the child of `root` that it is or is below. Returns
/// whether it came to the end.
///
/// # Errors
/// The last error, after all were served. A cgroup that is gone is none.
pub(super) fn each_below(
    root: &Arc<Path>,
    pause: &mut dyn FnMut(bool) -> bool,
    f: &mut Visit<'_>,
) -> Result<bool, FileError> {
    let Some(mut walk) = Walk::below(root).map_err(|errno| file_error(root, errno))? else {
        return Ok(true);
    };
    let mut failed = None;
    while let Some(step) = walk.next() {
        let Step::Entered { dir, top } = step else {
            continue;
        };
        let top = top.map(|name| OsStr::from_bytes(name.to_bytes()));
        let result = dir
            .try_clone_to_owned()
            .map_err(|error| file_error(root, errno_of(&error)))
            .and_then(|dir| f(dir, top));
        match result {
            Err(error) if !error.is_vanished() => failed = Some(error),
            _ => {}
        }
        if !pause(false) {
            return Ok(false);
        }
    }
    match failed.or(walk.failure().map(|errno| file_error(root, errno))) {
        Some(error) => Err(error),
        None => Ok(true),
    }
}
