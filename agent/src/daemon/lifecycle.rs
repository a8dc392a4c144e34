//! The ring of cgroups and processes that come and go: read without letting a flood take the loop.
//!
//! **Problem.** Whoever may make cgroups below his own (a delegated subtree), or moves a process to and fro, sends a
//! record each time, a hundred thousand a second. They must cost neither what is urgent nor a look at all pods each.
//! **Approach.** The critical ring is read first, always, and this one in small portions. In ordinary times a look
//! follows its record at once, at the pod that it concerns ([`Rescans`]). After [`READINGS`] in a [`WINDOW_NS`], or
//! while there is more to read than a portion, the next reading waits, and what the records ask for (a sample, a look)
//! is done once per window. Where the ring was full, the records that are missing are made up for by reading cgroupfs:
//! every pod is looked at again, and every process of it.
//!
//! [`Rescans`]: super::rescan::Rescans

mod followed;

use plimsoll_abi::Kind;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::Cause;

use self::followed::Followed;
use super::findings::Findings;
use super::rescan::Rescans;
use super::{Agent, now_ns};
use crate::act::oom_scores::OomScores;
use crate::kernel::decode::{Body, Record};
use crate::kernel::{Bpf, BpfError};
use crate::pods::registry::Pods;

/// Records taken in one go; then the loop looks at its other sources.
const PORTION: usize = 256;
/// Readings that are done at once in one window: more than the start of a pod needs.
const READINGS: u32 = 16;
/// In a flood, what its records ask for is done this often.
const WINDOW_NS: u64 = 100_000_000;
/// Between two portions of a flood. The ring holds several times what a flood can send meanwhile.
const PORTION_PAUSE_NS: u64 = 1_000_000;
/// Pods are read again after a loss at most this often.
const RESYNC_NS: u64 = 1_000_000_000;
/// The kinds on this ring.
const KINDS: [Kind; 5] = [
    Kind::CgroupMkdir,
    Kind::CgroupRmdir,
    Kind::CgroupAttach,
    Kind::CgroupPopulated,
    Kind::ProcessBirth,
];

/// When to read, and what was missed.
#[derive(Debug, Default)]
pub(super) struct LifecyclePace {
    /// The last portion was a full one: there may be more, and nothing tells.
    is_left: bool,
    not_before_ns: u64,
    window_ns: u64,
    readings: u32,
    /// What the records of this window ask for has been asked for.
    has_asked: bool,
    /// Records have asked for something since, and had to wait.
    is_pending: bool,
    /// Records may have been lost since they were last counted.
    is_suspect: bool,
    lost: u64,
    /// Whose processes the kernel tells of.
    followed: Followed,
    resynced_ns: u64,
}

impl LifecyclePace {
    /// Whether it is time to read.
    fn is_due(&self, now_ns: u64) -> bool {
        self.not_before_ns <= now_ns
    }

    /// So many records have been read. Returns whether they may ask for something now.
    fn note_read(&mut self, taken: usize, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.window_ns) >= WINDOW_NS {
            self.window_ns = now_ns;
            self.readings = 0;
            self.has_asked = false;
        }
        self.readings += 1;
        self.is_left = taken == PORTION;
        self.is_suspect |= self.is_left;
        self.not_before_ns = if self.is_left {
            now_ns + PORTION_PAUSE_NS
        } else if self.readings >= READINGS {
            self.window_ns + WINDOW_NS
        } else {
            0
        };
        let may_ask = !(self.is_left && self.has_asked);
        self.has_asked |= self.is_left;
        may_ask
    }

    /// Whether lost records are to be looked for now.
    fn is_resync_due(&self, now_ns: u64) -> bool {
        self.is_suspect && now_ns.saturating_sub(self.resynced_ns) >= RESYNC_NS
    }

    /// When the rest of the ring is to be read, of which no descriptor tells any more.
    pub(super) fn rest_at_ns(&self) -> Option<u64> {
        self.is_left.then_some(self.not_before_ns)
    }

    /// The ring is not read before this.
    pub(super) fn not_before_ns(&self) -> u64 {
        self.not_before_ns
    }
}

/// The pods that a record concerns.
#[derive(Debug, PartialEq, Eq)]
enum Concerned<'pods> {
    /// No pod's cgroup.
    None,
    One(&'pods PodUid),
    /// A pod's that is not known yet: the kubelet has just made it.
    New,
    /// It cannot be told whose.
    Any,
}

