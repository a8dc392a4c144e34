//! On machines of many shapes, processes end up where `plimsoll place` says, and stay there.
//!
//! Run it where it matters: `cargo xtask vm --kernel 7.2 --memory 4096 --topology numa8 --cmd 'guest_tests planned::'`,
//! likewise with the topologies smt, dies, numa2, numa4 and multi.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll_core::placement::cpu_set::CpuSet;

use super::super::agent::{Agent, Options};
use super::super::clock::wait_until;
use super::super::harness::{Done, Lacks, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::{Node, Running};
use super::super::plan::{Place, Plan, pages};
use super::super::pod::Pod;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "planned::packed",
        on: On::Weekly(Machine::Numa8),
        run: packed,
    },
    Test {
        name: "planned::whole_cores_and_pods_as_a_whole",
        on: On::Once(Machine::Numa8),
        run: whole_cores,
    },
    Test {
        name: "planned::spread_over_the_closest_nodes",
        on: On::Weekly(Machine::Numa8),
        run: spread,
    },
    Test {
        name: "planned::one_cache_and_one_node",
        on: On::Weekly(Machine::Numa8),
        run: one_cache,
    },
    Test {
        name: "planned::other_options_move_nobody_and_another_reservation_only_who_has_to",
        on: On::Weekly(Machine::Numa8),
        run: changed,
    },
];

const TIMEOUT: Duration = Duration::from_secs(30);
/// Two looks of the agent at cpusets, and time for what they would change.
const LOOKS: Duration = Duration::from_millis(2500);
/// What each hog takes: enough pages to see where they are.
const HOG_MB: u64 = 16;

/// For every test. What is reserved on a node has to be what the node reserves in all.
const BASE: &str = "cpuManagerPolicy: static\nmemoryManagerPolicy: Static\ncpuManagerReconcilePeriod: 1s\n\
                    evictionHard: {memory.available: 1Mi}\nreservedMemory: [{numaNode: 0, limits: {memory: 1Mi}}]\n";
const PACKED: &str = "topologyManagerPolicy: best-effort\n";
const WHOLE_CORES: &str = "topologyManagerPolicy: restricted\ntopologyManagerScope: pod\n\
                           cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}\n";
const SPREAD: &str = "topologyManagerPolicy: best-effort\ntopologyManagerPolicyOptions: {prefer-closest-numa-nodes: \"true\"}\n\
                      cpuManagerPolicyOptions: {distribute-cpus-across-numa: \"true\"}\n";
const ONE_CACHE: &str = "topologyManagerPolicy: single-numa-node\n\
                         cpuManagerPolicyOptions: {prefer-align-cpus-by-uncorecache: \"true\"}\n";

fn settings(reserved: &str, more: &str) -> String {
    format!("{BASE}reservedSystemCPUs: \"{reserved}\"\n{more}")
}

/// This machine, as far as pods are cut to it.
struct Shape {
    cpus: usize,
    nodes: usize,
    node_mib: u64,
}

impl Shape {
    fn here() -> anyhow::Result<Self> {
        let list = fs::read_to_string("/sys/devices/system/node/has_memory")?;
        let path = "/sys/devices/system/node/node0/meminfo";
        let text = fs::read_to_string(path)?;
        let total = text.lines().find(|line| line.contains("MemTotal:"));
        let total = total.and_then(|line| line.split_whitespace().nth(3));
        let kib: u64 = total.context(path)?.parse()?;
        Ok(Self {
            cpus: std::thread::available_parallelism()?.get(),
            nodes: CpuSet::parse(&list)?.len() as usize,
            node_mib: kib >> 10,
        })
    }

    /// A small one, one of an odd size, and one that no NUMA node can have alone.
    fn pods(&self) -> Vec<Pod> {
        let guaranteed = |name, cpus: usize, mib: u64| {
            Pod::guaranteed(name, &cpus.to_string(), &format!("{mib}Mi"))
        };
        let (wide, wide_mib) = match self.nodes {
            1 => (2, 64),
            nodes => (self.cpus / nodes + 2, self.node_mib * 5 / 4),
        };
        vec![
            guaranteed("pair", 2, 64),
            guaranteed("odd", 3, 64),
            guaranteed("wide", wide, wide_mib),
        ]
    }
}

