//! What pods take of the CPUs and disks, and what they have on one NUMA node: for thresholds on stalls and NUMA nodes
//! only.
//!
//! **Problem.** These files are of no use to most configurations, dear to read, and counters: a load is the difference
//! of two readings. **Approach.** [`PodMeters::follow`] opens a pod's files when its cgroup appears;
//! [`PodMeters::loads`] reads them no more often than once a second and keeps the totals; [`PodMeters::on_node`] is
//! called when the engine has asked for it. All of it belongs to samples that are not urgent. Sources:
//! Documentation/admin-guide/cgroup-v2.rst (`cpu.stat`, `io.stat`), cgroup-v1/blkio-controller.rst and cpuacct.rst.
//! Traffic to a stacked device (LVM, dm-crypt) also counts on the device below it; that is the same for all pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::reading::{NumaPods, PodLoad, PodLoads, PodOnNode};
use plimsoll_core::model::signal::{Resource, Signal};
use plimsoll_core::model::threshold::Threshold;

use crate::host::cgroup::{
    CgroupError, CgroupMounts, CgroupPath, Controller, CpuTimeFile, Version,
};
use crate::host::file::{ControlFile, FileError, parse_u64};
use crate::host::numa::PodNumaFile;
use crate::pods::registry::Pods;

/// Loads are never taken over a shorter time.
pub const LOADS_INTERVAL_MIN_NS: u64 = 1_000_000_000;
/// A line of `io.stat` is at most some 150 bytes, with a line per device.
const IO_STAT_BYTES_MAX: usize = 32 * 1024;

/// The open files of all pods.
#[derive(Debug)]
pub struct PodMeters {
    mounts: CgroupMounts,
    wants_loads: bool,
    wants_numa: bool,
    pods: BTreeMap<PodUid, Meters>,
    loads_at_ns: Option<u64>,
}

/// One pod's.
#[derive(Debug)]
struct Meters {
    cgroup_id: u64,
    cpu: Option<CpuTimeFile>,
    io: Option<IoTotals>,
    numa: Option<PodNumaFile>,
    /// The newest totals.
    last: Option<Totals>,
}

#[derive(Debug, Clone, Copy)]
struct Totals {
    at_ns: u64,
    cpu_us: Option<u64>,
    io_bytes: Option<u64>,
}

impl Totals {
    /// The means since `before`.
    fn load(&self, before: &Self, uid: &PodUid) -> PodLoad {
        let elapsed_ns = u128::from(self.at_ns.saturating_sub(before.at_ns).max(1));
        let rate = |now: Option<u64>, then: Option<u64>, per_second: u128| {
            let grown = u128::from(now?.saturating_sub(then?));
            u64::try_from(grown * per_second / elapsed_ns).ok()
        };
        PodLoad {
            uid: uid.clone(),
            // Microseconds of CPU time per nanosecond are 10⁶ thousandths of a CPU.
            cpu_milli: rate(self.cpu_us, before.cpu_us, 1_000_000),
            io_bytes_per_s: rate(self.io_bytes, before.io_bytes, 1_000_000_000),
        }
    }
}

/// Bytes read and written: v2 `io.stat`, v1 `blkio.throttle.io_service_bytes_recursive`.
#[derive(Debug)]
struct IoTotals {
    file: ControlFile,
    version: Version,
}

impl IoTotals {
    fn open(mounts: &CgroupMounts, pod: &CgroupPath) -> Result<Self, CgroupError> {
        let hierarchy = mounts.hierarchy_of(Controller::Io)?;
        let name = match hierarchy.version {
            Version::V1 => "blkio.throttle.io_service_bytes_recursive",
            Version::V2 => "io.stat",
        };
        Ok(Self {
            file: ControlFile::open(hierarchy.dir(pod).join(name))?,
            version: hierarchy.version,
        })
    }

    fn read_bytes(&self) -> Result<u64, FileError> {
        let mut buffer = [0; IO_STAT_BYTES_MAX];
        let text = self.file.read_into(&mut buffer)?;
        parse_io(text, self.version).map_err(|line| {
            self.file
                .malformed(line, "DEVICE and its bytes read and written")
        })
    }
}

/// v2: `8:0 rbytes=1 wbytes=2 rios=…`; v1: `8:0 Read 1`, `8:0 Write 2`, and more. The error is the line, from 1.
fn parse_io(text: &[u8], version: Version) -> Result<u64, u32> {
    let mut sum = 0u64;
    for (line, number) in text.split(|byte| *byte == b'\n').zip(1_u32..) {
        let mut words = line.split(|byte| *byte == b' ').skip(1);
        match version {
            Version::V1 => {
                if let Some(b"Read" | b"Write") = words.next() {
                    let bytes = words.next().and_then(parse_u64).ok_or(number)?;
                    sum = sum.saturating_add(bytes);
                }
            }
            Version::V2 => {
                for word in words {
                    let bytes = word
                        .strip_prefix(b"rbytes=")
                        .or_else(|| word.strip_prefix(b"wbytes="));
                    if let Some(bytes) = bytes {
                        sum = sum.saturating_add(parse_u64(bytes).ok_or(number)?);
                    }
                }
            }
        }
    }
    Ok(sum)
}

