//! CPU time from outside: pods on a model of the kernel's bandwidth control, one reading a second, decisions carried
//! out.
//!
//! The model is that of kernel/sched/fair.c: at each period a cgroup gets its quota, keeps of earlier ones what it did
//! not use up to its burst, and is throttled when it wants more than it has. What it could not do it does later.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::bandwidth::{
    CgroupCpu, CpuKnob, CpuReading, CpuWhy, PodCpu, SharedCpus, WaitSource,
};
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{Event, EventKind, PlacementStart};
use plimsoll_core::model::options::{CpuBurst, CpuOptions, CpuSuppress};
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::machine::{Core, Machine, NumaNode, Parts};
use plimsoll_core::placement::node::{CpuManagerPolicy, PlacementSettings};
use serde_json::{Value, json};

use crate::node::S;

const PERIOD_US: u64 = 100_000;
const CPUS: u32 = 4;

/// A cgroup of the model.
#[derive(Default)]
struct Cgroup {
    now: CgroupCpu,
    carried_us: u64,
    backlog_us: u64,
}

impl Cgroup {
    fn limited(container: &str, quota_us: Option<u64>) -> Self {
        Self {
            now: CgroupCpu {
                container: Arc::from(container),
                period_us: PERIOD_US,
                quota_us,
                configured_quota_us: quota_us,
                burst_us: Some(0),
                configured_burst_us: Some(0),
                ..CgroupCpu::default()
            },
            ..Self::default()
        }
    }

    /// One period in which it wants so much and its pod leaves it so much. What it uses.
    fn period(&mut self, wants_us: u64, left_us: u64) -> u64 {
        let wanted_us = wants_us + self.backlog_us;
        if wanted_us == 0 {
            let quota_us = self.now.quota_us.unwrap_or(0);
            self.carried_us = (self.carried_us + quota_us).min(self.now.burst_us.unwrap_or(0));
            return 0;
        }
        let Some(quota_us) = self.now.quota_us else {
            let used_us = wanted_us.min(left_us);
            self.backlog_us = wanted_us - used_us;
            self.now.usage_us += used_us;
            return used_us;
        };
        let has_us = quota_us + self.carried_us;
        let used_us = wanted_us.min(has_us).min(left_us);
        self.now.periods += 1;
        self.now.throttled += u64::from(wanted_us > has_us);
        self.now.bursts += u64::from(used_us > quota_us);
        self.carried_us = (has_us - used_us).min(self.now.burst_us.unwrap_or(0));
        self.backlog_us = wanted_us - used_us;
        self.now.usage_us += used_us;
        used_us
    }
}

struct OnePod {
    pod: Cgroup,
    containers: BTreeMap<&'static str, Cgroup>,
    /// Of the time, thousandths.
    waits: u64,
    waited_us: u64,
}

struct Node {
    engine: Engine,
    now_ns: u64,
    pods: BTreeMap<&'static str, OnePod>,
    busy_permille: u64,
    shared: SharedCpus,
}

fn options(burst: Option<CpuBurst>, suppress: Option<CpuSuppress>) -> EngineConfig {
    EngineConfig {
        cpu: CpuOptions { burst, suppress },
        ..EngineConfig::default()
    }
}

impl Node {
    fn new(config: EngineConfig) -> Self {
        Self {
            engine: Engine::new(config),
            now_ns: S,
            pods: BTreeMap::new(),
            busy_permille: 300,
            shared: SharedCpus {
                cpus: CPUS,
                ..SharedCpus::default()
            },
        }
    }

    fn step(&mut self, kind: EventKind) -> Vec<Decision> {
        let event = Event {
            at_ns: self.now_ns,
            kind,
        };
        let mut decisions = Vec::new();
        self.engine.step(&event, &mut decisions);
        decisions
    }