/// A cgroup that a record does not name by its path is known since the look that its making led to: else it is no
/// pod's.
fn concerned<'pods>(record: &Record<'_>, pods: &'pods Pods) -> Concerned<'pods> {
    let by_id = |hierarchy_id| {
        let is_known = pods.accounts_memory_in(hierarchy_id);
        let uid = is_known.then(|| pods.by_cgroup_id(record.cgroup_id));
        uid.flatten()
    };
    let uid = match record.body {
        Body::CgroupMkdir {
            path, is_cut: true, ..
        } => {
            // The last name may be the beginning of one.
            let whole = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            match pods.by_path(&path[..whole]) {
                None if is_new(path, pods) => return Concerned::New,
                None if pods.has_path_from(path) => return Concerned::Any,
                uid => uid,
            }
        }
        Body::CgroupMkdir { path, .. } => match pods.by_path(path) {
            None if is_new(path, pods) => return Concerned::New,
            uid => uid,
        },
        Body::CgroupRmdir { hierarchy_id, .. }
        | Body::CgroupAttach { hierarchy_id, .. }
        | Body::CgroupPopulated { hierarchy_id, .. } => by_id(hierarchy_id),
        Body::ProcessBirth { .. } => pods.by_cgroup_id(record.cgroup_id),
        // Not on this ring.
        _ => None,
    };
    uid.map_or(Concerned::None, Concerned::One)
}

fn is_new(path: &[u8], pods: &Pods) -> bool {
    pods.kubelet_tree().is_some_and(|tree| tree.has_below(path))
}

/// What a portion of records asks for.
#[derive(Debug, Default)]
pub(super) struct Asks {
    /// A cgroup has its first process, or has lost its last one.
    has_flipped: bool,
    /// Containers may have come.
    came: bool,
    /// Some record concerns a pod.
    concerns: bool,
}

/// Takes in one record.
pub(super) fn note_lifecycle_record(
    record: &Record<'_>,
    pods: &Pods,
    oom_scores: Option<&mut OomScores>,
    rescans: &mut Rescans,
    asks: &mut Asks,
) {
    match (&record.body, oom_scores) {
        (Body::CgroupAttach { tgid, hierarchy_id }, Some(scores))
            if pods.accounts_memory_in(*hierarchy_id) =>
        {
            scores.came(record.cgroup_id, *tgid);
        }
        (Body::ProcessBirth { tgid, .. }, Some(scores)) => {
            scores.came(record.cgroup_id, *tgid);
        }
        _ => {}
    }
    match concerned(record, pods) {
        Concerned::None => return,
        Concerned::One(uid) => rescans.note(uid),
        // Every look begins with the kubelet's tree.
        Concerned::New => {}
        Concerned::Any => rescans.note_all(),
    }
    asks.concerns = true;
    asks.has_flipped |= matches!(record.body, Body::CgroupPopulated { .. });
    asks.came |= !matches!(
        record.body,
        Body::CgroupRmdir { .. } | Body::ProcessBirth { .. }
    );
}

/// Records of these kinds that were lost so far.
fn lost(bpf: &Bpf) -> Result<u64, BpfError> {
    let mut sum = 0;
    for kind in KINDS {
        sum += bpf.missed(kind)?;
    }
    Ok(sum)
}

impl Agent {
    /// Takes a portion of the ring, if it is time.
    pub(super) fn drain_lifecycle(&mut self, found: &mut Findings) {
        let at_ns = now_ns();
        let Self {
            bpf: Some(bpf),
            pods,
            oom,
            lifecycle,
            rescans,
            ..
        } = self
        else {
            return;
        };
        if !lifecycle.is_due(at_ns) {
            return;
        }
        let mut asks = Asks::default();
        let taken = bpf.drain_lifecycle(PORTION, |record| {
            note_lifecycle_record(&record, pods, oom.scores.as_mut(), rescans, &mut asks);
        });
        let Asks {
            has_flipped,
            came,
            concerns,
        } = asks;
        // Seen at the next look, whenever that is.
        found.containers |= came;
        lifecycle.is_pending |= concerns;
        if taken == 0 && !lifecycle.is_left {
            return;
        }
        if lifecycle.note_read(taken, at_ns) && std::mem::take(&mut lifecycle.is_pending) {
            rescans.ask();
            if has_flipped {
                found.add_cause(Cause::Lifecycle);
            }
        }
    }