impl PodMeters {
    /// Opens nothing yet.
    pub fn new(mounts: CgroupMounts, wants_loads: bool, wants_numa: bool) -> Self {
        Self {
            mounts,
            wants_loads,
            wants_numa,
            pods: BTreeMap::new(),
            loads_at_ns: None,
        }
    }

    /// What these thresholds need. The second part is what this machine lacks for it.
    pub fn by(mounts: &CgroupMounts, thresholds: &[Threshold]) -> (Self, Option<CgroupError>) {
        let any =
            |wants: fn(Signal) -> bool| thresholds.iter().any(|threshold| wants(threshold.signal));
        let wants_io = any(|signal| signal.row().resource == Resource::Io);
        let wants_cpu = any(|signal| signal.row().resource == Resource::Cpu);
        let lacks = mounts.hierarchy_of(Controller::Io).err();
        let wants_numa = any(|signal| signal == Signal::NumaMemoryAvailable);
        let meters = Self::new(mounts.clone(), wants_io || wants_cpu, wants_numa);
        (meters, lacks.filter(|_| wants_io))
    }

    /// Opens the files of pods that have a cgroup now and closes those of others. A file that cannot be opened is
    /// passed to `failed`, once per pod and file.
    pub fn follow(&mut self, pods: &Pods, mut failed: impl FnMut(&PodUid, &FileError)) {
        if !self.wants_loads && !self.wants_numa {
            return;
        }
        self.pods.retain(|uid, meters| {
            pods.cgroup(uid)
                .is_some_and(|(_, id)| id == meters.cgroup_id)
        });
        for uid in pods.uids_with_cgroup() {
            if self.pods.contains_key(uid) {
                continue;
            }
            let Some((path, cgroup_id)) = pods.cgroup(uid) else {
                continue;
            };
            let mut said = |error: CgroupError| match error {
                CgroupError::File(error) if !error.is_vanished() => failed(uid, &error),
                // The kernel lacks it, or the pod has just gone.
                _ => {}
            };
            let mounts = &self.mounts;
            let meters = Meters {
                cgroup_id,
                cpu: self
                    .wants_loads
                    .then(|| CpuTimeFile::open(mounts, path).map_err(&mut said).ok())
                    .flatten(),
                io: self
                    .wants_loads
                    .then(|| IoTotals::open(mounts, path).map_err(&mut said).ok())
                    .flatten(),
                numa: self
                    .wants_numa
                    .then(|| PodNumaFile::open(mounts, path).map_err(&mut said).ok())
                    .flatten(),
                last: None,
            };
            self.pods.insert(uid.clone(), meters);
        }
    }

