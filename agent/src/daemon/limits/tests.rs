//! On fake trees of both cgroup versions.

use super::*;
use crate::host::HostRoot;
use crate::host::cgroup::tests::fake_host;
use crate::host::cgroup::{CgroupPath, Version, cgroup_id};
use plimsoll_core::kube::pod::Pod;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

const FILES: Origins = Origins {
    memory: Origin::Files,
    oom_kills: Origin::Files,
    throttling: Origin::Files,
    stalls: Origin::Files,
    reclaim: Origin::Files,
    refaults: Origin::Files,
    low: Origin::Files,
    memory_events: false,
    event_control: false,
};
pub(super) const KERNEL: Origins = Origins {
    memory: Origin::Kernel,
    oom_kills: Origin::Kernel,
    throttling: Origin::Kernel,
    stalls: Origin::Kernel,
    reclaim: Origin::Kernel,
    refaults: Origin::Kernel,
    low: Origin::Kernel,
    ..FILES
};
const SECOND: u64 = 1_000_000_000;

pub(super) struct Node {
    _dir: tempfile::TempDir,
    host: HostRoot,
    pods: Pods,
    pub(super) limits: Limits,
    now_ns: u64,
}

pub(super) fn v1(origins: Origins) -> Node {
    Node::new(
        &[
            ("cgroup", "/sys/fs/cgroup/cpu", "cpu,cpuacct"),
            ("cgroup", "/sys/fs/cgroup/memory", "memory"),
        ],
        origins,
    )
}

pub(super) fn v2(origins: Origins) -> Node {
    Node::new(&[("cgroup2", "/sys/fs/cgroup", "rw")], origins)
}

impl Node {
    fn new(mounts: &[(&str, &str, &str)], origins: Origins) -> Self {
        let (dir, host) = fake_host(mounts);
        if mounts[0].0 == "cgroup2" {
            let controllers = host.path("/sys/fs/cgroup/cgroup.controllers");
            fs::write(controllers, "cpu memory\n").unwrap();
        }
        let mounts = host.cgroup_mounts().unwrap();
        let limits = Limits::new(&mounts, origins, origins.events().unwrap());
        let pods = Pods::new(host.clone(), mounts, CgroupPath::default());
        Self {
            _dir: dir,
            host,
            pods,
            limits,
            now_ns: 0,
        }
    }

    pub(super) fn dir(&self, hierarchy: &str, cgroup: &str) -> PathBuf {
        self.host
            .path("/sys/fs/cgroup")
            .join(hierarchy)
            .join("kubepods/besteffort")
            .join(cgroup)
    }

    pub(super) fn memory_v1(&self, cgroup: &str, failcnt: u64, oom_kill: u64) {
        let dir = self.dir("memory", cgroup);
        fs::create_dir_all(&dir).unwrap();
        for (file, text) in [
            ("cgroup.procs", String::new()),
            ("memory.usage_in_bytes", "0\n".to_owned()),
            (
                "memory.stat",
                "total_inactive_file 0\ntotal_active_file 0\n".to_owned(),
            ),
            ("memory.failcnt", format!("{failcnt}\n")),
            (
                "memory.oom_control",
                format!("oom_kill_disable 0\nunder_oom 0\noom_kill {oom_kill}\n"),
            ),
            ("cgroup.event_control", String::new()),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
    }

    pub(super) fn memory_v2(&self, cgroup: &str, high: u64, max: u64, oom: u64, oom_kill: u64) {
        let dir = self.dir("", cgroup);
        fs::create_dir_all(&dir).unwrap();
        for (file, text) in [
            ("cgroup.procs", String::new()),
            ("memory.current", "0\n".to_owned()),
            ("memory.stat", "inactive_file 0\nactive_file 0\n".to_owned()),
            (
                "memory.events",
                format!("low 0\nhigh {high}\nmax {max}\noom {oom}\noom_kill {oom_kill}\n"),
            ),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
    }

    pub(super) fn cpu(&self, hierarchy: &str, cgroup: &str, text: &str) {
        let dir = self.dir(hierarchy, cgroup);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("cpu.stat"), text).unwrap();
    }

    pub(super) fn apply(&mut self, uid: &str) {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": uid, "namespace": "default", "uid": uid},
            "spec": {"containers": [{"name": "c"}]},
        }))
        .unwrap();
        self.pods.apply(Arc::new(pod)).unwrap();
    }

    fn begin(&mut self) {
        self.now_ns += 10 * SECOND;
        for uid in self.pods.uids() {
            self.pods.refresh(&uid).unwrap();
        }
        self.follow();
    }

    /// Returns whether it went over all cgroups.
    fn follow(&mut self) -> bool {
        let Some(mut following) = self.limits.begin_to_follow(&self.pods, self.now_ns) else {
            return false;
        };
        for uid in self.pods.uids() {
            self.limits
                .follow_pod(&mut following, &self.pods, &uid, |failure| {
                    panic!("{failure}")
                });
        }
        self.limits.end_following(following);
        true
    }

    fn read(&mut self, mut failed: impl FnMut(String)) {
        let mut reading = self.limits.begin_to_read(self.now_ns);
        while self.limits.read_some(&mut reading, &mut failed) {}
    }

    fn end(&mut self) -> Vec<(String, LimitCounts)> {
        self.read(|failure| panic!("{failure}"));
        self.collect()
    }

    fn collect(&mut self) -> Vec<(String, LimitCounts)> {
        let mut told = Vec::new();
        self.limits.collect(self.now_ns, &self.pods, |uid, counts| {
            told.push((uid.to_string(), counts));
        });
        told
    }

    pub(super) fn turn(&mut self) -> Vec<(String, LimitCounts)> {
        self.begin();
        self.end()
    }
}

