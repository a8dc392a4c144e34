//! Reads what an eviction may depend on beside memory and storage: processes, pressure stalls and NUMA nodes.
//!
//! **Problem.** Not every kernel has all of these, and an agent that cannot count PIDs must still guard memory.
//! **Approach.** Only what a threshold asks for is observed ([`Wanted`]). [`NodeMeters::open`] opens what there is
//! and returns what there is not, each with its file and reason, to be said once. After that a reading is a `pread` per
//! file. Only [`NodeMeters::read_processes`] allocates (its reading is shared with the engine), so it is not for the
//! way from a record to a kill.

use std::sync::Arc;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::Sample;
use plimsoll_core::model::reading::{NumaMemory, PressureReading, ProcessReading};
use plimsoll_core::model::signal::{Resource, Signal};
use plimsoll_core::model::threshold::Threshold;
use plimsoll_core::policy::eviction::sampling::PROCESSES_INTERVAL_MIN_NS;

use crate::host::HostRoot;
use crate::host::file::FileError;
use crate::host::numa::NumaFiles;
use crate::host::pressure::{PressureFiles, StallError};
use crate::host::processes::ProcessFiles;
use crate::pods::registry::Pods;
use crate::source::stall_triggers::stall_of;

/// What is to be observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// The node's PIDs and each pod's processes.
    pub processes: bool,
    /// `/proc/pressure`.
    pub pressure: bool,
    /// NUMA nodes.
    pub numa: bool,
}

impl Wanted {
    /// Everything.
    pub const ALL: Self = Self {
        processes: true,
        pressure: true,
        numa: true,
    };

    /// What some of these thresholds needs.
    pub fn by(thresholds: &[Threshold]) -> Self {
        let any =
            |wants: fn(Signal) -> bool| thresholds.iter().any(|threshold| wants(threshold.signal));
        Self {
            processes: any(|signal| signal.row().resource == Resource::Processes),
            pressure: any(|signal| stall_of(signal).is_some()),
            numa: any(|signal| signal == Signal::NumaMemoryAvailable),
        }
    }
}