    /// What pods take, as means since the reading before; `None` if that is less than [`LOADS_INTERVAL_MIN_NS`] ago, or
    /// loads are not wanted. A file that cannot be read is passed to `failed` and its figure missing.
    pub fn loads(
        &mut self,
        now_ns: u64,
        mut failed: impl FnMut(&PodUid, &FileError),
    ) -> Option<Arc<PodLoads>> {
        let is_due = self
            .loads_at_ns
            .is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= LOADS_INTERVAL_MIN_NS);
        if !self.wants_loads || !is_due {
            return None;
        }
        self.loads_at_ns = Some(now_ns);
        let mut loads = Vec::with_capacity(self.pods.len());
        for (uid, meters) in &mut self.pods {
            let mut said = |error: FileError| {
                if !error.is_vanished() {
                    failed(uid, &error);
                }
            };
            let totals = Totals {
                at_ns: now_ns,
                cpu_us: meters
                    .cpu
                    .as_ref()
                    .and_then(|file| file.read_ns().map_err(&mut said).ok())
                    .map(|ns| ns / 1000),
                io_bytes: meters
                    .io
                    .as_ref()
                    .and_then(|file| file.read_bytes().map_err(&mut said).ok()),
            };
            if let Some(before) = meters.last.replace(totals) {
                loads.push(totals.load(&before, uid));
            }
        }
        Some(Arc::new(PodLoads {
            at_ns: now_ns,
            pods: loads,
        }))
    }

    /// What pods have on a NUMA node. A pod that cannot be read is passed to `failed` and missing.
    pub fn on_node(
        &self,
        node: u32,
        now_ns: u64,
        mut failed: impl FnMut(&PodUid, &FileError),
    ) -> Arc<NumaPods> {
        let mut pods = Vec::with_capacity(self.pods.len());
        for (uid, meters) in &self.pods {
            match meters.numa.as_ref().map(|file| file.read(node)) {
                Some(Ok(memory)) => pods.push(PodOnNode {
                    uid: uid.clone(),
                    used_bytes: memory.working_set_bytes(),
                }),
                Some(Err(error)) if !error.is_vanished() => failed(uid, &error),
                Some(Err(_)) | None => {}
            }
        }
        Arc::new(NumaPods {
            at_ns: now_ns,
            node,
            pods,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostRoot;
    use crate::host::cgroup::tests::{fake_host, fake_v2};

    const S: u64 = 1_000_000_000;

    fn pods(host: &HostRoot, memory: &str) -> Pods {
        let dir = host.path(memory).join("kubepods/besteffort/podweb");
        std::fs::create_dir_all(&dir).unwrap();
        for (file, text) in [
            ("memory.current", "0\n"),
            ("memory.usage_in_bytes", "0\n"),
            (
                "memory.stat",
                "inactive_file 0\nactive_file 0\ntotal_inactive_file 0\ntotal_active_file 0\n",
            ),
            ("cgroup.procs", ""),
            ("cgroup.kill", ""),
            ("cgroup.events", "populated 1\n"),
            (
                "memory.numa_stat",
                "anon N0=100 N1=30\nfile N0=20 N1=8\ninactive_file N0=5 N1=8\n",
            ),
        ] {
            std::fs::write(dir.join(file), text).unwrap();
        }
        let pod = serde_json::json!({
            "metadata": {"name": "web", "uid": "web"}, "spec": {"containers": [{"name": "c"}]},
        });
        let pod: plimsoll_core::kube::pod::Pod = serde_json::from_value(pod).unwrap();
        let mounts = host.cgroup_mounts().unwrap();
        let mut pods = Pods::new(host.clone(), mounts, CgroupPath::default());
        pods.apply(Arc::new(pod)).unwrap();
        pods.refresh(&PodUid::from("web")).unwrap();
        pods
    }

    #[test]
    fn loads_are_differences_over_at_least_a_second() {
        let (_dir, host) = fake_v2();
        let pods = pods(&host, "/sys/fs/cgroup");
        let dir = host.path("/sys/fs/cgroup/kubepods/besteffort/podweb");
        let write = |cpu_us: u64, read: u64, written: u64| {
            let cpu = format!("usage_usec {cpu_us}\nuser_usec 1\n");
            std::fs::write(dir.join("cpu.stat"), cpu).unwrap();
            let io = format!("8:0 rbytes={read} wbytes=0 rios=1\n8:16 rbytes=1 wbytes={written}\n");
            std::fs::write(dir.join("io.stat"), io).unwrap();
        };
        write(5_000_000, 1000, 1000);
        let mut meters = PodMeters::new(host.cgroup_mounts().unwrap(), true, true);
        let mut loads = |now_ns| {
            meters.follow(&pods, |_, error| panic!("{error}"));
            meters.loads(now_ns, |_, error| panic!("{error}"))
        };
        assert_eq!(loads(S).unwrap().pods, []);
        assert_eq!(loads(2 * S - 1), None);
        write(8_000_000, 4000, 2000);
        assert_eq!(
            loads(3 * S).unwrap().pods,
            [PodLoad {
                uid: PodUid::from("web"),
                cpu_milli: Some(1500),
                io_bytes_per_s: Some(2000),
            }]
        );
        let on_node = meters.on_node(1, S, |_, error| panic!("{error}"));
        assert_eq!((on_node.node, on_node.pods[0].used_bytes), (1, 30));
    }

    #[test]
    fn cgroup_v1_has_other_files() {
        let (_dir, host) = fake_host(&[
            ("cgroup", "/sys/fs/cgroup/cpu", "rw,cpu,cpuacct"),
            ("cgroup", "/sys/fs/cgroup/memory", "rw,memory"),
            ("cgroup", "/sys/fs/cgroup/blkio", "rw,blkio"),
        ]);
        let pods = pods(&host, "/sys/fs/cgroup/memory");
        let write = |of: &str, name: &str, text: &str| {
            let dir = host.path("/sys/fs/cgroup").join(of);
            let dir = dir.join("kubepods/besteffort/podweb");
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join(name), text).unwrap();
        };
        let io = "blkio.throttle.io_service_bytes_recursive";
        write("cpu", "cpuacct.usage", "1000000000\n");
        write(
            "blkio",
            io,
            "8:0 Read 5\n8:0 Write 5\n8:0 Sync 3\n8:0 Total 10\nTotal 10\n",
        );
        let mut meters = PodMeters::new(host.cgroup_mounts().unwrap(), true, false);
        meters.follow(&pods, |_, error| panic!("{error}"));
        meters.loads(S, |_, error| panic!("{error}"));
        write("cpu", "cpuacct.usage", "1250000000\n");
        write("blkio", io, "8:0 Read 25\n8:0 Write 15\n8:0 Total 40\n");
        let loads = meters.loads(2 * S, |_, error| panic!("{error}")).unwrap();
        assert_eq!(
            (loads.pods[0].cpu_milli, loads.pods[0].io_bytes_per_s),
            (Some(250), Some(30))
        );
    }
}