    /// Containers by name with their limits in thousandths of a CPU, 0 for none.
    fn pod(&mut self, name: &'static str, more: Value, containers: &[(&'static str, u64)]) {
        let mut pod = json!({
            "metadata": {"name": name, "uid": name, "annotations": more["annotations"]},
            "spec": {"priority": more["priority"], "containers": containers.iter().map(|(name, milli)| {
                match milli {
                    0 => json!({"name": name}),
                    _ => json!({"name": name, "resources": {"limits": {"cpu": format!("{milli}m")}}}),
                }
            }).collect::<Vec<_>>()},
        });
        if let Some(milli) = more["request"].as_u64() {
            pod["spec"]["containers"][0]["resources"]["requests"] =
                json!({"cpu": format!("{milli}m")});
        }
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        pod.set_defaults();
        self.step(EventKind::PodApplied { pod: Arc::new(pod) });
        self.step(EventKind::PodRunning { uid: name.into() });
        let quota = |milli: u64| (milli > 0).then_some(milli * PERIOD_US / 1000);
        let sum = containers.iter().map(|(_, milli)| quota(*milli));
        let one_pod = OnePod {
            pod: Cgroup::limited("", sum.sum()),
            containers: containers
                .iter()
                .map(|(name, milli)| (*name, Cgroup::limited(name, quota(*milli))))
                .collect(),
            waits: 0,
            waited_us: 0,
        };
        self.pods.insert(name, one_pod);
    }

    /// A second, in which container `at` of pod `of` wants `wants(of, at, period)` microseconds in each period.
    fn second(&mut self, wants: &mut dyn FnMut(&str, &str, u64) -> u64) -> Vec<Decision> {
        for period in 0..10 {
            for (name, pod) in &mut self.pods {
                let mut left_us = match pod.pod.now.quota_us {
                    Some(quota_us) => quota_us + pod.pod.carried_us,
                    None => u64::from(CPUS) * PERIOD_US,
                };
                let (mut wanted_us, mut used_us) = (0, 0);
                for (container, cgroup) in &mut pod.containers {
                    let more_us = wants(name, container, period);
                    wanted_us += more_us + cgroup.backlog_us;
                    let used = cgroup.period(more_us, left_us);
                    left_us -= used;
                    used_us += used;
                }
                // What containers may use and the pod may not is the pod's throttling.
                let held_up = left_us == 0 && wanted_us > used_us;
                pod.pod.period(used_us, u64::MAX);
                pod.pod.now.throttled += u64::from(held_up && pod.pod.now.quota_us.is_some());
            }
        }
        self.now_ns += S;
        let total_us = u64::from(CPUS) * 1_000_000;
        self.shared.total_us += total_us;
        self.shared.busy_us += total_us * self.busy_permille / 1000;
        let pods = self.pods.iter_mut().map(|(name, pod)| {
            pod.waited_us += pod.waits * 1000;
            let containers = pod.containers.values().map(|cgroup| cgroup.now.clone());
            PodCpu {
                uid: PodUid::from(*name),
                usage_us: pod.pod.now.usage_us,
                waited_us: Some(pod.waited_us),
                cgroups: std::iter::once(pod.pod.now.clone())
                    .chain(containers)
                    .collect(),
            }
        });
        let reading = CpuReading {
            read_ns: self.now_ns,
            shared: self.shared,
            source: Some(WaitSource::Pressure),
            pods: pods.collect(),
        };
        let decisions = self.step(EventKind::CpuReading(Arc::new(reading)));
        for decision in &decisions {
            self.carry_out(decision);
        }
        self.check();
        decisions
    }

    fn knob(&mut self, uid: &PodUid, container: &str) -> &mut CgroupCpu {
        let pod = self.pods.get_mut(uid.as_str()).unwrap();
        match container {
            "" => &mut pod.pod.now,
            name => &mut pod.containers.get_mut(name).unwrap().now,
        }
    }

    /// As the kernel would: cgroup v1 refuses a child that may use more than its parent, every version a burst above
    /// the quota.
    fn carry_out(&mut self, decision: &Decision) {
        match decision {
            Decision::SetCpu {
                uid,
                container,
                knob,
                us,
                ..
            } => {
                let cgroup = self.knob(uid, container);
                match knob {
                    CpuKnob::Quota => cgroup.quota_us = Some(*us),
                    CpuKnob::Burst => cgroup.burst_us = Some(*us),
                }
            }
            Decision::RestoreCpu {
                uid,
                container,
                knob,
                ..
            } => {
                let cgroup = self.knob(uid, container);
                match knob {
                    CpuKnob::Quota => cgroup.quota_us = cgroup.configured_quota_us,
                    CpuKnob::Burst => cgroup.burst_us = cgroup.configured_burst_us,
                }
            }
            _ => return,
        }
        for pod in self.pods.values() {
            for cgroup in pod.containers.values() {
                if let (Some(child), Some(parent)) = (cgroup.now.quota_us, pod.pod.now.quota_us) {
                    assert!(
                        child <= parent,
                        "EINVAL: {child} below {parent} by {decision}"
                    );
                }
                assert!(
                    cgroup.now.burst_us <= cgroup.now.quota_us.or(Some(u64::MAX)),
                    "{decision}"
                );
            }
        }
    }

    /// Never above limit × factor, burst never above the limit.
    fn check(&self) {
        let Some(burst) = self.engine.config().cpu.burst else {
            return;
        };
        for pod in self.pods.values() {
            for cgroup in std::iter::once(&pod.pod).chain(pod.containers.values()) {
                if let (Some(quota_us), Some(configured_us)) =
                    (cgroup.now.quota_us, cgroup.now.configured_quota_us)
                {
                    assert!(quota_us >= configured_us);
                    assert!(quota_us * 100 <= configured_us * u64::from(burst.quota_percent));
                    assert!(
                        cgroup.now.burst_us.unwrap()
                            <= configured_us * u64::from(burst.burst_percent) / 100
                    );
                }
            }
        }
    }

    fn container(&self, pod: &str, container: &str) -> &CgroupCpu {
        &self.pods[pod].containers[container].now
    }

    fn quota(&self, pod: &str) -> Option<u64> {
        self.pods[pod].pod.now.quota_us
    }

    /// Runs for so many seconds; how many periods of `app` in `pod` were throttled in the last `tail` of them.
    fn run(
        &mut self,
        seconds: u64,
        tail: u64,
        pod: &str,
        wants: &mut dyn FnMut(&str, &str, u64) -> u64,
    ) -> u64 {
        let mut before = 0;
        for second in 0..seconds {
            if second + tail == seconds {
                before = self.container(pod, "app").throttled;
            }
            self.second(wants);
        }
        self.container(pod, "app").throttled - before
    }
}

