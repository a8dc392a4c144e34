//! What outlives the agent: programs that are pinned, and nothing at all after `plimsoll uninstall`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll::kernel::decode::{Body, Record};
use plimsoll::kernel::object::object;
use plimsoll::kernel::{
    AtEnd, Bpf, BpfOptions, Counts, HookReport, HookSet, HookState, PinOwner, Pinning,
};
use plimsoll_abi::Kind;

use super::super::agent::Options;
use super::super::cgroup;
use super::super::clock::{now_ns, wait_until};
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::memory::mib;
use super::super::node::Node;
use super::super::pod::Pod;
use super::super::process::{hog_in, program};
use super::whole_tree;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "restart::what_happens_without_an_agent_is_read_by_the_next",
        on: On::First(&[Machine::Hybrid, Machine::V7_2]),
        run: crossing_without_an_agent,
    },
    Test {
        name: "restart::another_version_and_half_a_set_are_replaced",
        on: On::Weekly(Machine::V6_1),
        run: other_sets_are_replaced,
    },
    Test {
        name: "restart::programs_survive_kill_9_and_not_a_stop",
        on: On::Once(Machine::V7_2),
        run: killed_and_stopped,
    },
    Test {
        name: "restart::uninstall_leaves_the_machine_as_it_was",
        on: On::First(&[Machine::V6_12, Machine::Hybrid]),
        run: uninstall,
    },
];

/// Time for a hog to take its memory.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Where agents pin.
const PINS: &str = "/sys/fs/bpf";

fn options(window_ms: u64) -> BpfOptions {
    BpfOptions {
        hooks: HookSet::ALL,
        without: &[],
        window: Duration::from_millis(window_ms),
        counts: Counts::EachCgroup,
    }
}

/// A state directory that is gone at the end, and its pins.
struct Owner {
    dir: PathBuf,
    pins: PinOwner,
}

impl Owner {
    fn new(name: &str) -> anyhow::Result<Self> {
        let dir = PathBuf::from(format!("/tmp/restart-{name}"));
        fs::create_dir_all(&dir)?;
        let pins = PinOwner::of(&dir);
        pins.remove()?;
        Ok(Self { dir, pins })
    }

    fn load(&self, window_ms: u64) -> anyhow::Result<(Bpf, Pinning, Vec<String>)> {
        let mut said = Vec::new();
        let (bpf, pinning) =
            Bpf::load_pinned(object()?, &options(window_ms), &self.pins, |line| {
                said.push(line);
            })?;
        Ok((bpf, pinning, said))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Err(error) = self.pins.remove() {
            eprintln!("{error}");
        }
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("{}: {error}", self.dir.display());
        }
    }
}

fn drain(bpf: &mut Bpf, mut each: impl FnMut(Record<'_>)) {
    for _ in 0..64 {
        bpf.drain_critical(1024, &mut each);
        bpf.drain_lifecycle(1024, &mut each);
        bpf.drain_pressure(1024, &mut each);
    }
}

/// A cgroup with a memory counter, removed at the end.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> anyhow::Result<Self> {
        let root = cgroup::memory_root();
        let control = root.join("cgroup.subtree_control");
        if control.exists() {
            fs::write(control, "+memory")?;
        }
        let path = root.join(name);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !cgroup::remove(&self.0) {
            eprintln!("{} stays", self.0.display());
        }
    }
}

/// A usable hook's figures, or why it is none and whether that is a loss.
type Told = Result<HookState, (String, bool)>;

/// What is told of each hook, with the figures of those that are attached.
fn hooks_of(bpf: &Bpf) -> Vec<(&'static str, Told)> {
    let state = |hook: &HookReport| match &hook.state {
        HookState::Unavailable(why) => Err((why.beside_target(), why.is_loss())),
        usable => Ok(usable.clone()),
    };
    bpf.hooks()
        .iter()
        .map(|hook| (hook.program, state(hook)))
        .collect()
}

