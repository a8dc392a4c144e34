//! What happens to the agent: the standard day, one hostile pod for each known fault, and days by seed.

use crate::check::journal;
use crate::machine::{GIB, Happening, Lacks, Layout, MIB, MS, NewPod, OnTerm, SECOND, Shape};
use crate::random::Random;
use crate::run::MANIFESTS;
use crate::world::Expected;

#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) total_bytes: u64,
    pub(crate) threshold_bytes: u64,
    pub(crate) has_bpf: bool,
    pub(crate) config: Option<String>,
    pub(crate) output: &'static str,
    pub(crate) happenings: Vec<(u64, Happening)>,
    pub(crate) stop_ns: u64,
    pub(crate) mutex_ns: u64,
    pub(crate) oom_adj_ns: u64,
    /// See [`Machine::heap_ns`](crate::machine::Machine).
    pub(crate) heap_ns: u64,
    pub(crate) layout: Layout,
    /// Lines of `/proc/self/mounts` before those of cgroups.
    pub(crate) mounts: &'static [u8],
    /// The state directory is one of an earlier version, which others can read.
    pub(crate) has_earlier_state: bool,
    /// For `--without`.
    pub(crate) without: Option<&'static str>,
    pub(crate) expects: Vec<Expected>,
    /// The kernel never needs to kill, whatever call fails, once the agent has started.
    pub(crate) is_oom_ruled_out: bool,
}

impl NewPod {
    /// The agent is to have this pod.
    pub(crate) fn write_manifest(&self, root: &std::path::Path) {
        let path = root.join(MANIFESTS).join(format!("{}.json", self.name));
        std::fs::write(path, self.manifest()).ok();
    }

    /// Its manifest.
    pub(crate) fn manifest(&self) -> String {
        let mut requests = serde_json::json!({});
        if self.request_bytes > 0 {
            requests["requests"]["memory"] = format!("{}Mi", self.request_bytes >> 20).into();
        }
        if self.request_millicpu > 0 {
            requests["requests"]["cpu"] = format!("{}m", self.request_millicpu).into();
        }
        if self.is_guaranteed {
            requests["limits"] = requests["requests"].clone();
        }
        let class = self.is_exempt.then_some("system-node-critical");
        let priority = (!self.is_exempt).then_some(self.priority);
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": "default", "uid": self.name},
            "spec": {
                "priority": priority,
                "priorityClassName": class,
                "containers": [{"name": "app", "image": "app", "resources": requests}],
            },
        })
        .to_string()
    }
}

fn pod(name: &str, bytes: u64) -> NewPod {
    NewPod {
        name: name.to_owned(),
        bytes,
        ..NewPod::default()
    }
}

impl Scenario {
    /// A node of 16 GiB with five pods that mean no harm.
    fn new(name: &str) -> Self {
        let mut it = Self {
            name: name.to_owned(),
            total_bytes: 16 * GIB,
            threshold_bytes: GIB,
            has_bpf: true,
            config: None,
            output: "json",
            happenings: Vec::new(),
            stop_ns: 60 * SECOND,
            mutex_ns: 0,
            oom_adj_ns: 0,
            heap_ns: 0,
            layout: Layout::V2,
            mounts: b"",
            has_earlier_state: false,
            without: None,
            expects: Vec::new(),
            is_oom_ruled_out: false,
        };
        for index in 0..4_u64 {
            let mut innocent = pod(&format!("calm{index}"), (300 + 100 * index) * MIB);
            innocent.request_bytes = 256 * MIB;
            it = it.start(0, innocent);
        }
        let mut exempt = pod("critical", 900 * MIB);
        exempt.is_exempt = true;
        it.start(0, exempt)
    }

    fn start(mut self, at_ns: u64, new: NewPod) -> Self {
        self.happenings
            .push((at_ns, Happening::Start(Box::new(new))));
        self
    }