/// One and a half quotas in every third period: a third of periods is throttled, half of the limit used.
fn bursty(pod: &str, _: &str, period: u64) -> u64 {
    match (pod, period % 3) {
        ("web", 0) => 75_000,
        _ => 0,
    }
}

fn burst() -> CpuBurst {
    CpuBurst::default()
}

#[test]
fn without_the_option_nothing_is_done_and_the_known_case_is_there() {
    let mut node = Node::new(options(None, None));
    node.pod("web", json!({}), &[("app", 500)]);
    let throttled = node.run(60, 30, "web", &mut bursty);
    assert!((99..=150).contains(&throttled), "{throttled} of 300");
    assert!(node.engine.state().cpu.pods.is_empty());
}

#[test]
fn a_bursty_service_is_throttled_no_more() {
    let mut node = Node::new(options(Some(burst()), None));
    node.pod("web", json!({}), &[("app", 500)]);
    let throttled = node.run(60, 50, "web", &mut bursty);
    assert_eq!(throttled, 0);
    // The first step was enough, and it is in use: nothing is taken back.
    assert_eq!(node.container("web", "app").burst_us, Some(50_000));
    assert_eq!(node.container("web", "app").quota_us, Some(50_000));
    assert_eq!(node.pods["web"].pod.now.burst_us, Some(50_000));
}