fn one(uid: &str, counts: LimitCounts) -> Vec<(String, LimitCounts)> {
    vec![(uid.to_owned(), counts)]
}

#[test]
fn v1_memory_of_all_cgroups_is_summed_and_quotas_that_are_used_up_together_are_not() {
    let mut node = v1(FILES);
    node.apply("a");
    assert_eq!(node.turn(), [], "a pod without a cgroup");
    node.memory_v1("poda", 1, 0);
    node.memory_v1("poda/c", 10, 2);
    node.cpu(
        "cpu",
        "poda",
        "nr_periods 9\nnr_throttled 2\nthrottled_time 5000\n",
    );
    node.cpu(
        "cpu",
        "poda/c",
        "nr_periods 9\nnr_throttled 3\nthrottled_time 4000\n",
    );
    let wanted = LimitCounts {
        max: 11,
        oom_kills: 2,
        throttled: 3,
        throttled_ns: 5000,
        ..LimitCounts::default()
    };
    assert_eq!(node.turn(), one("a", wanted), "it appeared while we looked");
    assert_eq!(node.turn(), [], "told once");
    node.memory_v1("poda/c", 12, 2);
    let wanted = LimitCounts {
        max: 2,
        ..LimitCounts::default()
    };
    assert_eq!(node.turn(), one("a", wanted));
}

#[test]
fn of_cgroups_that_a_container_makes_only_oom_kills_are_read() {
    let mut node = v1(FILES);
    node.apply("a");
    node.turn();
    for cgroup in ["poda", "poda/c", "poda/c/nested"] {
        node.memory_v1(cgroup, 1, 1);
        node.cpu("cpu", cgroup, "nr_throttled 1\nthrottled_time 1000\n");
    }
    let nested = node.dir("memory", "poda/c/nested");
    fs::remove_file(nested.join("memory.failcnt")).unwrap();
    fs::remove_file(node.dir("cpu", "poda/c/nested").join("cpu.stat")).unwrap();
    let wanted = LimitCounts {
        max: 2,
        oom_kills: 3,
        throttled: 1,
        throttled_ns: 1000,
        ..LimitCounts::default()
    };
    assert_eq!(node.turn(), one("a", wanted));
    let pods = &node.pods;
    let again = node.limits.begin_to_follow(pods, node.now_ns);
    assert!(again.is_none(), "no file is looked for again");
}