    /// Has the kernel tell of processes that are born in the cgroups of pods, now that those are known.
    pub(super) fn follow_processes(&mut self) {
        let Some(bpf) = self
            .bpf
            .as_mut()
            .filter(|bpf| bpf.is_attached("process_fork"))
        else {
            return;
        };
        let followed = &mut self.lifecycle.followed;
        followed.refresh(&self.pods);
        if let Err(error) = bpf.follow_processes(&followed.ids) {
            self.warn(error.to_string());
        }
    }

    /// Whether the kernel tells of every process that comes into a pod's cgroup, but for pods that have too many
    /// cgroups: those are to be looked at whenever any pod is.
    pub(super) fn follows_processes(&mut self) -> bool {
        for uid in &self.lifecycle.followed.left_out {
            self.rescans.note(uid);
        }
        self.bpf
            .as_ref()
            .is_some_and(|bpf| bpf.is_attached("process_fork"))
    }

    /// After a flood: if records were lost, all pods and their processes are read again. Not urgent.
    pub(super) fn make_up_for_lost_lifecycle(&mut self) {
        let at_ns = now_ns();
        let (Some(bpf), true) = (&self.bpf, self.lifecycle.is_resync_due(at_ns)) else {
            return;
        };
        self.lifecycle.resynced_ns = at_ns;
        // Not before all was read: what is lost until then is counted the next time.
        self.lifecycle.is_suspect = self.lifecycle.is_left;
        match lost(bpf) {
            Ok(lost) if lost > self.lifecycle.lost => {
                self.lifecycle.lost = lost;
                self.look_at_all();
                if let Some(scores) = &mut self.oom.scores {
                    scores.missed_some();
                }
            }
            Ok(_) => {}
            Err(error) => self.warn(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    use super::*;
    use crate::host::CgroupPath;
    use crate::host::cgroup::tests::fake_host;

    const MS: u64 = 1_000_000;
    /// The number of the hierarchy that accounts memory, and another's.
    const MEMORY: u32 = 4;
    const CPU: u32 = 7;

    /// Makes a cgroup of the memory hierarchy, and returns its id.
    fn make(dir: &Path) -> u64 {
        fs::create_dir_all(dir).unwrap();
        for file in ["cgroup.procs", "memory.usage_in_bytes", "memory.stat"] {
            fs::write(dir.join(file), "0\n").unwrap();
        }
        dir.metadata().unwrap().ino()
    }

    fn record(cgroup_id: u64, body: Body<'_>) -> Record<'_> {
        Record {
            ts_ns: 1,
            cgroup_id,
            cpu: 0,
            body,
        }
    }

    fn made(path: &str, is_cut: bool) -> Record<'_> {
        let body = Body::CgroupMkdir {
            level: 3,
            hierarchy_id: CPU,
            path: path.as_bytes(),
            is_cut,
        };
        record(1, body)
    }

    #[test]
    fn a_record_concerns_the_pod_whose_cgroup_it_names() {
        let (_dir, host) = fake_host(&[("cgroup", "/sys/fs/cgroup/memory", "memory")]);
        fs::write(host.procfs("self/cgroup"), "7:cpu:/\n4:memory:/\n0::/\n").unwrap();
        let mounts = host.cgroup_mounts().unwrap();
        let mut pods = Pods::new(host.clone(), mounts, CgroupPath::default());
        let (a, b) = (PodUid::new("a"), PodUid::new("b"));
        for uid in [&a, &b] {
            let json = format!(
                r#"{{"metadata":{{"name":"{uid}","uid":"{uid}"}},"spec":{{"containers":[{{"name":"c"}}]}}}}"#
            );
            pods.apply(std::sync::Arc::new(serde_json::from_str(&json).unwrap()))
                .unwrap();
        }
        let pod_a = host.path("/sys/fs/cgroup/memory/kubepods/besteffort/poda");
        let (pod, container) = (make(&pod_a), make(&pod_a.join("c")));
        let gone = |id, hierarchy_id| {
            let body = Body::CgroupRmdir {
                level: 3,
                hierarchy_id,
            };
            record(id, body)
        };

        assert_eq!(concerned(&gone(pod, MEMORY), &pods), Concerned::None);
        pods.refresh(&a).unwrap();
        for id in [pod, container] {
            assert_eq!(concerned(&gone(id, MEMORY), &pods), Concerned::One(&a));
            assert_eq!(concerned(&gone(id, CPU), &pods), Concerned::None);
            let came = record(
                id,
                Body::CgroupAttach {
                    tgid: 1,
                    hierarchy_id: MEMORY,
                },
            );
            assert_eq!(concerned(&came, &pods), Concerned::One(&a));
        }
        for (path, whose) in [
            ("/kubepods/besteffort/podb", Concerned::One(&b)),
            ("/kubepods/besteffort/podb/c/inner", Concerned::One(&b)),
            ("/kubepods/besteffort/poda/c", Concerned::One(&a)),
            ("/kubepods/besteffort/podab", Concerned::None),
            ("/kubepods/besteffort", Concerned::None),
            ("/system.slice/x.service", Concerned::None),
            ("/", Concerned::None),
        ] {
            assert_eq!(concerned(&made(path, false), &pods), whose, "{path}");
        }
        // Paths that are longer than a record: whoever makes them costs nobody else anything.
        for (path, whose) in [
            ("/kubepods/besteffort/podb/c/long", Concerned::One(&b)),
            ("/kubepods/besteffort/podb/c", Concerned::One(&b)),
            ("/kubepods/besteffort/podb", Concerned::Any),
            ("/kubepods/besteff", Concerned::Any),
            ("/kubepods/besteffort/podab", Concerned::None),
            ("/system.slice/x.serv", Concerned::None),
        ] {
            assert_eq!(concerned(&made(path, true), &pods), whose, "{path}");
        }

        fs::remove_dir_all(pod_a.join("c")).unwrap();
        let again = make(&pod_a.join("c"));
        pods.refresh(&a).unwrap();
        assert_eq!(concerned(&gone(again, MEMORY), &pods), Concerned::One(&a));
        assert_eq!(pods.cgroups().flat_map(|(_, one)| one).count(), 2);
        fs::remove_dir_all(&pod_a).unwrap();
        pods.refresh(&a).unwrap();
        assert_eq!(pods.cgroups().flat_map(|(_, one)| one).count(), 0);
        pods.remove(&a);
        let path = "/kubepods/besteffort/poda";
        assert_eq!(concerned(&made(path, false), &pods), Concerned::None);
    }

    #[test]
    fn a_flood_that_ends_with_a_full_portion_ends() {
        let mut pace = LifecyclePace::default();
        pace.note_read(PORTION, 1000 * MS);
        assert!(pace.is_left);
        assert!(pace.note_read(0, 1001 * MS) && !pace.is_left);
    }

    #[test]
    fn ordinary_records_are_looked_at_at_once() {
        let mut pace = LifecyclePace::default();
        for look in 1..u64::from(READINGS) {
            assert!(pace.is_due(look * MS) && pace.note_read(3, look * MS));
        }
        assert!(pace.is_due(16 * MS));
        assert!(!pace.is_resync_due(10_000 * MS));
    }

    #[test]
    fn a_trickle_of_wakeups_waits_for_the_window() {
        let mut pace = LifecyclePace::default();
        let begin = 1000 * MS;
        for look in 0..u64::from(READINGS) {
            assert!(pace.is_due(begin + look * MS));
            pace.note_read(1, begin + look * MS);
        }
        assert!(!pace.is_due(begin + 99 * MS));
        assert!(pace.is_due(begin + 100 * MS));
        pace.note_read(1, begin + 100 * MS);
        assert!(pace.is_due(begin + 101 * MS));
    }

    #[test]
    fn a_flood_asks_once_per_window_and_is_suspected_of_losses() {
        let mut pace = LifecyclePace::default();
        let begin = 1000 * MS;
        let asked = (0..200)
            .filter(|look| pace.note_read(PORTION, begin + look * MS))
            .count();
        assert_eq!(asked, 2);
        assert!(!pace.is_due(begin + 199 * MS) && pace.is_due(begin + 200 * MS));
        assert!(pace.is_resync_due(begin + 200 * MS));
        // The end of it asks in any case: those are the newest records.
        assert!(pace.note_read(PORTION - 1, begin + 200 * MS));
        assert!(pace.note_read(1, begin + 201 * MS));
    }
}