fn crossing_without_an_agent() -> Outcome {
    let owner = Owner::new("crossing")?;
    let group = Group::new("restart-crossing")?;
    let usage = ["memory.current", "memory.usage_in_bytes"]
        .map(|name| group.0.join(name))
        .into_iter()
        .find(|path| path.exists())
        .context("the cgroup has no usage file")?;

    let (mut bpf, pinning, said) = owner.load(100)?;
    ensure!(
        matches!(pinning, Pinning::Made { .. }) && said.is_empty(),
        "{pinning}; {said:?}"
    );
    let hooks = hooks_of(&bpf);
    drain(&mut bpf, |_| {});
    let before = bpf.account()?;
    let armed_at = bpf.charged_bytes().context("charges are counted")? + mib(4);
    let armed = bpf.arm_charges(armed_at)?;
    // What a SIGKILL does to it: its descriptors are closed, and nothing else is done.
    drop(bpf);

    // While no agent runs the programs go on, and the armed threshold is crossed.
    let hog = hog_in(&group.0, "--log /dev/null hold --mb 32")?;
    let is_full = wait_until(TIMEOUT, Duration::from_millis(50), || {
        let usage = fs::read_to_string(&usage).unwrap_or_default();
        usage.trim().parse().is_ok_and(|bytes: u64| bytes > mib(32))
    });
    ensure!(is_full, "the hog did not get its memory");
    drop(hog);
    let taken_over_ns = now_ns();

    let (mut bpf, pinning, said) = owner.load(100)?;
    ensure!(
        matches!(pinning, Pinning::TakenOver { .. }) && said.is_empty(),
        "{pinning}; {said:?}"
    );
    ensure!(
        hooks_of(&bpf) == hooks,
        "hooks {:?}, before {hooks:?}",
        hooks_of(&bpf)
    );
    let mut charged = Vec::new();
    drain(&mut bpf, |record| {
        if let Body::ChargesReached {
            charged_bytes,
            generation,
            ..
        } = record.body
        {
            charged.push((
                generation,
                charged_bytes >= armed_at,
                record.ts_ns < taken_over_ns,
            ));
        }
    });
    ensure!(
        charged == [(armed, true, true)] && bpf.newest_arming() == armed,
        "crossings {charged:?}; {armed:?} was armed at {armed_at} bytes, the newest arming is {:?}",
        bpf.newest_arming()
    );
    let after = bpf.account()?;
    let attach = |account: &plimsoll::kernel::Account| account.of(Kind::CgroupAttach);
    ensure!(
        attach(&after).consumed > attach(&before).consumed
            && attach(&after).produced > attach(&before).produced
            && after.lost() == 0,
        "counts do not go on: {:?}, before {:?}",
        attach(&after),
        attach(&before)
    );
    // What this one arms is newer than all that the one before has armed.
    let next = bpf.arm_charges(u64::MAX / 2)?;
    ensure!(
        next > armed && bpf.newest_arming() == next,
        "{next:?} was armed after {armed:?}"
    );
    let account = bpf.finish(AtEnd::Detach, |bpf| drain(bpf, |_| {}))?;
    let open: Vec<_> = account.open().collect();
    ensure!(open.is_empty(), "over both agents this is open: {open:?}");
    ensure!(
        owner.pins.sets()?.is_empty(),
        "pins are left: {:?}",
        owner.pins.sets()?
    );
    Ok(Done::Passed)
}

/// Makes a set incomplete.
type Tear = fn(&Path) -> std::io::Result<()>;

fn other_sets_are_replaced() -> Outcome {
    let owner = Owner::new("sets")?;
    let (bpf, pinning, _) = owner.load(100)?;
    drop(bpf);
    let Pinning::Made { path: first } = pinning else {
        anyhow::bail!("{pinning}");
    };
    // Other numbers in the frozen data: another identity.
    let (bpf, pinning, said) = owner.load(101)?;
    drop(bpf);
    let Pinning::Made { path: second } = pinning else {
        anyhow::bail!("{pinning}");
    };
    ensure!(
        first != second && !first.exists() && said.len() == 1 && said[0].contains("removed"),
        "{first:?}, {second:?}, {said:?}"
    );
    // Somebody removes a link; then the agent did not finish.
    let torn: [Tear; 2] = [
        |set| fs::remove_file(set.join("links/cgroup_mkdir")),
        |set| fs::remove_dir(set.join("complete")),
    ];
    for tear in torn {
        tear(&second)?;
        let (mut bpf, pinning, said) = owner.load(101)?;
        ensure!(
            matches!(pinning, Pinning::Made { .. })
                && said.iter().any(|line| line.contains("incomplete")),
            "{pinning}; {said:?}"
        );
        // And it works.
        drain(&mut bpf, |_| {});
        let group = Group::new("restart-torn")?;
        let id = fs::metadata(&group.0)?.ino();
        let mut made = 0;
        drain(&mut bpf, |record| {
            made += u32::from(
                record.cgroup_id == id && matches!(record.body, Body::CgroupMkdir { .. }),
            );
        });
        ensure!(made == 1, "{made} records of a new cgroup");
    }
    Ok(Done::Passed)
}

fn killed_and_stopped() -> Outcome {
    let node = Node::new()?;
    let pins = PinOwner::of(&node.directory.join("state"));
    let options = Options::hard("memory.available<1Mi");
    let programs =
        |agent: &super::super::agent::Agent| agent.started.programs.clone().unwrap_or_default();
    let first = node.agent(&options)?;
    ensure!(
        programs(&first).starts_with("pinned at"),
        "{}",
        programs(&first)
    );
    first.kill()?;
    let sets = pins.sets()?;
    ensure!(sets.len() == 1, "{sets:?}");
    // Nobody reads; it is all there for the next one.
    let group = Group::new("restart-meanwhile")?;
    drop(group);
    let second = node.agent(&options)?;
    ensure!(
        programs(&second).starts_with("taken over at"),
        "{}",
        programs(&second)
    );
    let records = second.stop()?.records;
    ensure!(
        records.open == 0 && records.produced > 0 && records.dropped == 0,
        "{records:?}"
    );
    ensure!(
        !pins.dir().exists(),
        "{} is left by an agent that was stopped",
        pins.dir().display()
    );
    let kept = node.agent(&options.flag("--keep-on-exit", ""))?;
    ensure!(
        programs(&kept).starts_with("pinned at"),
        "{}",
        programs(&kept)
    );
    kept.stop()?;
    ensure!(pins.sets()?.len() == 1, "{:?}", pins.sets()?);
    Ok(Done::Passed)
}