#[test]
fn files_are_read_in_portions_each_once_and_what_is_unread_is_no_news_meanwhile() {
    let mut node = v1(FILES);
    let cgroups = 2 * READ_AT_ONCE + 3;
    for uid in ["a", "b"] {
        node.apply(uid);
        node.memory_v1(&format!("pod{uid}"), 5, 0);
        for index in 2..cgroups {
            node.memory_v1(&format!("pod{uid}/c/{index}"), 0, 1);
        }
        node.memory_v1(&format!("pod{uid}/c"), 7, 0);
    }
    node.begin();
    let mut reading = node.limits.begin_to_read(node.now_ns);
    let mut portions = 1;
    while node
        .limits
        .read_some(&mut reading, |failure| panic!("{failure}"))
    {
        portions += 1;
        assert_eq!(node.collect(), [], "what it has behind it is no news");
    }
    assert_eq!(portions, (2 * cgroups).div_ceil(READ_AT_ONCE));
    assert_eq!(node.collect(), []);
    for uid in ["a", "b"] {
        for index in 2..cgroups {
            node.memory_v1(&format!("pod{uid}/c/{index}"), 0, 2);
        }
    }
    let counts = LimitCounts {
        oom_kills: cgroups as u64 - 2,
        ..LimitCounts::default()
    };
    let wanted = [one("a", counts), one("b", counts)].concat();
    assert_eq!(node.turn(), wanted);
}

#[test]
fn v2_counts_come_from_the_pods_own_events_and_its_containers_cpu_stat() {
    let mut node = v2(FILES);
    node.apply("a");
    node.turn();
    node.memory_v2("poda", 5, 4, 3, 2);
    node.memory_v2("poda/c", 5, 4, 3, 2);
    node.cpu(
        "",
        "poda",
        "usage_usec 1\nnr_throttled 1\nthrottled_usec 10\n",
    );
    node.cpu(
        "",
        "poda/c",
        "usage_usec 1\nnr_throttled 2\nthrottled_usec 30\n",
    );
    let wanted = LimitCounts {
        high: 5,
        max: 4,
        oom: 3,
        oom_kills: 2,
        throttled: 2,
        throttled_ns: 30_000,
        ..LimitCounts::default()
    };
    assert_eq!(node.turn(), one("a", wanted));
}

#[test]
fn what_was_before_the_first_look_is_history() {
    let mut node = v2(FILES);
    node.memory_v2("poda", 5, 4, 3, 2);
    node.cpu("", "poda", "nr_throttled 7\nthrottled_usec 10\n");
    node.apply("a");
    assert_eq!(node.turn(), []);
    node.memory_v2("poda", 6, 4, 3, 2);
    let wanted = LimitCounts {
        high: 1,
        ..LimitCounts::default()
    };
    assert_eq!(node.turn(), one("a", wanted));
    // Another cgroup of the same name starts from 0.
    let dir = node.dir("", "poda");
    fs::rename(&dir, node.host.path("aside")).unwrap();
    node.memory_v2("poda", 2, 0, 0, 0);
    let wanted = LimitCounts {
        high: 2,
        ..LimitCounts::default()
    };
    assert_eq!(node.turn(), one("a", wanted));
}

#[test]
fn cpu_stat_is_read_now_and_then_and_before_a_pod_is_forgotten() {
    let mut node = v2(FILES);
    node.apply("a");
    node.turn();
    node.memory_v2("poda", 0, 0, 0, 0);
    node.cpu("", "poda", "nr_throttled 1\nthrottled_usec 1\n");
    let once = LimitCounts {
        throttled: 1,
        throttled_ns: 1000,
        ..LimitCounts::default()
    };
    assert_eq!(node.turn(), one("a", once));
    node.cpu("", "poda", "nr_throttled 2\nthrottled_usec 2\n");
    node.begin();
    node.now_ns -= 9 * SECOND;
    assert_eq!(node.end(), [], "not again within five seconds");
    node.limits.read_last(&PodUid::from("a"));
    let mut told = Vec::new();
    node.limits
        .collect(node.now_ns, &node.pods, |_, counts| told.push(counts));
    assert_eq!(told, [once]);
    node.pods.remove(&PodUid::from("a"));
    node.pods.left(&PodUid::from("a")).ok();
    node.turn();
    assert!(node.limits.pods.is_empty());
}