#[test]
fn a_longer_burst_gets_a_larger_quota_and_it_settles() {
    let mut node = Node::new(options(Some(burst()), None));
    node.pod("web", json!({}), &[("app", 500)]);
    let mut second = 0;
    // Seven tenths of the limit, in one long burst every two seconds.
    let mut wants = |_: &str, _: &str, period: u64| {
        second += u64::from(period == 0);
        match second % 2 == 0 && period < 7 {
            true => 100_000,
            false => 0,
        }
    };
    let early = node.run(40, 40, "web", &mut wants);
    let late = node.run(1200, 600, "web", &mut wants);
    // Patience doubles with each step that was taken back wrongly: of 3000 periods hardly any.
    assert!(early > 0 && late <= 60, "{early} then {late}");
    assert!(node.container("web", "app").quota_us > Some(50_000));
    assert!(node.quota("web") >= node.container("web", "app").quota_us);
}

#[test]
fn a_step_that_is_needed_no_more_is_taken_back() {
    let mut node = Node::new(options(Some(burst()), None));
    node.pod("web", json!({}), &[("app", 500)]);
    node.run(20, 1, "web", &mut bursty);
    assert_eq!(node.container("web", "app").burst_us, Some(50_000));
    let mut restored = Vec::new();
    for _ in 0..15 {
        restored.extend(node.second(&mut |_, _, _| 10_000));
    }
    assert_eq!(node.container("web", "app").burst_us, Some(0));
    let whys: Vec<String> = restored.iter().map(ToString::to_string).collect();
    assert_eq!(
        whys,
        [
            "cpu.max.burst of web, container app, as before: neither throttled nor above its quota for 10 s",
            "cpu.max.burst of web as before: neither throttled nor above its quota for 10 s",
        ]
    );
}

#[test]
fn a_container_that_computes_without_end_gets_its_limit() {
    let mut node = Node::new(options(Some(burst()), None));
    node.pod("hog", json!({}), &[("app", 500)]);
    // It saves for a minute, then wants all it can get.
    node.run(60, 1, "hog", &mut |_, _, _| 1_000);
    let (from_us, seconds) = (node.container("hog", "app").usage_us, 600);
    node.run(seconds, 1, "hog", &mut |_, _, _| 400_000);
    let used_us = node.container("hog", "app").usage_us - from_us;
    let limit_us = seconds * 500_000;
    let allowance_us = 60 * 500_000;
    assert!(
        used_us > limit_us + allowance_us / 2,
        "it never got what it had saved"
    );
    assert!(used_us <= limit_us + allowance_us, "{used_us}");
    assert_eq!(node.container("hog", "app").quota_us, Some(50_000));
    let grant = &node.engine.state().cpu.pods[&PodUid::from("hog")].cgroups["app"].grant;
    assert!(
        matches!(grant.why, Some(CpuWhy::AllowanceSpent { .. })),
        "{grant:?}"
    );
}

#[test]
fn a_busy_node_gives_nothing_and_takes_back() {
    let mut node = Node::new(options(Some(burst()), None));
    node.pod("web", json!({}), &[("app", 500)]);
    node.busy_permille = 900;
    node.run(30, 1, "web", &mut bursty);
    assert_eq!(node.container("web", "app").burst_us, Some(0));
    node.busy_permille = 300;
    node.run(30, 1, "web", &mut bursty);
    assert_eq!(node.container("web", "app").burst_us, Some(50_000));
    node.busy_permille = 900;
    let decisions = node.second(&mut bursty);
    assert_eq!(node.container("web", "app").burst_us, Some(0));
    assert!(
        decisions[0]
            .to_string()
            .ends_with("the shared CPUs are busy 90.00% of the time, above 80.00%"),
        "{}",
        decisions[0]
    );
}