    fn then(mut self, at_ns: u64, happening: Happening) -> Self {
        self.happenings.push((at_ns, happening));
        self
    }
}

/// Grows from 200 MiB without end.
fn hog(name: &str) -> NewPod {
    NewPod {
        bytes_per_s: 500 * MIB,
        up_to_bytes: 20 * GIB,
        grows_after_ns: 5 * SECOND,
        ..pod(name, 200 * MIB)
    }
}

/// One eviction, as it should be.
pub(crate) fn standard() -> Scenario {
    let mut it = Scenario::new("standard");
    it.stop_ns = 45 * SECOND;
    it.is_oom_ruled_out = true;
    it.expects.extend([CROSSED, EVICTED]);
    it.start(
        SECOND,
        NewPod {
            bytes: 4 * GIB,
            up_to_bytes: 13 * GIB,
            ..hog("hog")
        },
    )
}

/// The scenario whose every operation is made to fail: one eviction, in less than a second, on a small machine.
pub(crate) fn brief() -> Scenario {
    let mut it = Scenario::new("brief");
    it.happenings.clear();
    (it.total_bytes, it.threshold_bytes) = (1640 * MIB, 256 * MIB);
    it.stop_ns = 700 * MS;
    it.is_oom_ruled_out = true;
    it.expects.extend([CROSSED, EVICTED]);
    it.start(0, pod("calm", 50 * MIB)).start(
        0,
        NewPod {
            bytes: 290 * MIB,
            bytes_per_s: 100 * MIB,
            up_to_bytes: GIB,
            grows_after_ns: 50 * MS,
            ..hog("hog")
        },
    )
}

/// The same with everything that writes a ledger, a checkpoint or a setting: for `kill -9` at each step.
pub(crate) fn ledgers() -> Scenario {
    let mut it = brief().named("ledgers");
    it.stop_ns = 1500 * MS;
    it.config = Some(
        "evictionHard: {memory.available: 256Mi}\ncpuManagerPolicy: static\nreservedSystemCPUs: '0'\ncpuManagerReconcilePeriod: 1s\n\
         plimsoll:\n  remedies: {reclaim: 100ms, throttle: 200ms, notify: 100ms}\n  cpuBurst: {enabled: true}\n  podOOMGroup: true\n"
            .to_owned(),
    );
    it.start(
        100 * MS,
        NewPod {
            is_guaranteed: true,
            request_millicpu: 1000,
            ..pod("alone", 20 * MIB)
        },
    )
    .expecting(("a placement was written", |world| {
        world.root.join("state/placement.json").exists()
    }))
}

