//! Whether a test's agent can have cgroups of its own on this machine.

use plimsoll::host::cgroup::{CgroupMounts, CgroupPath, Controller};
use plimsoll::host::{HostRoot, Ledger};

use super::notes;

/// Makes this cgroup and removes it. `None`, and a line, where cgroups cannot be made or do not account memory and CPU.
pub(crate) fn writable(path: &str) -> Option<CgroupMounts> {
    let host = HostRoot::live();
    let dir = tempfile::tempdir().unwrap();
    let path = CgroupPath::new(path).unwrap();
    let mut ledger = Ledger::open(&host, dir.path().join("ledger")).unwrap();
    let probe = host.cgroup_mounts().map_err(|error| error.to_string());
    let probe = probe.and_then(|mounts| {
        for controller in [Controller::Memory, Controller::Cpu] {
            let hierarchy = mounts
                .hierarchy_of(controller)
                .map_err(|error| error.to_string())?;
            ledger
                .create_cgroup(hierarchy, &path, &[controller])
                .map_err(|error| error.to_string())?;
        }
        Ok(mounts)
    });
    ledger.restore().unwrap();
    probe.map_err(notes::left_out).ok()
}
