//! One run: a process of its own, from the agent's start to its end.

use std::path::PathBuf;
use std::sync::OnceLock;

use clap::Parser;
use plimsoll::daemon::start::{RunArgs, run};
use serde::{Deserialize, Serialize};

use crate::bpf::Bpf;
use crate::check::{Broken, Checks};
use crate::fault::{Call, Plan};
use crate::kernel;
use crate::machine::{Happening, Machine, SECOND};
use crate::progress;
use crate::random::Random;
use crate::scenario::Scenario;
use crate::threads::Thread;
use crate::world::{self, EPOCH_NS, World, world};

/// More than any run needs, at once and in each second: beyond, the agent never rests.
pub(crate) const OPERATIONS_MAX: u64 = 2_000_000;
pub(crate) const OPERATIONS_PER_SECOND_MAX: u64 = 20_000;

/// Below a run's directory.
pub(crate) const MANIFESTS: &str = "manifests";

/// What became of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) broken: Vec<Broken>,
    pub(crate) trace: u64,
    pub(crate) operations: u64,
    pub(crate) turns: u64,
    pub(crate) virtual_ns: u64,
    pub(crate) longest_turn_ns: u64,
    pub(crate) most_operations: u64,
    pub(crate) crossings: u64,
    pub(crate) slowest_answer_ns: u64,
    pub(crate) evictions: u64,
    pub(crate) oom_kills: u64,
    pub(crate) lines: u64,
    pub(crate) result: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) restarts: u32,
    /// Of the loop's time, what a flood has taken at most, percent.
    pub(crate) largest_share: u64,
}

/// How a run is to be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Order {
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
    pub(crate) prints: bool,
    /// As if the clock did not jump.
    pub(crate) without_clock: bool,
}

#[derive(Debug, Parser)]
struct AgentArgs {
    #[command(flatten)]
    run: RunArgs,
}

static ARGUMENTS: OnceLock<RunArgs> = OnceLock::new();
static REPORT_FD: OnceLock<i32> = OnceLock::new();

/// Runs a scenario in this process, which ends with it: the report goes into `report`.
pub(crate) fn run_here(scenario: &Scenario, order: Order, root: PathBuf, report: i32) -> ! {
    REPORT_FD.set(report).ok();
    for dir in [MANIFESTS, "state", "kubelet/pods", "logs"] {
        std::fs::create_dir_all(root.join(dir)).ok();
    }
    let place = |name: &str| root.join(name).to_string_lossy().into_owned();
    let mut arguments = vec!["plimsoll-agent".to_owned()];
    let mut add = |name: &str, value: String| arguments.extend([format!("--{name}"), value]);
    add("manifests", place(MANIFESTS));
    add("state-dir", place("state"));
    add("journal", place("journal"));
    add("kubelet-dir", place("kubelet"));
    add("logs-dir", place("logs"));
    add("output", scenario.output.to_owned());
    if let Some(listed) = scenario.without {
        add("without", listed.to_owned());
    }
    if let Some(config) = &scenario.config {
        std::fs::write(root.join("config.yaml"), config).ok();
        add("config", place("config.yaml"));
    } else {
        add(
            "eviction-hard",
            format!("memory.available<{}Mi", scenario.threshold_bytes >> 20),
        );
    }
    match AgentArgs::try_parse_from(arguments) {
        Ok(parsed) => ARGUMENTS.set(parsed.run).ok(),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    };
    prepare(scenario, &root);
    let has_faults = !order.plan.at.is_empty();
    let mut machine = Machine::new(
        root.clone(),
        scenario.layout,
        scenario.total_bytes,
        EPOCH_NS,
    );
    machine.mutex_ns = scenario.mutex_ns;
    machine.oom_adj_ns = scenario.oom_adj_ns;
    machine.heap_ns = scenario.heap_ns;
    machine.mount_first(scenario.mounts);
    for (at_ns, happening) in &scenario.happenings {
        let is_late = matches!(happening, Happening::Start(new) if new.is_manifest_late);
        if let (Happening::Clock(_), true) = (happening, order.without_clock) {
            continue;
        }
        if let (Happening::Start(new), false) = (happening, is_late) {
            new.write_manifest(&root);
        }
        machine.at(EPOCH_NS + at_ns, happening.clone());
    }
    machine.stop_ns = EPOCH_NS + scenario.stop_ns;
    machine.at(machine.stop_ns, Happening::StopAgent);
    machine.at(EPOCH_NS + scenario.stop_ns + 120 * SECOND, Happening::End);
    let mut checks = Checks::default();
    checks.threshold_bytes = scenario.threshold_bytes;
    checks.prints = order.prints;
    let mut bpf = Bpf::default();
    bpf.is_wanted = scenario.has_bpf;
    world::begin(World {
        root,
        threads: Vec::new(),
        current: 0,
        now_ns: EPOCH_NS,
        poked: false,
        fds: std::collections::BTreeMap::new(),
        machine,
        bpf,
        checks,
        plan: Plan {
            prints: order.prints && order.plan.prints,
            ..order.plan
        },
        random: Random::new(order.seed),
        incarnation: 0,
        cgroup_dirs: std::collections::BTreeSet::new(),
        priority: std::collections::BTreeSet::new(),
        // A call that fails, and an agent that is killed, may miss what a run is for.
        expects: if has_faults {
            Vec::new()
        } else {
            scenario.expects.clone()
        },
        is_oom_ruled_out: scenario.is_oom_ruled_out,
    });
    start_agent(world());
    kernel::wake(&std::sync::Arc::clone(&world().threads[0].baton));
    loop {
        std::thread::park();
    }
}