/// `None` where there are too few CPUs.
fn shape() -> anyhow::Result<Option<Shape>> {
    let shape = Shape::here()?;
    Ok((shape.cpus >= 8).then_some(shape))
}

/// The scene, its agent, and who runs in it.
struct Scene {
    node: Node,
    agent: Option<Agent>,
    running: Vec<(Pod, Running)>,
}

impl Scene {
    fn new(settings: &str) -> anyhow::Result<Self> {
        let node = Node::new()?.with_pods_on_its_state();
        node.configure(settings)?;
        let mut scene = Self {
            node,
            agent: None,
            running: Vec::new(),
        };
        scene.start()?;
        Ok(scene)
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let config = self.node.configuration();
        let options = Options::default()
            .on_tracepoints()
            .flag("--config", &config.to_string_lossy());
        self.agent = Some(self.node.agent(&options)?);
        Ok(())
    }

    /// Ends the agent, and starts another with these settings.
    fn start_with(&mut self, settings: &str) -> anyhow::Result<()> {
        self.agent.take().context("there is an agent")?.stop()?;
        self.node.configure(settings)?;
        self.start()
    }

    /// As after `kill -9`.
    fn start_again(&mut self) -> anyhow::Result<()> {
        self.agent.take().context("there is an agent")?.kill()?;
        self.start()
    }

    /// Applies pods one after the other, as far as the plan is that they run. Returns the plan.
    fn run(&mut self, pods: Vec<Pod>) -> anyhow::Result<Plan> {
        let plan = Plan::of(&self.node, &pods.iter().collect::<Vec<_>>())?;
        for pod in &pods {
            if plan.container(pod)?.is_some() {
                let running = self.node.hog(pod, &format!("hold --mb {HOG_MB}"))?;
                self.running.push((pod.clone(), running));
            } else {
                self.is_refused(pod)?;
            }
        }
        Ok(plan)
    }

    fn is_refused(&self, pod: &Pod) -> anyhow::Result<()> {
        self.node.write(pod)?;
        let mut running = self.node.exec(pod, &["true"])?;
        let gone = running.process.wait_gone(TIMEOUT);
        let output = self.node.output(pod);
        ensure!(gone, "{} was started: {output}", pod.name);
        ensure!(output.contains("is not started"), "{}: {output}", pod.name);
        Ok(())
    }

    /// Everybody is there, soon.
    fn is_at(&self, places: &[Place]) -> anyhow::Result<()> {
        let agent = self.agent.as_ref().context("there is an agent")?;
        for ((pod, running), place) in self.running.iter().zip(places) {
            let is_there = || Place::of(running).is_ok_and(|own| own == *place);
            ensure!(
                wait_until(TIMEOUT, Duration::from_millis(50), is_there),
                "{} is to be at {place:?}, and is at {:?}; the agent: {}; {:#?}",
                pod.name,
                Place::of(running),
                agent.errors(),
                agent.events
            );
            let pages = pages(running)?;
            let elsewhere: u64 = pages
                .iter()
                .filter(|(node, _)| !place.nodes.contains(**node))
                .map(|(_, pages)| pages)
                .sum();
            ensure!(
                pages.values().sum::<u64>() >= HOG_MB << 20 >> 12 && elsewhere == 0,
                "{}: memory is to be on nodes {}, and pages by node are {pages:?}",
                pod.name,
                place.nodes
            );
        }
        Ok(())
    }

    /// Where everybody is now.
    fn places(&self) -> anyhow::Result<Vec<Place>> {
        self.running
            .iter()
            .map(|(_, running)| Place::of(running))
            .collect()
    }

    /// What the plan says of everybody who runs.
    fn planned(&self, plan: &Plan) -> anyhow::Result<Vec<Place>> {
        let all = fs::read_to_string("/sys/devices/system/node/has_memory")?;
        let all = CpuSet::parse(&all)?.iter().collect();
        let place = |(pod, _): &(Pod, Running)| {
            let nodes = plan.container(pod)?.and_then(|own| own.memory_nodes);
            Ok(Place {
                cpus: plan.cpus(pod)?,
                nodes: nodes.unwrap_or(all),
            })
        };
        self.running.iter().map(place).collect()
    }