/// Something that cannot be observed on this machine, and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// A file about the node's PIDs.
    #[error(
        "{0}; pid.available is computed from what else there is, and has no value without a limit"
    )]
    Processes(#[source] FileError),
    /// A file of `/proc/pressure`.
    #[error("{0}; its pressure signals have no value")]
    Pressure(#[source] StallError),
    /// The NUMA nodes.
    #[error("{0}; numaMemory.available has no value")]
    Numa(#[source] FileError),
}

/// The files of the node beside memory's, opened once.
#[derive(Debug, Default)]
pub struct NodeMeters {
    processes: Option<ProcessFiles>,
    /// When they were last counted.
    processes_at_ns: Option<u64>,
    pressure: Option<PressureFiles>,
    numa: Option<NumaFiles>,
}

impl NodeMeters {
    /// Opens the wanted files. Also returns those that this machine lacks.
    pub fn open(host: &HostRoot, wanted: Wanted) -> (Self, Vec<Missing>) {
        let mut missing = Vec::new();
        let mut meters = Self::default();
        if wanted.processes {
            meters.processes =
                ProcessFiles::open(host, |error| missing.push(Missing::Processes(error)));
        }
        if wanted.pressure {
            meters.pressure =
                PressureFiles::open(host, |error| missing.push(Missing::Pressure(error)));
        }
        if wanted.numa {
            meters.numa = NumaFiles::open(host)
                .map_err(|error| missing.push(Missing::Numa(error)))
                .ok();
        }
        (meters, missing)
    }

    /// Reads all that is open into a sample that is not urgent. What was read into it before is gone.
    ///
    /// Processes are counted [no more often](PROCESSES_INTERVAL_MIN_NS) than the engine asks for. What cannot be read
    /// is passed to `failed` and missing.
    pub fn observe(
        &mut self,
        now_ns: u64,
        pods: &Pods,
        sample: &mut Sample,
        mut failed: impl FnMut(Option<&PodUid>, &FileError),
    ) {
        let is_due = self
            .processes_at_ns
            .is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= PROCESSES_INTERVAL_MIN_NS);
        sample.processes = if is_due {
            self.processes_at_ns = Some(now_ns);
            self.read_processes(now_ns, pods, &mut failed)
                .unwrap_or_else(|error| {
                    failed(None, &error);
                    None
                })
        } else {
            None
        };
        sample.pressure = self.read_pressure(now_ns, |error| match error {
            StallError::File(error) => failed(None, error),
            StallError::Disabled { path } => failed(
                None,
                &FileError::Vanished {
                    path: Arc::clone(path),
                },
            ),
        });
        if let Err(error) = self.read_numa(&mut sample.numa) {
            failed(None, &error);
        }
    }

    /// Counts the node's tasks and those of each pod, at `now_ns`. `None` when this machine shows no limit of PIDs.
    ///
    /// What cannot be read but is not needed for the node's figure is passed to `failed`, with the pod if it is one's.
    ///
    /// # Errors
    /// When the limits cannot be read any more.
    pub fn read_processes(
        &self,
        now_ns: u64,
        pods: &Pods,
        mut failed: impl FnMut(Option<&PodUid>, &FileError),
    ) -> Result<Option<Arc<ProcessReading>>, FileError> {
        let Some(files) = &self.processes else {
            return Ok(None);
        };
        // Pods first: the node's figure is never older than a victim's.
        let mut of_pods = Vec::with_capacity(pods.len());
        pods.count_tasks(&mut of_pods, |uid, error| failed(Some(uid), error));
        let node = files.read(|error| failed(None, error))?;
        Ok(Some(Arc::new(ProcessReading {
            at_ns: now_ns,
            max: node.max,
            running: node.running,
            pods: of_pods,
        })))
    }

    /// Reads the pressure stalls, at `now_ns`; allocates nothing. `None` when this machine has none.
    ///
    /// A file that cannot be read is passed to `failed` and missing from the reading.
    pub fn read_pressure(
        &self,
        now_ns: u64,
        failed: impl FnMut(&StallError),
    ) -> Option<PressureReading> {
        Some(self.pressure.as_ref()?.read(now_ns, failed))
    }

    /// Reads the NUMA nodes into `into`, by ascending number; none on a kernel without NUMA. Allocates nothing if
    /// `into` has room and no node came or went.
    ///
    /// # Errors
    /// When a node's file cannot be read; `into` is then empty, since the worst node may be the one that is missing.
    pub fn read_numa(&mut self, into: &mut Vec<NumaMemory>) -> Result<(), FileError> {
        into.clear();
        let Some(files) = &mut self.numa else {
            return Ok(());
        };
        files.read(into).inspect_err(|_| into.clear())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::CgroupPath;
    use crate::host::cgroup::tests::{fake_host, fake_v2};

    fn pod(uid: &str) -> Arc<plimsoll_core::kube::pod::Pod> {
        let pod = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": uid, "namespace": "default", "uid": uid},
            "spec": {"containers": [{"name": "c"}]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    /// Pods `b` with two containers, one of which made a cgroup, and `a` without processes; `c` has no cgroup.
    fn pods(host: &HostRoot, mount: &str) -> Pods {
        let besteffort = host.path(mount).join("kubepods/besteffort");
        for (cgroup, procs) in [
            ("podb", ""),
            ("podb/c", "11\n12\n0\n"),
            ("podb/d", "13\n"),
            ("podb/d/inner", "14\n15\n"),
            ("poda", ""),
        ] {
            let dir = besteffort.join(cgroup);
            std::fs::create_dir_all(&dir).unwrap();
            for (name, text) in [
                ("cgroup.procs", procs),
                ("cgroup.kill", ""),
                ("memory.current", "1\n"),
                ("memory.usage_in_bytes", "1\n"),
                (
                    "memory.stat",
                    "inactive_file 0\nactive_file 0\ntotal_inactive_file 0\ntotal_active_file 0\n",
                ),
            ] {
                std::fs::write(dir.join(name), text).unwrap();
            }
        }
        let mounts = host.cgroup_mounts().unwrap();
        let mut pods = Pods::new(host.clone(), mounts, CgroupPath::default());
        for uid in ["a", "b", "c"] {
            pods.apply(pod(uid)).unwrap();
            pods.refresh(&uid.into()).unwrap();
        }
        pods
    }

    fn write_limits(host: &HostRoot) {
        std::fs::create_dir_all(host.procfs("sys/kernel")).unwrap();
        std::fs::write(host.procfs("sys/kernel/pid_max"), "1000\n").unwrap();
        std::fs::write(host.procfs("loadavg"), "0.00 0.00 0.00 1/900 77\n").unwrap();
    }

    fn processes_of_pods(host: &HostRoot, mount: &str) {
        write_limits(host);
        let (meters, _) = NodeMeters::open(host, Wanted::ALL);
        let pods = pods(host, mount);
        let read = meters
            .read_processes(5, &pods, |_, error| panic!("{error}"))
            .unwrap()
            .unwrap();
        assert_eq!((read.at_ns, read.max, read.running), (5, 1000, 900));
        let of_pods: Vec<_> = read
            .pods
            .iter()
            .map(|pod| (pod.uid.to_string(), pod.processes))
            .collect();
        assert_eq!(of_pods, [("a".to_owned(), 0), ("b".to_owned(), 6)]);

        let procs = "kubepods/besteffort/podb/c/cgroup.procs";
        std::fs::remove_file(host.path(mount).join(procs)).unwrap();
        let read = meters.read_processes(6, &pods, |_, error| panic!("{error}"));
        let processes = read.unwrap().unwrap().pods[1].processes;
        assert_eq!(processes, 3, "a container that is gone has none");
    }

    #[test]
    fn processes_of_pods_on_v2() {
        let (_dir, host) = fake_v2();
        processes_of_pods(&host, "/sys/fs/cgroup");
    }

    #[test]
    fn processes_of_pods_on_v1() {
        let (_dir, host) = fake_host(&[("cgroup", "/sys/fs/cgroup/memory", "memory")]);
        processes_of_pods(&host, "/sys/fs/cgroup/memory");
    }

    #[test]
    fn only_what_a_threshold_asks_for_is_read_and_not_too_often() {
        use plimsoll_core::model::threshold::{Amount, Operator, Passes, Threshold};

        let threshold = |signal| Threshold {
            signal,
            operator: Operator::LessThan,
            value: Amount::Absolute(1),
            grace_ns: 0,
            min_reclaim: None,
            passes: Passes::default(),
        };
        assert_eq!(
            Wanted::by(&[threshold(Signal::MemoryAvailable)]),
            Wanted::default()
        );
        let all = [
            Signal::PidAvailable,
            Signal::IoFull10,
            Signal::NumaMemoryAvailable,
        ];
        assert_eq!(Wanted::by(&all.map(threshold)), Wanted::ALL);

        let (_dir, host) = fake_v2();
        write_limits(&host);
        let wanted = Wanted::by(&[threshold(Signal::PidAvailable)]);
        let (mut meters, missing) = NodeMeters::open(&host, wanted);
        assert_eq!(missing.len(), 1, "threads-max: {missing:?}");
        let pods = pods(&host, "/sys/fs/cgroup");
        let mut sample = Sample {
            numa: vec![NumaMemory::default()],
            pressure: Some(PressureReading::default()),
            ..Sample::default()
        };
        for (now_ns, counted) in [
            (1, true),
            (PROCESSES_INTERVAL_MIN_NS, false),
            (PROCESSES_INTERVAL_MIN_NS + 1, true),
        ] {
            meters.observe(now_ns, &pods, &mut sample, |_, error| panic!("{error}"));
            let at_ns = sample.processes.as_ref().map(|read| read.at_ns);
            assert_eq!(at_ns, counted.then_some(now_ns));
            assert!(sample.pressure.is_none() && sample.numa.is_empty());
        }
    }

    #[test]
    fn a_machine_without_any_of_it() {
        let (_dir, host) = fake_v2();
        let (mut meters, missing) = NodeMeters::open(&host, Wanted::ALL);
        let text: Vec<_> = missing.iter().map(ToString::to_string).collect();
        let files = [
            "pid_max",
            "threads-max",
            "loadavg",
            "memory",
            "io",
            "cpu",
            "has_memory",
        ];
        assert_eq!(text.len(), files.len(), "{text:#?}");
        for (line, file) in text.iter().zip(files) {
            assert!(line.contains(&format!("/{file}: ")), "{line}");
        }
        let pods = Pods::new(
            host.clone(),
            host.cgroup_mounts().unwrap(),
            CgroupPath::default(),
        );
        let read = meters.read_processes(1, &pods, |_, error| panic!("{error}"));
        assert_eq!(read.unwrap(), None);
        assert_eq!(meters.read_pressure(1, |error| panic!("{error}")), None);
        let mut numa = vec![NumaMemory::default()];
        meters.read_numa(&mut numa).unwrap();
        assert_eq!(numa, []);
    }

    #[test]
    fn this_machine() {
        let host = HostRoot::live();
        let (mut meters, missing) = NodeMeters::open(&host, Wanted::ALL);
        let pods = Pods::new(
            host.clone(),
            host.cgroup_mounts().unwrap(),
            CgroupPath::default(),
        );
        let processes = meters
            .read_processes(1, &pods, |_, error| panic!("{error}"))
            .unwrap();
        assert!(processes.is_some_and(|read| read.running < read.max));
        let has_pressure = !missing
            .iter()
            .any(|what| matches!(what, Missing::Pressure(_)));
        let pressure = meters.read_pressure(1, |error| panic!("{error}"));
        assert_eq!(has_pressure, pressure.is_some());
        let has_numa = !missing.iter().any(|what| matches!(what, Missing::Numa(_)));
        let mut numa = Vec::new();
        meters.read_numa(&mut numa).unwrap();
        assert_eq!(has_numa, !numa.is_empty());
    }
}