/// A thread that is the model's from its first instruction on.
pub(crate) fn start_agent(world: &mut World) {
    if !world.threads.is_empty() {
        world.incarnation += 1;
    }
    let id = world.threads.len();
    let thread = Thread::new(world.now_ns, world.incarnation, true);
    let baton = std::sync::Arc::clone(&thread.baton);
    world.threads.push(thread);
    let body = move || {
        {
            let _inside = world::stay_inside();
            world::adopt(id + 1);
            kernel::wait_for(&baton);
        }
        let result = std::panic::catch_unwind(|| ARGUMENTS.get().map(run));
        let _inside = world::stay_inside();
        let world = self::world();
        let result = match result {
            Ok(Some(Err(error))) => format!("{error:#}"),
            Ok(_) => String::new(),
            Err(_) => {
                let now_ns = world.now_ns;
                world
                    .checks
                    .broken("panic", "the loop panicked".to_owned(), now_ns);
                "it panicked".to_owned()
            }
        };
        let is_asked = world.now_ns >= world.machine.stop_ns;
        world.checks.ended(&result, is_asked, world.now_ns);
        world.checks.result = Some(result);
        world.check_end();
        world.check_expected();
        report_and_exit(world);
    };
    let spawned = std::thread::Builder::new()
        .name("loop".to_owned())
        .stack_size(8 << 20)
        .spawn(body);
    if spawned.is_err() {
        world.give_up("no thread for the agent");
    }
}

/// What an agent of an earlier version has left: anybody could open it.
fn prepare(scenario: &Scenario, root: &std::path::Path) {
    if !scenario.has_earlier_state {
        return;
    }
    use std::os::unix::fs::PermissionsExt as _;
    for file in ["agent.lock", "knobs.jsonl", "pods.jsonl"] {
        let path = root.join("state").join(file);
        std::fs::write(&path, "").ok();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).ok();
    }
}

impl World {
    /// A run in which that has not happened for which it was made proves nothing.
    fn check_expected(&mut self) {
        for (what, has_happened) in std::mem::take(&mut self.expects) {
            if !self.checks.has_failed && !has_happened(self) {
                let text = format!("it did not happen that {what}");
                self.checks.broken("expected", text, self.now_ns);
            }
        }
        let is_ruled_out = self.is_oom_ruled_out && !self.checks.was_held_up;
        if is_ruled_out && self.checks.has_served && self.checks.oom_kills > 0 {
            let text = "the kernel's OOM killer was faster than the agent".to_owned();
            self.checks.broken("oom", text, self.now_ns);
        }
    }
}