#[test]
fn a_neighbour_that_waits_for_its_request_closes_the_guard_and_one_above_it_does_not() {
    for (uses, closes) in [(20_000, true), (80_000, false)] {
        let mut node = Node::new(options(Some(burst()), None));
        node.pod("web", json!({}), &[("app", 500)]);
        node.pod("other", json!({"request": 500}), &[("app", 0)]);
        node.pods.get_mut("other").unwrap().waits = 200;
        node.run(30, 1, "web", &mut |pod, container, period| match pod {
            "other" => uses,
            _ => bursty(pod, container, period),
        });
        let given = node.container("web", "app").burst_us == Some(50_000);
        assert_eq!(given, !closes, "uses {uses}");
    }
}

#[test]
fn the_pods_cgroup_lets_through_what_containers_are_given() {
    let mut node = Node::new(options(
        Some(CpuBurst {
            burst_percent: 0,
            ..burst()
        }),
        None,
    ));
    node.pod("web", json!({}), &[("app", 500), ("side", 500)]);
    node.run(10, 1, "web", &mut |_, _, _| 5_000);
    // `carry_out` refuses what the kernel would.
    node.run(10, 1, "web", &mut |_, container, _| match container {
        "app" => 60_000,
        _ => 5_000,
    });
    let (app, side) = (node.container("web", "app"), node.container("web", "side"));
    assert!(app.quota_us > Some(50_000));
    assert_eq!(side.quota_us, Some(50_000));
    assert_eq!(node.quota("web"), Some(app.quota_us.unwrap() + 50_000));
}

#[test]
fn a_write_that_fails_is_not_tried_again_at_once() {
    let mut node = Node::new(options(Some(burst()), None));
    node.pod("web", json!({}), &[("app", 500)]);
    let mut failures = 0;
    for _ in 0..60 {
        let decisions = node.second(&mut bursty);
        let failed = decisions.iter().find_map(|decision| match decision {
            Decision::SetCpu {
                uid,
                container,
                knob,
                ..
            } => Some((uid.clone(), container.clone(), *knob)),
            _ => None,
        });
        if let Some((uid, container, knob)) = failed {
            failures += 1;
            for container in ["", "app"] {
                node.knob(&uid, container).burst_us = Some(0);
            }
            let error = "EINVAL".to_owned();
            node.step(EventKind::CpuNotWritten {
                uid: uid.clone(),
                container,
                knob,
                error: error.clone(),
            });
            node.step(EventKind::CpuNotWritten {
                uid,
                container: Arc::from("app"),
                knob,
                error,
            });
        }
    }
    assert!((3..=7).contains(&failures), "{failures}");
}

#[test]
fn demands_of_any_kind_keep_every_bound() {
    // A generator without randomness of its own: the same every time.
    for seed in 1..40_u64 {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut next = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut node = Node::new(options(Some(burst()), None));
        node.pod("web", json!({}), &[("app", 300), ("side", 700)]);
        let mut mean = 0;
        for second in 0..300 {
            if second % 20 == 0 {
                mean = 1 + next(200_000);
                node.busy_permille = next(1000);
            }
            node.second(&mut |_, _, _| next(2 * mean));
            for (container, milli) in [("app", 300), ("side", 700)] {
                let used_us = node.container("web", container).usage_us;
                let limit_us = (second + 1) * milli * 1000;
                // A burst is of quotas not used, and so is what was saved: nothing above the limit, since the start.
                assert!(
                    used_us <= limit_us + PERIOD_US * milli / 1000,
                    "seed {seed}, second {second}"
                );
            }
        }
    }
}

/// Four cores of which the first is reserved, and containers that may have their own.
fn static_placement() -> PlacementStart {
    let core = |cpu| Core {
        cpus: CpuSet::of(cpu),
        socket: Some(0),
        node: Some(0),
        ..Core::default()
    };
    let machine = Machine::new(Parts {
        cores: (0..CPUS).map(core).collect(),
        nodes: vec![NumaNode {
            memory_bytes: Some(8 << 30),
            ..NumaNode::default()
        }],
        ..Parts::default()
    });
    PlacementStart {
        settings: PlacementSettings {
            cpu_manager_policy: CpuManagerPolicy::Static,
            reserved_system_cpus: CpuSet::of(0),
            reserved_cpu_count: 1,
            ..PlacementSettings::default()
        },
        machine: machine.unwrap(),
        saved: None,
    }
}

