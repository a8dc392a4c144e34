//! Reads CPU time, bandwidth and waiting of the watched pods, and changes their bandwidth.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::bandwidth::{
    CgroupCpu, CpuKnob, CpuReading, PodCpu, SharedCpus, WaitSource,
};
use plimsoll_core::placement::cpu_set::CpuSet;

use super::bandwidth::Bandwidth;
use super::tasks::TaskTimes;
use super::{Setting, Watch};
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupMounts, Controller, Hierarchy, Version};
use crate::host::file::{ControlFile, FileError, errno_of, parse_u64};
use crate::host::ledger::{KnobError, Ledger};

/// `/proc/stat` begins with a line per CPU of at most some 120 bytes.
const STAT_BYTES_MAX: usize = 1 << 20;
/// The kernel shows times in `/proc` in hundredths of a second (`USER_HZ`).
const TICK_US: u64 = 10_000;
/// Containers of one pod that are looked at.
const CONTAINERS_MAX: usize = 256;

/// What somebody else has changed, or could not be read.
pub(super) enum Remark {
    /// A setting that we wrote has another value.
    Overwritten {
        uid: PodUid,
        container: Arc<str>,
        knob: CpuKnob,
        path: PathBuf,
    },
    /// A file cannot be read.
    Unreadable(String),
}

/// The files of all watched pods.
#[derive(Debug)]
pub(super) struct Reader {
    host: HostRoot,
    hierarchy: Hierarchy,
    source: WaitSource,
    stat: ControlFile,
    stat_text: Vec<u8>,
    pods: BTreeMap<PodUid, Pod>,
}

#[derive(Debug)]
struct Pod {
    dir: PathBuf,
    pressure: Option<ControlFile>,
    /// By container; the pod's own is "".
    cgroups: BTreeMap<Arc<str>, Cgroup>,
    last: Option<PodCpu>,
}

#[derive(Debug)]
struct Cgroup {
    files: Bandwidth,
    tasks: TaskTimes,
}

impl Reader {
    /// Opens what does not belong to a pod.
    pub(super) fn open(host: &HostRoot, mounts: &CgroupMounts) -> Result<Self, CgroupError> {
        let hierarchy = mounts.hierarchy_of(Controller::Cpu)?.clone();
        let pressure = ControlFile::open(hierarchy.mount.join("cpu.pressure"));
        // With psi=0 the file is there and cannot be read.
        let has_pressure = pressure.is_ok_and(|file| some_total(&file).is_ok());
        Ok(Self {
            host: host.clone(),
            source: match (hierarchy.version, has_pressure) {
                (Version::V2, true) => WaitSource::Pressure,
                _ => WaitSource::Tasks,
            },
            hierarchy,
            stat: ControlFile::open(host.procfs("stat"))?,
            stat_text: vec![0; 16 << 10],
            pods: BTreeMap::new(),
        })
    }

    /// How waiting is measured here.
    pub(super) fn source(&self) -> WaitSource {
        self.source
    }

    /// Reads everything. Pods of which no figure has moved are left out.
    pub(super) fn read(
        &mut self,
        watch: &Watch,
        now_ns: u64,
        said: &mut impl FnMut(Remark),
    ) -> Result<CpuReading, FileError> {
        let shared = self.shared_cpus(&watch.exclusive)?;
        let wanted = |uid: &PodUid| watch.pods.iter().any(|pod| pod.uid == *uid);
        self.pods.retain(|uid, _| wanted(uid));
        let mut pods = Vec::new();
        for pod in &watch.pods {
            let watched = self.pods.entry(pod.uid.clone()).or_insert_with(|| Pod {
                dir: self.hierarchy.dir(&pod.path),
                pressure: None,
                cgroups: BTreeMap::new(),
                last: None,
            });
            let look = Look {
                host: &self.host,
                version: self.hierarchy.version,
                source: self.source,
                uid: &pod.uid,
                may_come_first: pod.may_come_first,
            };
            match look.at(watched, said) {
                Ok(now) => {
                    if watched.last.as_ref() != Some(&now) {
                        watched.last = Some(now.clone());
                        pods.push(now);
                    }
                }
                // Its cgroup is not there yet, or not any more.
                Err(error) if error.is_vanished() => {
                    self.pods.remove(&pod.uid);
                }
                Err(error) => said(Remark::Unreadable(error.to_string())),
            }
        }
        Ok(CpuReading {
            read_ns: now_ns,
            shared,
            source: Some(self.source),
            pods,
        })
    }

