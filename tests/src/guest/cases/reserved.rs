//! Reservations that are enforced on the cgroups of the system and of Kubernetes' daemons, on a real kernel: written,
//! given back, and refused where they could not hold.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use plimsoll_core::kube::cgroup_config::{milli_cpu_to_shares, shares_to_weight};

use super::super::agent::Options;
use super::super::cgroup;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::memory::mib;
use super::super::node::Node;
use super::super::process::{Guard, program, wait_log};
use super::qos::comes_to;
use super::{EVICTION_TIMEOUT, needs_memory_v2, whole_tree};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "reserved::limits_are_written_and_given_back",
        on: On::Once(Machine::V7_2),
        run: written_and_given_back,
    },
    Test {
        name: "reserved::a_reservation_below_what_is_used_kills_nobody",
        on: On::Weekly(Machine::V7_2),
        run: below_usage,
    },
    Test {
        name: "reserved::a_cgroup_without_the_controllers_or_none_at_all_is_refused",
        on: On::Once(Machine::V7_2),
        run: refused,
    },
];

/// cgroup v2 directories of this test alone, parents first; removed at the end.
struct Cgroups(Vec<PathBuf>);

impl Cgroups {
    /// Those below the root, each with what its parent passes on.
    fn make(names: &[&str]) -> anyhow::Result<Self> {
        let mut made = Self(Vec::new());
        for name in names {
            let path = cgroup::memory_root().join(name);
            fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
            made.0.push(path);
        }
        Ok(made)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            if !cgroup::remove(path) {
                eprintln!("{} is still there", path.display());
            }
        }
    }
}

/// An agent with these settings, and nothing else that evicts.
fn options(node: &Node, settings: &str) -> anyhow::Result<Options> {
    let config = node.configure(&format!(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n\
         evictionHard: {{memory.available: 1Mi}}\n{settings}"
    ))?;
    Ok(Options::default()
        .on_tracepoints()
        .flag("--config", &config.to_string_lossy()))
}

/// Nothing in any hierarchy differs from `before`.
fn unchanged(before: &[(PathBuf, String)], since: &str) -> anyhow::Result<()> {
    let after = whole_tree();
    let changed: Vec<_> = after.iter().filter(|knob| !before.contains(knob)).collect();
    let missing: Vec<_> = before.iter().filter(|knob| !after.contains(knob)).collect();
    ensure!(
        changed.is_empty() && missing.is_empty(),
        "{since}: changed or new: {changed:?}; was: {missing:?}"
    );
    Ok(())
}

fn is_limited(cgroup: &Path, memory_mib: u64, milli_cpu: i64, pids: u64) -> anyhow::Result<()> {
    comes_to(cgroup, "memory.max", mib(memory_mib))?;
    let weight = shares_to_weight(milli_cpu_to_shares(milli_cpu));
    comes_to(cgroup, "cpu.weight", weight)?;
    comes_to(cgroup, "pids.max", pids)
}

const BOTH: &str = "systemReserved: {cpu: 200m, memory: 96Mi, pid: \"300\"}\n\
    kubeReserved: {cpu: 700m, memory: 64Mi, pid: \"150\"}\n\
    systemReservedCgroup: /reserved-system\nkubeReservedCgroup: /reserved-runtime/kubelet\n\
    enforceNodeAllocatable: [pods, system-reserved, kube-reserved]\n";