/// One for each fault.
pub(crate) fn hostile() -> Vec<Scenario> {
    let many = |name: &str, shape| {
        Scenario::new(name).start(
            SECOND,
            NewPod {
                shape,
                ..hog("hog")
            },
        )
    };
    let mut list = vec![
        Scenario::new("calm"),
        standard(),
        brief(),
        ledgers(),
        Scenario {
            has_bpf: false,
            ..standard()
        }
        .named("without-bpf"),
        Scenario::new("starved")
            .start(
                SECOND,
                NewPod {
                    is_starved: true,
                    ..hog("hog")
                },
            )
            .start(
                SECOND,
                NewPod {
                    grows_after_ns: 16 * SECOND,
                    bytes_per_s: 200 * MIB,
                    ..hog("second")
                },
            ),
        many("deep", Shape::Deep(8)),
        many("crowd", Shape::Many(300)),
        many("threaded", Shape::Threaded),
        Scenario::new("stays")
            .without_calm()
            .start(
                SECOND,
                NewPod {
                    stays_bytes: 16 * GIB,
                    stays_for_ns: 600 * SECOND,
                    bytes_per_s: 900 * MIB,
                    on_term: OnTerm::Ignores,
                    ..hog("hog")
                },
            )
            .with_small_pods(8, 150 * MIB),
        many("wide", Shape::Many(20_000)),
        Scenario {
            stop_ns: 300 * SECOND,
            ..Scenario::new("stuck")
        }
        .start(
            SECOND,
            NewPod {
                stuck_for_ns: 3600 * SECOND,
                ..hog("hog")
            },
        )
        .start(
            2 * SECOND,
            NewPod {
                grows_after_ns: 26 * SECOND,
                bytes_per_s: 30 * MIB,
                ..hog("second")
            },
        )
        .start(
            3 * SECOND,
            NewPod {
                grows_after_ns: 90 * SECOND,
                bytes_per_s: 30 * MIB,
                ..hog("third")
            },
        ),
        Scenario {
            mutex_ns: 197 * MS,
            ..standard()
        }
        .named("cgroup-mutex"),
        Scenario {
            oom_adj_ns: 5 * SECOND,
            ..standard()
        }
        .named("oom-adj-mutex"),
        Scenario::new("attaches")
            .with_small_pods(100, 20 * MIB)
            .start(SECOND, hog("hog"))
            .expecting(CROSSED)
            .then(
                4 * SECOND,
                Happening::Attaches {
                    left: 8_000,
                    every_ns: SECOND / 8000,
                    pod: None,
                },
            )
            .expecting(EVICTED),
        Scenario::new("names")
            .start(
                SECOND,
                NewPod {
                    comm: b"a\x1b[8m\nb\xff".to_vec(),
                    ..pod("odd", 100 * MIB)
                },
            )
            .then(10 * SECOND, Happening::LimitMet("odd".to_owned()))
            .text(),
    ];
    list.extend(elsewhere());
    list.extend(rooms());
    list
}

/// A storm of forks up to the limit of a node's processes per pod.
const PROCESSES: u32 = 16_000;

const HOUR_NS: i64 = 3_600_000_000_000;

/// An agent without its BPF object is not told of crossings: then this proves little.
const CROSSED: Expected = (
    "a crossing woke the loop (cargo xtask build-ebpf)",
    |world| !world.bpf.is_wanted || world.checks.crossings > 0,
);
const EVICTED: Expected = ("a pod was evicted and ended", |world| {
    world.checks.evictions > 0 && world.checks.has_ended_victim()
});

/// Other machines, and others on them.
fn elsewhere() -> Vec<Scenario> {
    let evicting = |name: &str| standard().named(name);
    let v1 = |name: &str, layout| Scenario {
        layout,
        ..evicting(name)
    };
    vec![
        v1("v1", Layout::V1),
        v1("hybrid", Layout::Hybrid),
        Scenario {
            has_bpf: false,
            ..v1("v1-without-bpf", Layout::V1)
        },
        v1("v1-frozen", Layout::V1).then(10 * SECOND, Happening::Freeze("hog".to_owned())),
        v1("hybrid-frozen", Layout::Hybrid).then(10 * SECOND, Happening::Freeze("hog".to_owned())),
        // Other users' mounts come first: a name of theirs is no text, and a hierarchy that cannot be read.
        Scenario {
            mounts: b"fuse /home/x/\xff\xfe fuse rw,user_id=1000 0 0\ncgroup2 /plimsoll/not/there cgroup2 rw 0 0\n",
            ..evicting("mounts")
        },
        Scenario {
            has_earlier_state: true,
            ..evicting("flock")
        }
        .then(0, Happening::UserLocks),
        evicting("flock-later").then(SECOND, Happening::UserLocks),
        evicting("stopped-exec")
            .then(
                3 * SECOND,
                Happening::RootLocks {
                    file: "knobs.jsonl",
                    for_ns: 20 * SECOND,
                },
            )
            .start(
                4 * SECOND,
                NewPod {
                    request_millicpu: 1500,
                    is_manifest_late: true,
                    ..pod("weighty", 100 * MIB)
                },
            )
            .expecting(("a stopped process of root's had the ledger's lock", |world| {
                world.machine.has_locked
            })),
        Scenario {
            heap_ns: 80 * MS,
            ..evicting("heap")
        }
        .expecting(("a crossing came while the heap's lock was held", |world| {
            world.machine.heap_held_until_ns > 0
        })),
        evicting("attaches-to-and-fro")
            .start(
                0,
                NewPod {
                    processes: 2_000,
                    ..pod("restless", 100 * MIB)
                },
            )
            .then(
                4 * SECOND,
                Happening::Attaches {
                    left: 8_000,
                    every_ns: SECOND / 8000,
                    pod: Some("restless"),
                },
            ),
        // There before the agent: each of its processes is to be looked at.
        evicting("processes").start(
            0,
            NewPod {
                processes: PROCESSES,
                ..pod("crowded", 100 * MIB)
            },
        ),
        // An hour on, back by a day, on by a year, and to 1970.
        evicting("clock")
            .then(2 * SECOND, Happening::Clock(HOUR_NS))
            .then(8 * SECOND, Happening::Clock(-24 * HOUR_NS))
            .then(12 * SECOND, Happening::Clock(8760 * HOUR_NS))
            .then(20 * SECOND, Happening::Clock(-470_000 * HOUR_NS)),
    ]
}