#[test]
fn the_kernels_totals_are_taken_by_cgroup_id_each_in_its_hierarchy() {
    let mut node = v1(KERNEL);
    node.apply("a");
    node.turn();
    node.memory_v1("poda", 99, 99);
    node.memory_v1("poda/c", 99, 99);
    node.cpu("cpu", "poda/c", "nr_throttled 99\n");
    let memory_id = cgroup_id(&node.dir("memory", "poda/c")).unwrap();
    let cpu_id = cgroup_id(&node.dir("cpu", "poda/c")).unwrap();
    node.begin();
    let record = |cgroup_id, body| Record {
        ts_ns: 1,
        cgroup_id,
        cpu: 0,
        body,
    };
    let max = |count| Body::MemoryEvent {
        event: MemoryLimitEvent::Max,
        count,
        pages: None,
    };
    let throttle = Body::Throttle {
        phase: crate::kernel::decode::ThrottlePhase::Stop,
        count: 2,
        sum_ns: 30,
        max_ns: 20,
    };
    node.limits.record(&record(memory_id, max(7)));
    node.limits.record(&record(memory_id, max(5)));
    node.limits.record(&record(cpu_id, throttle));
    node.limits.record(&record(u64::MAX, max(1000)));
    node.limits.memory_totals(MemoryTotals {
        cgroup_id: memory_id,
        event: MemoryLimitEvent::Oom,
        count: 1,
    });
    let wanted = LimitCounts {
        max: 7,
        oom: 1,
        throttled: 2,
        throttled_ns: 30,
        ..LimitCounts::default()
    };
    assert_eq!(
        node.end(),
        one("a", wanted),
        "an older record is no news, files are not read, a stranger is nobody's"
    );
    // A record of a cgroup that is gone by now still counts.
    fs::rename(node.dir("memory", "poda/c"), node.host.path("aside")).unwrap();
    node.begin();
    node.limits.record(&record(memory_id, max(9)));
    let wanted = LimitCounts {
        max: 2,
        ..LimitCounts::default()
    };
    assert_eq!(node.end(), one("a", wanted));
}

#[test]
fn a_pod_at_its_limit_is_one_line_a_second_and_a_kill_is_told_at_once() {
    let mut node = v2(FILES);
    node.apply("a");
    node.turn();
    let mut look = |after_ns: u64, max, oom_kill| {
        node.memory_v2("poda", 0, max, 0, oom_kill);
        node.begin();
        node.now_ns -= 10 * SECOND - after_ns;
        let told = node.end();
        told.first()
            .map(|(_, counts)| (counts.max, counts.oom_kills))
    };
    assert_eq!(look(SECOND, 1, 0), Some((1, 0)));
    assert_eq!(look(SECOND / 2, 3, 0), None);
    assert_eq!(
        look(SECOND / 2, 4, 0),
        Some((3, 0)),
        "with what was held back"
    );
    assert_eq!(look(SECOND / 10, 5, 0), None);
    assert_eq!(look(SECOND / 10, 6, 1), Some((2, 1)));
    assert_eq!(look(SECOND / 10, 7, 1), None);
    node.limits.finish();
    let told = node.turn();
    assert_eq!(told[0].1.max, 1);
}

#[test]
fn a_file_that_cannot_be_used_is_said_once_and_the_rest_is_served() {
    let mut node = v2(FILES);
    node.apply("a");
    node.turn();
    node.memory_v2("poda", 1, 0, 0, 0);
    node.cpu("", "poda", "nr_throttled many\n");
    let mut failures = Vec::new();
    let mut told = Vec::new();
    for _ in 0..2 {
        node.begin();
        node.read(|failure| failures.push(failure));
        node.limits
            .collect(node.now_ns, &node.pods, |_, counts| told.push(counts.high));
    }
    assert_eq!(told, [1]);
    assert_eq!(failures.len(), 1);
    assert!(failures[0].contains("poda/cpu.stat"), "{failures:?}");
}

#[test]
fn v1_eventfds_are_watched_for_every_cgroup_of_a_pod() {
    let mut node = v1(Origins {
        event_control: true,
        ..FILES
    });
    assert!(node.limits.events().is_some());
    node.apply("a");
    node.turn();
    node.memory_v1("poda", 0, 0);
    node.memory_v1("poda/c", 0, 0);
    node.turn();
    for cgroup in ["poda", "poda/c"] {
        let control = node.dir("memory", cgroup).join("cgroup.event_control");
        let registered = fs::read_to_string(control).unwrap();
        assert_eq!(registered.split(' ').count(), 3, "{registered:?}");
    }
    assert_eq!(node.limits.not_watched(), 0);
    assert_eq!(node.limits.events().unwrap().take().unwrap(), 0);
}

