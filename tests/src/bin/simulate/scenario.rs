//! What happens to the agent: the standard day, one hostile pod for each fault that is known, and days by seed.

use crate::machine::{GIB, Happening, MIB, MS, NewPod, OnTerm, SECOND, Shape};
use crate::random::Random;

/// A fault of FAULTS.md that is not mended yet, and the rules that it breaks in a scenario. A row goes when its mend lands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) fault: &'static str,
    pub(crate) rules: &'static [&'static str],
}

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
    pub(crate) known: Vec<Known>,
}

impl NewPod {
    /// Its manifest.
    pub(crate) fn manifest(&self) -> String {
        let requests = match self.request_bytes {
            0 => serde_json::json!({}),
            bytes => serde_json::json!({"requests": {"memory": format!("{}Mi", bytes >> 20)}}),
        };
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
            known: Vec::new(),
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

    fn knows(mut self, fault: &'static str, rules: &'static [&'static str]) -> Self {
        self.known.push(Known { fault, rules });
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

/// The scenario whose every operation is made to fail, and to be the last: one eviction, as it should be.
pub(crate) fn standard() -> Scenario {
    let mut it = Scenario::new("standard");
    it.stop_ns = 45 * SECOND;
    it.start(
        SECOND,
        NewPod {
            bytes: 4 * GIB,
            up_to_bytes: 13 * GIB,
            ..hog("hog")
        },
    )
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
    vec![
        Scenario::new("calm"),
        standard(),
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
        .named("cgroup-mutex")
        .knows("C3", &["turn/write", "late/write"]),
        // What C4 costs is computation, which is free here.
        Scenario::new("attaches")
            .with_small_pods(100, 20 * MIB)
            .start(SECOND, hog("hog"))
            .then(
                4 * SECOND,
                Happening::Attaches {
                    left: 4_000,
                    every_ns: SECOND / 8000,
                },
            ),
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
    ]
}

impl Scenario {
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
    it
}