/// Disks without room, at the start or later.
fn rooms() -> Vec<Scenario> {
    let begun_anew: Expected = ("the agent began anew when there was room", |world| {
        world.incarnation > 0
    });
    let protected: Expected = ("settings were changed when there was room", |world| {
        world.checks.has_changed_knobs
    });
    let journal: Expected = ("the journal goes on when there is room", |world| {
        let newest_ns = journal::newest_ns(&world.root);
        newest_ns.is_some_and(|at_ns| {
            world
                .machine
                .disks
                .had_room_ns
                .is_some_and(|room_ns| at_ns > room_ns + journal::AGAIN_NS)
        })
    });
    let two = |name: &str, place: &'static str, lacks, from_ns: u64| {
        let mut it = standard().named(name);
        it.stop_ns = 200 * SECOND;
        it.start(
            40 * SECOND,
            NewPod {
                bytes: 4 * GIB,
                ..hog("second")
            },
        )
        .then(from_ns, Happening::Disk(place, Some(lacks)))
        .then(60 * SECOND, Happening::Disk(place, None))
        .expecting(("there were two evictions", |world| {
            world.checks.evictions > 1
        }))
        .expecting(journal)
    };
    let mut list = Vec::new();
    for (name, place, lacks) in [
        ("state-full", "state", Lacks::Bytes),
        ("state-without-inodes", "state", Lacks::Inodes),
        ("state-read-only", "state", Lacks::Writes),
    ] {
        let start = two(&format!("{name}-at-start"), place, lacks, 0);
        list.push(start.expecting(begun_anew).expecting(protected));
        list.push(two(name, place, lacks, 8 * SECOND));
    }
    for (name, lacks) in [
        ("journal-full", Lacks::Bytes),
        ("journal-without-inodes", Lacks::Inodes),
        ("journal-read-only", Lacks::Writes),
    ] {
        list.push(two(&format!("{name}-at-start"), "journal", lacks, 0));
        list.push(two(name, "journal", lacks, 8 * SECOND));
    }
    list
}