#[test]
fn waits_for_memory_are_summed_by_cause() {
    let mut node = v2(KERNEL);
    node.apply("a");
    node.memory_v2("poda", 0, 0, 0, 0);
    assert_eq!(node.turn(), []);
    let id = cgroup_id(&node.dir("", "poda")).unwrap();
    let stall = |cause, sum_ns| StallTotals {
        cgroup_id: id,
        cause,
        count: 1,
        sum_ns,
        max_ns: sum_ns,
        pages: 0,
    };
    let refault = |what, pages| RefaultTotals {
        cgroup_id: id,
        what,
        count: 1,
        pages,
    };
    node.begin();
    node.limits
        .stall_totals(stall(StallCause::Memory, 9_999_999));
    assert_eq!(node.end(), [], "not worth a line yet");
    node.begin();
    for (cause, sum_ns) in [
        (StallCause::Memory, 20_000_000),
        (StallCause::Limit, 4),
        (StallCause::High, 3),
        (StallCause::Node, 2),
    ] {
        node.limits.stall_totals(stall(cause, sum_ns));
    }
    for (what, pages) in [
        (RefaultKind::Anon, 5),
        (RefaultKind::File, 6),
        (RefaultKind::SwapIn, 7),
    ] {
        node.limits.refault_totals(refault(what, pages));
    }
    let wanted = LimitCounts {
        stalled_ns: 20_000_000,
        limit_reclaim_ns: 4,
        high_ns: 3,
        node_reclaim_ns: 2,
        refaulted_pages: 11,
        swapped_in_pages: 7,
        ..LimitCounts::default()
    };
    assert_eq!(node.end(), [("a".to_owned(), wanted)]);
    // What it had more when it went, only records say. An older one is no news.
    fs::rename(node.dir("", "poda"), node.host.path("aside")).unwrap();
    node.begin();
    let bodies = [50_000_000, 40_000_000].map(|sum_ns| Body::MemoryStall {
        cause: StallCause::Memory,
        actor_cgroup_id: id,
        count: 2,
        sum_ns,
        max_ns: sum_ns,
        pages: None,
    });
    let pages = [8, 4].map(|pages| Body::Refault {
        what: RefaultKind::Anon,
        count: 2,
        pages,
    });
    for body in bodies.into_iter().chain(pages) {
        node.limits.record(&Record {
            ts_ns: 1,
            cgroup_id: id,
            cpu: 0,
            body,
        });
    }
    let wanted = LimitCounts {
        stalled_ns: 30_000_000,
        refaulted_pages: 3,
        ..LimitCounts::default()
    };
    assert_eq!(node.end(), [("a".to_owned(), wanted)]);
}

#[test]
fn waits_for_memory_come_from_files_where_nothing_counts_them() {
    let mut node = v2(FILES);
    node.apply("a");
    node.memory_v2("poda", 0, 0, 0, 0);
    let write = |node: &Node, usec: u64, pages: u64| {
        let dir = node.dir("", "poda");
        let pressure = format!(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total={usec}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
        );
        fs::write(dir.join("memory.pressure"), pressure).unwrap();
        let stat = format!(
            "inactive_file 0\nactive_file 0\nworkingset_refault_anon {pages}\nworkingset_refault_file {pages}\npswpin {pages}\n"
        );
        fs::write(dir.join("memory.stat"), stat).unwrap();
    };
    write(&node, 1_000, 10);
    assert_eq!(node.turn(), [], "history");
    write(&node, 21_000, 14);
    let wanted = LimitCounts {
        stalled_ns: 20_000_000,
        refaulted_pages: 8,
        swapped_in_pages: 4,
        ..LimitCounts::default()
    };
    assert_eq!(node.turn(), [("a".to_owned(), wanted)]);
}

#[test]
fn origins_follow_the_ladder() {
    use crate::probe::facts::tests::everything;
    use crate::probe::ladder::choose;
    assert_eq!(Origins::of(&choose(&everything()), true), KERNEL);
    let mut facts = everything();
    facts.bpf = Err("none".to_owned());
    let events = Origins {
        memory_events: true,
        ..FILES
    };
    assert_eq!(Origins::of(&choose(&facts), false), events);
    facts.memory = Ok(Version::V1);
    facts.event_control = Ok(());
    let eventfds = Origins {
        event_control: true,
        ..FILES
    };
    assert_eq!(Origins::of(&choose(&facts), false), eventfds);
}