#[test]
fn a_pod_with_exclusive_cpus_is_left_alone_and_never_counts_as_waiting() {
    for exclusive in [false, true] {
        let mut node = Node::new(options(Some(burst()), Some(suppress())));
        if exclusive {
            node.step(EventKind::PlacementStarted(Box::new(static_placement())));
        }
        // Guaranteed, with whole CPUs.
        let amounts = json!({"cpu": "1", "memory": "1Gi"});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "uid": "web"},
            "spec": {"containers": [{"name": "app", "resources": {"requests": amounts, "limits": amounts}}]},
        }))
        .unwrap();
        node.pod("web", json!({}), &[("app", 1000)]);
        node.step(EventKind::PodApplied { pod: Arc::new(pod) });
        node.pod("batch", json!({}), &[("job", 0)]);
        node.pods.get_mut("web").unwrap().waits = 300;
        let mut said = Vec::new();
        for second in 0..20 {
            said.extend(node.second(&mut |pod, _, period| match (pod, period % 3) {
                ("batch", _) => 200_000,
                (_, 0) if second > 10 => 150_000,
                _ => 0,
            }));
        }
        assert_eq!(said.is_empty(), exclusive, "{said:?}");
        assert_eq!(node.engine.state().cpu.waiters.is_empty(), exclusive);
    }
}

fn suppress() -> CpuSuppress {
    CpuSuppress::default()
}

/// A node with a service that waits so much of the time, BestEffort pods that would take all, and a critical one and
/// the agent's among them.
fn crowded(waits: u64) -> Node {
    let mut node = Node::new(EngineConfig {
        exempt_uids: ["agent".into()].into(),
        ..options(None, Some(suppress()))
    });
    node.pod("agent", json!({}), &[("agent", 0)]);
    node.pod("web", json!({"request": 500}), &[("app", 0)]);
    node.pod("batch", json!({}), &[("job", 0)]);
    node.pod("small", json!({}), &[("job", 0)]);
    node.pod("proxy", json!({"priority": 2_000_001_000}), &[("proxy", 0)]);
    node.pods.get_mut("web").unwrap().waits = waits;
    node
}

fn crowd(pod: &str, _: &str, _: u64) -> u64 {
    match pod {
        "web" => 30_000,
        "batch" => 300_000,
        "small" => 5_000,
        _ => 50_000,
    }
}

#[test]
fn best_effort_is_held_back_step_by_step_and_let_go() {
    let mut node = crowded(200);
    let mut said = Vec::new();
    for _ in 0..4 {
        said.extend(node.second(&mut crowd));
    }
    assert_eq!(
        said[0].to_string(),
        "cpu.max of batch = 210.000 ms, configured max: default/web waits for CPU 20.00% of the time by cpu.pressure, above 10.00%"
    );
    assert_eq!(node.quota("batch"), Some(147_000));
    assert_eq!((node.quota("small"), node.quota("proxy")), (None, None));
    assert_eq!(node.quota("agent"), None);
    // Between half and the whole of what is allowed nothing moves.
    node.pods.get_mut("web").unwrap().waits = 80;
    assert!((0..5).all(|_| node.second(&mut crowd).is_empty()));
    node.pods.get_mut("web").unwrap().waits = 10;
    for _ in 0..12 {
        node.second(&mut crowd);
    }
    assert_eq!(node.quota("batch"), None);
    assert_eq!(node.engine.state().cpu.suppression.since_ns, None);
}

#[test]
fn no_pod_is_held_below_the_floor_or_when_it_does_not_help() {
    let mut node = crowded(500);
    let mut lowest = u64::MAX;
    let mut held = 0;
    for _ in 0..60 {
        node.second(&mut crowd);
        if let Some(quota_us) = node.quota("batch") {
            lowest = lowest.min(quota_us);
            held += 1;
        }
    }
    assert_eq!(lowest, 10_000);
    // Ten steps down, ten seconds at the floor.
    assert!((15..=25).contains(&held), "{held}");
    let why = &node.engine.state().cpu.suppression.why;
    assert!(matches!(why, Some(CpuWhy::NoEffect { .. })), "{why:?}");
}