/// SIGTERM to the agent.
pub(crate) fn stop_agent(_world: &mut World) {
    // SAFETY: this thread takes it, at once; the agent's handler writes into a pipe.
    unsafe {
        let process = kernel::raw(libc::SYS_getpid, [0; 6]).unsigned_abs();
        let thread = kernel::raw(libc::SYS_gettid, [0; 6]).unsigned_abs();
        kernel::raw(
            libc::SYS_tgkill,
            [process, thread, libc::SIGTERM as usize, 0, 0, 0],
        );
    }
}

/// The end of this process.
pub(crate) fn report_and_exit(world: &mut World) -> ! {
    let checks = &world.checks;
    let report = Report {
        broken: checks.broken.clone(),
        trace: world.plan.trace,
        operations: world.plan.count,
        turns: checks.turns,
        virtual_ns: world.now_ns - EPOCH_NS,
        longest_turn_ns: checks.longest_turn_ns,
        most_operations: checks.most_operations,
        crossings: checks.crossings,
        slowest_answer_ns: checks.slowest_answer_ns,
        evictions: checks.evictions,
        oom_kills: checks.oom_kills,
        lines: checks.lines,
        result: checks
            .result
            .clone()
            .unwrap_or_else(|| "it did not end".to_owned()),
        calls: world.plan.calls.clone(),
        restarts: world.incarnation,
        largest_share: checks.largest_share,
    };
    let text = serde_json::to_vec(&report).unwrap_or_default();
    let fd = REPORT_FD.get().copied().unwrap_or(2);
    let mut rest = text.as_slice();
    while !rest.is_empty() {
        // SAFETY: bytes that live for the call.
        let written = unsafe {
            kernel::raw(
                libc::SYS_write,
                [fd as usize, rest.as_ptr() as usize, rest.len(), 0, 0, 0],
            )
        };
        let Ok(written) = usize::try_from(written) else {
            break;
        };
        rest = &rest[written..];
    }
    // SAFETY: nothing is to be cleaned up: the directory is the parent's.
    unsafe { libc::_exit(0) }
}

/// Runs a scenario in a process of its own.
pub(crate) fn run_apart(scenario: &Scenario, order: Order) -> Report {
    let base = ["/dev/shm", "/tmp"]
        .into_iter()
        .find(|dir| std::path::Path::new(dir).is_dir())
        .unwrap_or(".");
    let root = PathBuf::from(base).join(format!("plimsoll-simulate-{}", std::process::id()));
    std::fs::remove_dir_all(&root).ok();
    std::fs::create_dir_all(&root).ok();
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe(ends.as_mut_ptr()) } != 0 {
        return failed("no pipe");
    }
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        0 => run_here(scenario, order, root, ends[1]),
        pid if pid > 0 => {
            // SAFETY: both are ours.
            unsafe { libc::close(ends[1]) };
            let mut text = String::new();
            // SAFETY: this is its only owner.
            let mut from: std::fs::File = unsafe { std::os::fd::FromRawFd::from_raw_fd(ends[0]) };
            progress::wait_for(&from);
            std::io::Read::read_to_string(&mut from, &mut text).ok();
            let mut status = 0;
            // SAFETY: room for a status.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            std::fs::remove_dir_all(&root).ok();
            serde_json::from_str(&text).unwrap_or_else(|_| {
                failed(&format!("the run's process ended with status {status:#x}"))
            })
        }
        _ => failed("no process"),
    }
}

fn failed(why: &str) -> Report {
    let broken = Broken {
        rule: "stuck".to_owned(),
        text: why.to_owned(),
        at_ms: 0,
    };
    Report {
        broken: vec![broken],
        ..Report::default()
    }
}