    fn end(mut self) -> Outcome {
        self.agent.take().context("there is an agent")?.stop()?;
        Ok(Done::Passed)
    }
}

/// As planned, and so again after a restart.
fn follows_the_plan(more: &str) -> Outcome {
    let Some(shape) = shape()? else {
        return Ok(Done::Skipped(Lacks::EightCpus));
    };
    let mut scene = Scene::new(&settings("0", more))?;
    let mut pods = vec![Pod::best_effort("shared")];
    pods.extend(shape.pods());
    let plan = scene.run(pods)?;
    let planned = scene.planned(&plan)?;
    scene.is_at(&planned)?;
    for ((pod, _), place) in scene.running.iter().zip(&planned) {
        eprintln!("{}: CPUs {}, nodes {}", pod.name, place.cpus, place.nodes);
    }
    let exclusive = |own: &&Place| own.cpus != plan.shared_pool();
    let own: u32 = planned
        .iter()
        .filter(exclusive)
        .map(|own| own.cpus.len())
        .sum();
    ensure!(own > 0, "nobody has CPUs of its own: {plan:?}");
    ensure!(
        (own + plan.shared_pool().len()) as usize == shape.cpus,
        "CPUs are missing: {plan:?}"
    );

    scene.start_again()?;
    std::thread::sleep(LOOKS);
    scene.is_at(&planned)?;
    scene.end()
}

fn packed() -> Outcome {
    follows_the_plan(PACKED)
}

fn whole_cores() -> Outcome {
    follows_the_plan(WHOLE_CORES)
}

fn spread() -> Outcome {
    follows_the_plan(SPREAD)
}

fn one_cache() -> Outcome {
    follows_the_plan(ONE_CACHE)
}

fn changed() -> Outcome {
    if shape()?.is_none() {
        return Ok(Done::Skipped(Lacks::EightCpus));
    }
    let mut scene = Scene::new(&settings("0", PACKED))?;
    let pods = vec![
        Pod::best_effort("shared"),
        Pod::guaranteed("moved", "2", "64Mi"),
        Pod::guaranteed("kept", "2", "64Mi"),
    ];
    let plan = scene.run(pods)?;
    let planned = scene.planned(&plan)?;
    scene.is_at(&planned)?;

    for options in [SPREAD, WHOLE_CORES] {
        scene.start_with(&settings("0", options))?;
        std::thread::sleep(LOOKS);
        scene.is_at(&planned)?;
    }

    // A CPU of one pod is not to be given away any more.
    let lost = planned[1].cpus.first().context("it has CPUs")?;
    scene.start_with(&settings(&format!("0,{lost}"), PACKED))?;
    let moved = || Ok::<_, anyhow::Error>(scene.places()?[1].cpus);
    let has_moved = || moved().is_ok_and(|cpus| !cpus.contains(lost) && cpus.len() == 2);
    ensure!(
        wait_until(TIMEOUT, Duration::from_millis(50), has_moved),
        "CPU {lost} is reserved, and its pod is on {}",
        moved()?
    );
    let cpus = moved()?;
    ensure!(
        cpus.is_disjoint(&planned[2].cpus) && !cpus.contains(0),
        "it moved to {cpus}, where others are"
    );
    let all = plan.shared_pool() | planned[1].cpus | planned[2].cpus;
    let shared = Place {
        cpus: all - cpus - planned[2].cpus,
        nodes: planned[0].nodes,
    };
    let now = Place {
        cpus,
        nodes: planned[1].nodes,
    };
    scene.is_at(&[shared, now, planned[2].clone()])?;

    // Without policies everybody shares everything.
    scene.start_with("evictionHard: {memory.available: 1Mi}\n")?;
    let free = Place {
        cpus: all,
        nodes: planned[0].nodes,
    };
    scene.is_at(&[free.clone(), free.clone(), free])?;
    scene.end()
}