    /// Changes a setting. A cgroup that is gone has none.
    pub(super) fn change(
        &mut self,
        setting: &Setting,
        ledger: &mut Ledger,
    ) -> Result<Vec<String>, KnobError> {
        let pod = self.pods.get_mut(&setting.uid);
        let Some(cgroup) = pod.and_then(|pod| pod.cgroups.get_mut(&setting.container)) else {
            return Ok(Vec::new());
        };
        let result = match setting.us {
            Some(us) => cgroup
                .files
                .set(ledger, setting.knob, us)
                .map(|()| Vec::new()),
            None => cgroup.files.restore(ledger, setting.knob),
        };
        match result {
            Err(error) if error.is_vanished() => Ok(Vec::new()),
            result => result,
        }
    }

    /// Whether any setting has our value.
    pub(super) fn is_changed(&self) -> bool {
        let mut cgroups = self.pods.values().flat_map(|pod| pod.cgroups.values());
        cgroups.any(|cgroup| cgroup.files.is_changed())
    }

    fn shared_cpus(&mut self, exclusive: &CpuSet) -> Result<SharedCpus, FileError> {
        let filled = loop {
            let filled = self.stat.read_at(&mut self.stat_text, 0)?;
            if filled < self.stat_text.len() || filled >= STAT_BYTES_MAX {
                break filled;
            }
            self.stat_text.resize(filled * 2, 0);
        };
        let text = &self.stat_text[..filled];
        parse_stat(text, exclusive)
            .ok_or_else(|| self.stat.malformed(1, "cpuN and at least eight times"))
    }
}

/// A line per CPU: `cpu0 user nice system idle iowait irq softirq steal guest guest_nice`; guests are in `user`
/// already.
fn parse_stat(text: &[u8], exclusive: &CpuSet) -> Option<SharedCpus> {
    let mut shared = SharedCpus::default();
    for line in text.split(|byte| *byte == b'\n') {
        let Some(line) = line.strip_prefix(b"cpu") else {
            break;
        };
        let mut words = line.split(|byte| *byte == b' ');
        // The first line is the sum.
        let Some(number) = words.next().filter(|number| !number.is_empty()) else {
            continue;
        };
        let cpu = u32::try_from(parse_u64(number)?).ok()?;
        let mut ticks = [0; 8];
        for tick in &mut ticks {
            *tick = parse_u64(words.next()?)?;
        }
        if exclusive.contains(cpu) {
            continue;
        }
        let (all, idle) = (ticks.iter().sum::<u64>(), ticks[3] + ticks[4]);
        shared.cpus += 1;
        shared.total_us += all * TICK_US;
        shared.busy_us += (all - idle) * TICK_US;
    }
    Some(shared)
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, microseconds.
fn some_total(file: &ControlFile) -> Result<u64, FileError> {
    let mut buffer = [0; 512];
    let text = file.read_into(&mut buffer)?;
    let line = text.split(|byte| *byte == b'\n').next();
    line.and_then(|line| line.strip_prefix(b"some "))
        .and_then(|line| line.split(|byte| *byte == b' ').next_back())
        .and_then(|word| parse_u64(word.strip_prefix(b"total=")?))
        .ok_or_else(|| file.malformed(1, "some … total=MICROSECONDS"))
}

/// How one pod is looked at.
struct Look<'a> {
    host: &'a HostRoot,
    version: Version,
    source: WaitSource,
    uid: &'a PodUid,
    may_come_first: bool,
}

