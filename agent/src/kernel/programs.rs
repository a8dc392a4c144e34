//! Loading the programs that `plimsoll run` uses from the object inside this program.

use std::time::Duration;

use super::object::{ObjectMissing, object};
use super::{Bpf, BpfError, BpfOptions, Counts, Family, HookKind, HookSet, PinOwner, Pinning};

/// Which programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Programs {
    /// Kinds of attachment that are left out.
    pub without: &'static [HookKind],
    /// Of records that come in floods (throttling, reclaim), at most one per cgroup is sent in this time.
    pub window: Duration,
    /// Also the programs of the last line (`plimsoll.lastLine`).
    pub last_line: bool,
}

/// Why they are not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// This program was built without them.
    #[error(transparent)]
    Object(#[from] ObjectMissing),
    /// The kernel refuses them all.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

/// Loads and attaches them for as long as the result lives.
///
/// # Errors
/// [`LoadError`], when none could be attached.
pub fn load(programs: Programs) -> Result<Bpf, LoadError> {
    Ok(Bpf::load(object()?, &options(programs))?)
}

/// Takes over what an agent before has pinned, or loads and pins them. `said` gets a line for each pin that was
/// removed.
///
/// # Errors
/// [`LoadError`], when none could be attached.
pub fn load_pinned(
    programs: Programs,
    owner: &PinOwner,
    said: impl FnMut(String),
) -> Result<(Bpf, Pinning), LoadError> {
    Ok(Bpf::load_pinned(
        object()?,
        &options(programs),
        owner,
        said,
    )?)
}

fn options(programs: Programs) -> BpfOptions {
    let mut hooks = HookSet::ALL;
    if !programs.last_line {
        hooks = hooks.without(Family::LastLine);
    }
    BpfOptions {
        hooks,
        without: programs.without,
        window: programs.window,
        counts: Counts::PodsOnly,
    }
}