#[test]
fn without_a_descriptor_to_wait_with_the_files_are_read() {
    let mut node = v2(Origins {
        memory_events: true,
        ..FILES
    });
    assert!(node.limits.events.take().is_some());
    node.apply("a");
    node.memory_v2("poda", 0, 0, 0, 0);
    assert_eq!(node.turn(), []);
    node.memory_v2("poda", 2, 0, 0, 0);
    let counts = LimitCounts {
        high: 2,
        ..LimitCounts::default()
    };
    assert_eq!(node.turn(), one("a", counts));
}

#[test]
fn files_that_only_low_needs_are_read_once_a_minute() {
    let mut node = v2(Origins {
        low: Origin::Files,
        ..KERNEL
    });
    node.apply("a");
    let low = |node: &Node, low: u64| {
        let text = format!("low {low}\nhigh 0\nmax 0\noom 0\noom_kill 0\n");
        fs::write(node.dir("", "poda").join("memory.events"), text).unwrap();
    };
    node.memory_v2("poda", 0, 0, 0, 0);
    assert_eq!(node.turn(), []);
    low(&node, 3);
    let mut seconds = 0;
    let told = loop {
        seconds += 10;
        let told = node.turn();
        if !told.is_empty() || seconds > 100 {
            break told;
        }
    };
    assert_eq!((seconds, told[0].1.low), (60, 3));
    // The last look misses nothing.
    low(&node, 4);
    node.limits.finish();
    assert_eq!(node.turn()[0].1.low, 1);
}

#[test]
fn totals_are_all_of_it_and_what_is_recent() {
    let mut totals = LimitTotals::default();
    let count = |throttled| LimitCounts {
        throttled,
        ..LimitCounts::default()
    };
    let mut seen = Vec::new();
    for (at_s, new) in [(100, 7), (103, 1), (106, 2), (111, 4), (116, 0), (121, 0)] {
        totals.add(at_s * SECOND, count(new));
        let LimitTotals {
            all,
            recent,
            recent_ns,
            ..
        } = totals;
        seen.push((all.throttled, recent.throttled, recent_ns / SECOND));
    }
    assert_eq!(
        seen,
        [
            // Counted since the first look, over no time yet.
            (7, 7, 0),
            (8, 8, 3),
            (10, 10, 6),
            // Since the sixth second, and what comes later moves on.
            (14, 4, 5),
            (14, 0, 5),
            (14, 0, 5),
        ]
    );
}

/// Whether a look goes over all cgroups.
fn looks_anew(node: &mut Node, after_ns: u64) -> bool {
    node.now_ns += after_ns;
    for uid in node.pods.uids() {
        node.pods.refresh(&uid).unwrap();
    }
    node.follow()
}

#[test]
fn cgroups_are_gone_over_when_one_came_or_went_and_else_once_a_minute() {
    let mut node = v2(KERNEL);
    node.apply("a");
    node.memory_v2("poda", 0, 0, 0, 0);
    assert!(looks_anew(&mut node, SECOND));
    assert!(!looks_anew(&mut node, SECOND), "nothing has changed");
    node.memory_v2("poda/c", 0, 0, 0, 0);
    assert!(looks_anew(&mut node, SECOND), "a container came");
    assert_eq!(node.limits.counted().memory.len(), 2);
    assert!(!looks_anew(&mut node, SECOND));
    fs::remove_dir_all(node.dir("", "poda/c")).unwrap();
    assert!(looks_anew(&mut node, SECOND), "and went");
    assert_eq!(node.limits.counted().memory.len(), 1);
    node.apply("b");
    assert!(looks_anew(&mut node, SECOND), "a pod came");
    assert!(!looks_anew(&mut node, FOLLOW_EVERY_NS - SECOND));
    assert!(looks_anew(&mut node, SECOND), "a minute has passed");
    node.limits.follow_again();
    assert!(
        looks_anew(&mut node, SECOND),
        "the kernel has refused what was found"
    );
    assert!(!looks_anew(&mut node, SECOND));
}

#[test]
fn what_is_missing_of_a_cgroup_is_looked_for_at_every_look() {
    let mut node = v1(KERNEL);
    node.apply("a");
    node.memory_v1("poda", 0, 0);
    assert!(looks_anew(&mut node, SECOND));
    assert!(looks_anew(&mut node, SECOND), "it has no cpu cgroup yet");
    node.cpu("cpu", "poda", "");
    assert!(looks_anew(&mut node, SECOND));
    assert_eq!(node.limits.counted().cpu.len(), 1);
    assert!(!looks_anew(&mut node, SECOND));
}