impl Scenario {
    /// Which cgroups there are, and what disks, clocks and others do now and then.
    fn others_by_seed(mut self, random: &mut Random) -> Self {
        self.layout = match random.below(4) {
            0 => Layout::V1,
            1 => Layout::Hybrid,
            _ => Layout::V2,
        };
        self.has_earlier_state = random.one_in(4);
        self = self.then(random.between(0, 2) * SECOND, Happening::UserLocks);
        let mut at_ns = random.between(10, 300) * SECOND;
        while at_ns + 200 * SECOND < self.stop_ns {
            let for_ns = random.between(1, 120) * SECOND;
            let lacks = [Lacks::Bytes, Lacks::Inodes, Lacks::Writes];
            let lacks = lacks[usize::try_from(random.below(3)).unwrap_or(0)];
            self = match random.below(4) {
                0 => self.then(
                    at_ns,
                    Happening::RootLocks {
                        file: "knobs.jsonl",
                        for_ns,
                    },
                ),
                1 => {
                    let hours = i64::try_from(random.between(1, 10_000)).unwrap_or(1);
                    self.then(at_ns, Happening::Clock(hours * HOUR_NS))
                        .then(at_ns + for_ns, Happening::Clock(-hours * HOUR_NS))
                }
                place => {
                    let place = if place == 2 { "state" } else { "journal" };
                    self.then(at_ns, Happening::Disk(place, Some(lacks)))
                        .then(at_ns + for_ns, Happening::Disk(place, None))
                }
            };
            at_ns += for_ns + random.between(60, 1200) * SECOND;
        }
        self
    }

    /// Something that must have happened by the end, lest the run prove nothing.
    fn expecting(mut self, expected: Expected) -> Self {
        self.expects.push(expected);
        self
    }

    fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    fn with_small_pods(mut self, count: u64, bytes: u64) -> Self {
        for index in 0..count {
            let mut small = pod(&format!("small{index}"), bytes);
            small.request_bytes = 0;
            self = self.start(0, small);
        }
        self
    }

    fn without_calm(mut self) -> Self {
        self.happenings.clear();
        self
    }

    fn text(mut self) -> Self {
        self.output = "text";
        self
    }
}

/// Hours of pods that come, grow, leave and misbehave.
pub(crate) fn by_seed(seed: u64, hours: f64) -> Scenario {
    let random = &mut Random::new(seed ^ 0x5eed);
    let mut it = Scenario::new("seed");
    it.has_bpf = !random.one_in(4);
    it.output = if random.one_in(2) { "json" } else { "text" };
    it.stop_ns = (hours * 3600.0) as u64 * SECOND;
    let mut at_ns = 2 * SECOND;
    let mut count = 0;
    // About forty pods an hour at most, and no more than the node has names for.
    let pace = (hours.ceil() as u64).max(1);
    while at_ns + 60 * SECOND < it.stop_ns && count < 200 {
        count += 1;
        let mut new = NewPod {
            grows_after_ns: random.between(1, 60) * SECOND,
            bytes_per_s: [0, 1, 10, 100, 1000][usize::try_from(random.below(5)).unwrap_or(0)] * MIB,
            up_to_bytes: random.between(1, 16) * GIB,
            ..pod(&format!("p{count}"), random.between(10, 600) * MIB)
        };
        new.request_bytes = [0, 64, 256, 1024][usize::try_from(random.below(4)).unwrap_or(0)] * MIB;
        new.inactive_bytes = if random.one_in(4) {
            random.between(1, 100) * MIB
        } else {
            0
        };
        new.on_term = match random.below(3) {
            0 => OnTerm::Ends,
            1 => OnTerm::Ignores,
            _ => OnTerm::EndsAfter(random.between(1, 20_000) * MS),
        };
        new.is_restarted = random.one_in(3);
        if seed % 4 == 3 {
            match random.below(8) {
                0 => new.shape = Shape::Deep(8),
                1 => new.shape = Shape::Threaded,
                2 => {
                    (new.stays_bytes, new.stays_for_ns) =
                        (16 * GIB, random.between(1, 300) * SECOND)
                }
                3 => new.stuck_for_ns = random.between(10, 600) * SECOND,
                _ => {}
            }
        }
        if random.one_in(10) {
            new.comm = b"\x1b]0;x\x07\n\xfe".to_vec();
        }
        it = it.start(at_ns, new);
        if random.one_in(4) {
            let ns = random.between(1, 2000) * MS;
            it = it.then(at_ns + random.below(60) * SECOND, Happening::Hold { ns });
        }
        at_ns += random.between(1, 240) * SECOND * pace;
    }
    it.others_by_seed(random)
}