impl Look<'_> {
    fn at(&self, pod: &mut Pod, said: &mut impl FnMut(Remark)) -> Result<PodCpu, FileError> {
        self.open(pod)?;
        let mut cgroups: Vec<CgroupCpu> = Vec::with_capacity(pod.cgroups.len());
        // By its tasks, where that is what there is.
        let (mut ran_us, mut waited_us, mut has_usage) = (0, 0, true);
        let wants_waits = self.source == WaitSource::Tasks && self.may_come_first;
        let mut gone = Vec::new();
        for (name, cgroup) in &mut pod.cgroups {
            let mut read = match cgroup.files.read(name) {
                Ok(read) => read,
                Err(error) if error.is_vanished() && !name.is_empty() => {
                    gone.push(Arc::clone(name));
                    continue;
                }
                Err(error) => return Err(error),
            };
            for (knob, path) in read.overwritten.drain(..) {
                said(Remark::Overwritten {
                    uid: self.uid.clone(),
                    container: Arc::clone(name),
                    knob,
                    path,
                });
            }
            if wants_waits || !read.has_usage {
                let list = pod.dir.join(&**name).join(self.task_list());
                let times = match cgroup.tasks.read(self.host, &list) {
                    Ok(times) => times,
                    // Since the line above. Forgetting the whole pod would take what was written in its other cgroups
                    // for their own.
                    Err(error) if error.is_vanished() && !name.is_empty() => {
                        gone.push(Arc::clone(name));
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                ran_us += times.ran_ns / 1000;
                waited_us += times.waited_ns / 1000;
                if !read.has_usage {
                    read.cpu.usage_us = times.ran_ns / 1000;
                    has_usage = false;
                }
            }
            cgroups.push(read.cpu);
        }
        for name in gone {
            pod.cgroups.remove(&name);
        }
        // The pod's own is the first: "". What its containers used is its usage, too.
        let usage_us = match cgroups.first_mut() {
            Some(pod_cgroup) if has_usage => pod_cgroup.usage_us,
            Some(pod_cgroup) => {
                pod_cgroup.usage_us = ran_us;
                ran_us
            }
            None => 0,
        };
        let waited_us = match (self.source, &pod.pressure) {
            (WaitSource::Tasks, _) => self.may_come_first.then_some(waited_us),
            (_, Some(pressure)) => Some(some_total(pressure)?),
            (_, None) => None,
        };
        Ok(PodCpu {
            uid: self.uid.clone(),
            usage_us,
            waited_us,
            cgroups,
        })
    }

    fn task_list(&self) -> &'static str {
        match self.version {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.threads",
        }
    }

    /// Opens what has appeared.
    fn open(&self, pod: &mut Pod) -> Result<(), FileError> {
        let open = |dir: &Path| {
            Ok::<_, FileError>(Cgroup {
                files: Bandwidth::open(self.version, dir)?,
                tasks: TaskTimes::default(),
            })
        };
        if !pod.cgroups.contains_key("") {
            pod.cgroups.insert(Arc::from(""), open(&pod.dir)?);
        }
        if self.source == WaitSource::Pressure && pod.pressure.is_none() {
            pod.pressure = Some(ControlFile::open(pod.dir.join("cpu.pressure"))?);
        }
        for name in children(&pod.dir)? {
            if pod.cgroups.len() > CONTAINERS_MAX || pod.cgroups.contains_key(&*name) {
                continue;
            }
            match open(&pod.dir.join(&*name)) {
                Ok(cgroup) => {
                    pod.cgroups.insert(name, cgroup);
                }
                // Gone again, or the cpu controller is not enabled for it.
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn children(dir: &Path) -> Result<Vec<Arc<str>>, FileError> {
    let unreadable = |error: &std::io::Error| FileError::new_read(&Arc::from(dir), errno_of(error));
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|error| unreadable(&error))? {
        let entry = entry.map_err(|error| unreadable(&error))?;
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        // A name that is no text is nobody's container.
        if let (true, Some(name)) = (is_dir, entry.file_name().to_str()) {
            names.push(Arc::from(name));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_and_whole_time_of_the_shared_cpus() {
        let text = b"cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 1 5 80 4 0 0 0 3 0\ncpu1 0 0 0 100 0 0 0 0 0 0\ncpu12 50 0 0 0 0 0 0 50 0 0\nintr 5\n";
        assert_eq!(
            parse_stat(text, &CpuSet::of(1)),
            Some(SharedCpus {
                cpus: 2,
                busy_us: (16 + 100) * 10_000,
                total_us: 200 * 10_000,
            })
        );
        assert_eq!(parse_stat(b"cpu0 1 2 x\n", &CpuSet::EMPTY), None);
    }
}