#[test]
fn no_pod_is_held_beyond_the_budget_or_half_of_the_time() {
    let mut node = crowded(0);
    node.second(&mut crowd);
    let (mut held, mut longest, mut at_once) = (0, 0, 0);
    for second in 0..1000_u64 {
        // It helps whenever it is tried, and the need comes back when it is not.
        let waits = match second % 7 {
            0 | 1 => 200,
            _ => 80,
        };
        node.pods.get_mut("web").unwrap().waits = waits;
        node.second(&mut crowd);
        at_once = match node.quota("batch") {
            Some(_) => at_once + 1,
            None => 0,
        };
        held += u64::from(at_once > 0);
        longest = longest.max(at_once);
    }
    assert!(longest <= 60, "{longest}");
    assert!((300..=560).contains(&held), "{held}");
}

#[test]
fn the_latency_critical_annotation_decides_which_pod_comes_first() {
    for (annotation, held) in [("true", true), ("false", false)] {
        let mut node = Node::new(options(None, Some(suppress())));
        let says =
            json!({"annotations": {"plimsoll.dev/latency-critical": annotation}, "request": 100});
        node.pod("web", says, &[("app", 0)]);
        node.pod("batch", json!({}), &[("job", 0)]);
        node.pods.get_mut("web").unwrap().waits = 300;
        // Above its request: without the annotation it would not count.
        for _ in 0..5 {
            node.second(&mut |pod, _, _| if pod == "web" { 60_000 } else { 200_000 });
        }
        assert_eq!(node.quota("batch").is_some(), held, "{annotation}");
    }
}

#[test]
fn an_evicted_pod_is_released_at_once() {
    let mut node = crowded(200);
    for _ in 0..3 {
        node.second(&mut crowd);
    }
    assert!(node.quota("batch").is_some());
    let decisions = node.step(EventKind::PodRemoved {
        uid: "batch".into(),
    });
    let said: Vec<String> = decisions.iter().map(ToString::to_string).collect();
    assert!(
        said.iter()
            .any(|text| text == "cpu.max of batch as before: the pod is to leave"),
        "{said:?}"
    );
    for decision in &decisions {
        node.carry_out(decision);
    }
    assert_eq!(node.quota("batch"), None);
}

#[test]
fn a_journal_says_the_same_as_the_engine() {
    let mut node = crowded(200);
    node.pod("api", json!({}), &[("app", 500)]);
    for _ in 0..5 {
        node.second(&mut crowd);
    }
    let state = serde_json::to_string(node.engine.state()).unwrap();
    let resumed = serde_json::from_str(&state).unwrap();
    let mut other = Engine::resume(node.engine.config().clone(), resumed);
    let pods = vec![PodCpu {
        uid: "batch".into(),
        usage_us: 1 << 40,
        waited_us: None,
        cgroups: vec![node.pods["batch"].pod.now.clone()],
    }];
    let event = Event {
        at_ns: node.now_ns + S,
        kind: EventKind::CpuReading(Arc::new(CpuReading {
            read_ns: node.now_ns + S,
            shared: node.shared,
            source: Some(WaitSource::Tasks),
            pods,
        })),
    };
    let text = serde_json::to_string(&event).unwrap();
    let read: Event = serde_json::from_str(&text).unwrap();
    assert_eq!(read, event);
    let (mut one, mut two) = (Vec::new(), Vec::new());
    node.engine.step(&event, &mut one);
    other.step(&read, &mut two);
    assert_eq!(
        serde_json::to_string(&one).unwrap(),
        serde_json::to_string(&two).unwrap()
    );
    assert_eq!(
        serde_json::to_string(node.engine.state()).unwrap(),
        serde_json::to_string(other.state()).unwrap()
    );
}