/// Everything below the BPF file system.
fn bpffs() -> Vec<PathBuf> {
    cgroup::tree(Path::new(PINS))
}

/// `oom_score_adj` of every process, by pid and name.
fn oom_scores() -> BTreeMap<(u32, String), String> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return BTreeMap::new();
    };
    processes
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_string_lossy().parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            // Kernel threads come and go.
            let is_kernel = fs::read(entry.path().join("cmdline")).ok()?.is_empty();
            let score = fs::read_to_string(entry.path().join("oom_score_adj")).ok()?;
            (!is_kernel).then(|| ((pid, name.trim().to_owned()), score.trim().to_owned()))
        })
        .collect()
}

fn run_uninstall(node: &Node, flags: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(program("plimsoll"))
        .arg("uninstall")
        .arg("--state-dir")
        .arg(node.directory.join("state"))
        .args(flags)
        .output()
        .context("starting plimsoll uninstall")?;
    let said = [stdout, stderr].concat();
    Ok((status.code(), String::from_utf8_lossy(&said).into_owned()))
}

fn uninstall() -> Outcome {
    let node = Node::new()?.with_pods_on_its_state();
    let state = node.directory.join("state");
    fs::remove_dir(&state)?;
    let before = (whole_tree(), bpffs(), oom_scores());
    let pod = Pod::burstable("bystander", "16Mi");
    let hog = node.hog(&pod, "hold --mb 8")?;
    let agent = node.agent(&Options::hard("memory.available<1Mi"))?;
    let pid = agent.pid().to_string();
    let (status, said) = run_uninstall(&node, &[])?;
    ensure!(
        status == Some(3) && said.contains(&pid) && said.contains("--stop"),
        "while an agent runs: {status:?}: {said}"
    );
    agent.kill()?;
    let killed = (whole_tree(), bpffs());
    let (status, said) = run_uninstall(&node, &["--dry-run"])?;
    ensure!(
        status == Some(0) && said.contains("plimsoll") && said.contains("nothing was changed"),
        "a dry run: {status:?}: {said}"
    );
    ensure!(
        killed == (whole_tree(), bpffs()),
        "a dry run has changed something"
    );
    ensure!(
        killed.1 != before.1,
        "the agent that was killed has pinned nothing"
    );
    // The pod still runs: its cgroup is named and stays, all else goes.
    let (status, said) = run_uninstall(&node, &[])?;
    ensure!(
        status == Some(1) && said.contains(&pod.cgroup()),
        "beside a pod: {status:?}: {said}"
    );
    ensure!(bpffs() == before.1, "pins are left: {:?}", bpffs());
    drop(hog);
    let (status, said) = run_uninstall(&node, &["--output", "json"])?;
    ensure!(status == Some(0), "after the pod: {status:?}: {said}");
    let report: serde_json::Value = serde_json::from_str(&said)?;
    ensure!(report["exitStatus"] == 0, "{report}");
    let after = (whole_tree(), bpffs(), oom_scores());
    let changed: Vec<_> = after
        .0
        .iter()
        .filter(|knob| !before.0.contains(knob))
        .collect();
    let missing: Vec<_> = before
        .0
        .iter()
        .filter(|knob| !after.0.contains(knob))
        .collect();
    ensure!(
        changed.is_empty() && missing.is_empty(),
        "changed or new: {changed:?}; was: {missing:?}; said {said}"
    );
    ensure!(after.1 == before.1, "{:?}, was {:?}", after.1, before.1);
    for (process, score) in &after.2 {
        let was = before.2.get(process);
        ensure!(
            was.is_none_or(|was| was == score),
            "{process:?} has oom_score_adj {score}, had {was:?}"
        );
    }
    ensure!(!state.exists(), "{} is left", state.display());

    // With an agent that runs and is ended by it.
    let mut agent = node.agent(&Options::hard("memory.available<1Mi"))?;
    let (status, said) = run_uninstall(&node, &["--stop"])?;
    ensure!(
        status == Some(0) && said.contains("stopped"),
        "with --stop: {status:?}: {said}"
    );
    ensure!(agent.has_ended()?, "the agent still runs");
    ensure!(
        bpffs() == before.1 && !state.exists(),
        "left: {:?}, {}",
        bpffs(),
        state.exists()
    );
    Ok(Done::Passed)
}
