//! This process may fail, and nothing else for it.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Memory of its own at most, bytes: answers of 16 MiB, of which one is being decoded while what others said is kept.
/// One that would need more costs this process, and its list. In a pod the agent is in the same container, whose
/// kubelet has the kernel kill all of it together: its limit holds every process of this program besides the agent
/// (`deploy/base/daemonset.yaml`).
const DATA_BYTES_MAX: u64 = 96 << 20;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What the agent itself may need, bytes.
    const AGENT_BYTES: u64 = 160 << 20;
    /// `serve`, `nri` and `resources`.
    const PROCESSES: u64 = 3;

    #[test]
    fn the_container_has_room_for_the_agent_and_all_of_them() {
        let manifest = include_str!("../../../deploy/base/daemonset.yaml");
        let (_, limit) = manifest.split_once("limits: {memory: ").unwrap();
        let (mib, _) = limit.split_once("Mi}").unwrap();
        let limit_bytes = mib.parse::<u64>().unwrap() << 20;
        assert!(limit_bytes >= AGENT_BYTES + PROCESSES * DATA_BYTES_MAX);
    }
}