fn written_and_given_back() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let node = Node::new()?;
    let cgroups = Cgroups::make(&["reserved-system", "reserved-runtime"])?;
    let (system, runtime) = (&cgroups.0[0], &cgroups.0[1]);
    fs::write(runtime.join("cgroup.subtree_control"), "+cpu +memory +pids")?;
    let kubelet = Cgroups::make(&["reserved-runtime/kubelet"])?;
    let kubelet = &kubelet.0[0];
    // What somebody else has set comes back, not the kernel's default.
    fs::write(system.join("memory.max"), mib(512).to_string())?;
    let options = options(&node, BOTH)?;
    let before = whole_tree();
    let in_force = || {
        is_limited(system, 96, 200, 300)?;
        is_limited(kubelet, 64, 700, 150)?;
        // The cgroup between is nobody's.
        comes_to(runtime, "memory.max", "max")
    };

    let agent = node.agent(&options)?;
    in_force()?;
    let allocatable = super::memory::read()?.total_bytes - mib(96 + 64);
    let kubepods = cgroup::memory_root().join("kubepods");
    comes_to(&kubepods, "memory.max", allocatable)?;
    agent.stop()?;
    unchanged(&before, "after an agent that was stopped")?;

    let agent = node.agent(&options)?;
    in_force()?;
    agent.kill().context("killing the agent")?;
    in_force().context("of a killed agent")?;
    // The next one enforces nothing there.
    node.agent(&Options::hard("memory.available<1Mi").on_tracepoints())?
        .stop()?;
    unchanged(&before, "after a killed agent and its successor")?;
    Ok(Done::Passed)
}

/// A process in a cgroup that is no pod's, with so much memory.
fn daemon_in(node: &Node, cgroup: &Path, mb: u64) -> anyhow::Result<Guard> {
    let log = node.directory.join("log/daemon.log");
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec {} --log {} hold --mb {mb}",
        cgroup.display(),
        program("hog").display(),
        log.display()
    );
    let child = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::null())
        .spawn()
        .context("starting a daemon")?;
    let guard = Guard(child);
    wait_log(&log, "ready", EVICTION_TIMEOUT).context("the daemon did not come up")?;
    Ok(guard)
}

fn below_usage() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let node = Node::new()?;
    let cgroups = Cgroups::make(&["reserved-system"])?;
    let system = &cgroups.0[0];
    let mut daemon = daemon_in(&node, system, 64)?;
    let agent = node.agent(&options(
        &node,
        "systemReserved: {memory: 16Mi}\nsystemReservedCgroup: /reserved-system\n\
         enforceNodeAllocatable: [pods, system-reserved]\n",
    )?)?;
    let text = fs::read_to_string(system.join("memory.max"))?;
    let limit: u64 = text
        .trim()
        .parse()
        .with_context(|| format!("memory.max is {text}"))?;
    ensure!(
        (mib(64)..mib(96)).contains(&limit),
        "the limit is {limit}, the daemon has 64 MiB"
    );
    ensure!(daemon.is_running()?, "the daemon was killed");
    agent.stop()?;
    comes_to(system, "memory.max", "max")?;
    Ok(Done::Passed)
}

/// The agent does not start, says all of `words`, and leaves everything as it was.
fn refuses(node: &Node, settings: &str, words: &[&str]) -> anyhow::Result<()> {
    let options = options(node, settings)?;
    let before = whole_tree();
    let (mut command, errors) = node.agent_command(&options)?;
    let status = command
        .stdout(Stdio::null())
        .status()
        .context("starting plimsoll run")?;
    let said = fs::read_to_string(&errors)?;
    ensure!(
        status.code() == Some(1) && words.iter().all(|word| said.contains(word)),
        "it ended with {status} and said: {said}"
    );
    unchanged(&before, "after an agent that did not start")
}

fn refused() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let node = Node::new()?;
    let _cgroups = Cgroups::make(&["reserved-runtime", "reserved-runtime/kubelet"])?;
    let enforced = "kubeReserved: {memory: 64Mi}\nenforceNodeAllocatable: [pods, kube-reserved]\n";
    refuses(
        &node,
        &format!("{enforced}kubeReservedCgroup: /reserved-runtime/kubelet\n"),
        &[
            "kubeReservedCgroup: /reserved-runtime/kubelet does not have the controller memory",
            "enable it in cgroup.subtree_control",
            "take kube-reserved out of enforceNodeAllocatable",
        ],
    )?;
    refuses(
        &node,
        &format!("{enforced}kubeReservedCgroup: /not-there\n"),
        &[
            "kubeReservedCgroup: /not-there does not exist in /sys/fs/cgroup",
            "create it",
        ],
    )?;
    refuses(&node, enforced, &["kubeReservedCgroup"])?;
    Ok(Done::Passed)
}
