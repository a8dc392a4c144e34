//! This process may fail, and nothing else for it.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Memory of its own at most, bytes: an answer of 16 MiB, decoded, several times.
const DATA_BYTES_MAX: u64 = 192 << 20;
/// It is started again; a pod's process is not. The agent's own value, which it would inherit, is -999.
const OOM_SCORE_ADJ: i32 = 900;

/// Bounds this process's memory, and lets the kernel take it before any pod.
///
/// # Errors
/// The system's answer to the first step that failed; the others are taken all the same.
pub fn take() -> io::Result<()> {
    let hard = getrlimit(Resource::Data).maximum;
    let most = hard.map_or(DATA_BYTES_MAX, |hard| hard.min(DATA_BYTES_MAX));
    let both = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    let bounded = setrlimit(Resource::Data, both).map_err(io::Error::from);
    let exposed = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ.to_string());
    bounded.and(exposed)
}
