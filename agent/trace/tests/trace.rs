//! `plimsoll-trace`, the real binary on the real kernel: files, figures, and everything that can be wrong.
//!
//! What needs root, BPF and writable cgroups says so and is left out where they are missing.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "../../tests/notes/mod.rs"]
mod notes;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use plimsoll::host::HostRoot;
use plimsoll::host::cgroup::Controller;
use plimsoll_trace::perfetto::message::{DebugAnnotation, PerfSample, Trace};
use plimsoll_trace::perfetto::read;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn trace(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll-trace"));
    // An agent that happens to run here is nobody's business.
    command.args(["--state-dir", "/nonexistent"]);
    command.args(arguments).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails with what was said, if the status is another.
fn expect(output: &Output, status: i32) -> String {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}");
    said
}

/// A cgroup with a shell that works in it; both are gone at the end.
struct Busy {
    directory: PathBuf,
    path: String,
    shell: Child,
}

impl Busy {
    /// `None`, with a line that says why, where there is no root, no cgroup or no BPF.
    fn start(name: &str) -> Option<Self> {
        let mounts = HostRoot::live().cgroup_mounts().unwrap();
        let memory = mounts.hierarchy_of(Controller::Memory).unwrap();
        let path = format!("plimsoll-trace-{name}-{}", std::process::id());
        let directory = memory.mount.join(&path);
        if let Err(error) = fs::create_dir(&directory) {
            notes::left_out(format_args!("{directory:?}: {error}"));
            return None;
        }
        let works = trace(&["--for", "10ms"]).output().unwrap();
        if !works.status.success() {
            notes::left_out(text(&works.stderr));
            fs::remove_dir(&directory).unwrap();
            return None;
        }
        let script = format!(
            "echo $$ > {}/cgroup.procs && while :; do :; done",
            directory.to_str().unwrap()
        );
        let shell = Command::new("sh").args(["-c", &script]).spawn().unwrap();
        Some(Self {
            directory,
            path: format!("/{path}"),
            shell,
        })
    }

    /// How long its shell has had a CPU.
    fn ran(&self) -> Duration {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.shell.id())).unwrap();
        let ran = text.split(' ').next().unwrap();
        Duration::from_nanos(ran.parse().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.shell.kill().ok();
        self.shell.wait().ok();
        // It is empty as soon as the kernel has taken the process away.
        while fs::remove_dir(&self.directory)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn is_empty(directory: &Path) -> bool {
    directory.read_dir().unwrap().next().is_none()
}

#[test]
fn a_session_shows_the_selected_cgroup_and_no_other() {
    let Some(busy) = Busy::start("session") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = |ending: &str| {
        dir.path()
            .join(format!("t.{ending}"))
            .to_str()
            .unwrap()
            .to_owned()
    };
    let (before, began) = (busy.ran(), Instant::now());
    let output = trace(&["--cgroup", &busy.path, "--for", "1s", "--output", "json"])
        .args([&file("pftrace"), &file("svg")])
        .output()
        .unwrap();
    let (ran, took) = (busy.ran() - before, began.elapsed());
    expect(&output, 0);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let groups = summary["groups"].as_array().unwrap();
    assert_eq!(groups[0]["cgroup"], busy.path.as_str(), "{summary}");
    assert!(
        groups
            .iter()
            .all(|group| group["cgroup"] == busy.path.as_str() || group["samples"] == 0),
        "{summary}"
    );
    // A shell that never rests, on a machine that may be busy: a part of what it had while the program ran, and not
    // more than one CPU.
    let cpu = Duration::from_nanos(groups[0]["cpuNs"].as_u64().unwrap());
    let is_right = cpu > ran / 100 && cpu <= took;
    assert!(is_right, "of {ran:?} in {took:?}: {summary}");
    assert_eq!(summary["files"].as_array().unwrap().len(), 2);

    let svg = fs::read_to_string(file("svg")).unwrap();
    assert!(
        svg.contains("<svg") && svg.contains(&busy.path),
        "no flame graph"
    );
    let trace = read_trace(Path::new(&file("pftrace")));
    // None, on a machine that is not busy.
    assert_eq!(
        said_of_itself(&trace, "samplesDropped").uint,
        summary["losses"]["samplesDropped"].as_u64()
    );
    let selection = said_of_itself(&trace, "selection").text.as_deref();
    assert_eq!(selection, Some(busy.path.as_str()));
    let count = samples(&trace).count() as u64;
    assert_eq!(count, summary["samples"].as_u64().unwrap());
    let data = || {
        trace
            .packet
            .iter()
            .filter_map(|packet| packet.interned_data.as_ref())
    };
    let stacks: Vec<u64> = data()
        .flat_map(|data| data.stacks.iter().filter_map(|stack| stack.id))
        .collect();
    for sample in samples(&trace) {
        let stack = sample.callstack.unwrap();
        assert!(stacks.contains(&stack), "{sample:?}");
    }
}

fn read_trace(path: &Path) -> Trace {
    read(&fs::read(path).unwrap()).unwrap()
}

/// Without those that only say what was lost.
fn samples(trace: &Trace) -> impl Iterator<Item = &PerfSample> {
    let all = trace.packet.iter();
    all.filter_map(|packet| packet.perf_sample.as_ref())
        .filter(|sample| sample.lost.is_none())
}

/// What a trace says of itself and its losses.
fn said_of_itself<'trace>(trace: &'trace Trace, name: &str) -> &'trace DebugAnnotation {
    let all = trace.packet.iter();
    all.filter_map(|packet| packet.track_event.as_ref())
        .flat_map(|event| &event.annotations)
        .find(|annotation| annotation.name.as_deref() == Some(name))
        .unwrap()
}

#[test]
fn a_signal_ends_it_and_everything_is_written() {
    let Some(busy) = Busy::start("signal") else {
        return;
    };
    for signal in [Signal::TERM, Signal::INT] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t.pftrace");
        let mut session = trace(&["--cgroup", &busy.path, "--for", "0"])
            .arg(&file)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Everything is in place when it says so.
        let mut said = String::new();
        let mut stderr = BufReader::new(session.stderr.take().unwrap());
        stderr.read_line(&mut said).unwrap();
        assert!(said.contains("tracing"), "{said}");
        std::thread::sleep(Duration::from_millis(500));
        let pid = Pid::from_raw(session.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
        let output = session.wait_with_output().unwrap();
        expect(&output, 0);
        assert!(text(&output.stdout).contains("lost: "), "{output:?}");
        assert!(samples(&read_trace(&file)).next().is_some());
    }
}

#[test]
fn what_exceeds_a_limit_is_counted_and_said() {
    let Some(busy) = Busy::start("limits") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.pftrace");
    let output = trace(&["--cgroup", &busy.path, "--for", "1s", "--max-samples", "5"])
        .args(["--events", "cpu-clock", "--output", "json"])
        .arg(&file)
        .output()
        .unwrap();
    expect(&output, 0);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let seen = summary["samples"].as_u64().unwrap();
    assert_eq!(summary["losses"]["samplesNotKept"], seen - 5, "{summary}");
    let trace = read_trace(&file);
    assert_eq!(samples(&trace).count(), 5);
    assert_eq!(
        said_of_itself(&trace, "samplesNotKept").uint,
        Some(seen - 5)
    );
}

#[test]
fn a_full_disk_leaves_nothing_under_the_name_and_the_others_are_written() {
    let Some(busy) = Busy::start("full") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    if let Err(error) = mount("tmpfs", &small, "tmpfs", MountFlags::empty(), c"size=4k") {
        notes::left_out(format_args!("a small file system: {error}"));
        return;
    }
    let filler = small.join("filler");
    fs::write(&filler, [0; 4096]).unwrap();
    let whole = dir.path().join("t.svg");
    let cut = small.join("t.pftrace");
    let output = trace(&["--cgroup", &busy.path, "--for", "500ms"])
        .arg(&cut)
        .arg(&whole)
        .output()
        .unwrap();
    fs::remove_file(&filler).unwrap();
    let left = is_empty(&small);
    unmount(&small, UnmountFlags::DETACH).unwrap();
    let said = expect(&output, 1);
    assert!(
        said.contains("t.pftrace") && said.contains("No space left on device"),
        "{said}"
    );
    assert!(left, "something is left on the full disk");
    assert!(whole.exists(), "the other file is not written");
    assert!(text(&output.stdout).contains("t.svg"), "{output:?}");
}

#[test]
fn what_is_wrong_is_said_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let output = trace(&["trace.txt"]).output().unwrap();
    let said = expect(&output, 2);
    for ending in [".pftrace", ".svg"] {
        assert!(said.contains(ending), "{said}");
    }
    for (arguments, words) in [
        (["--events", "cpu-clock,nonsense"], "page-faults"),
        (["--frequency", "0"], "1..=10000"),
        (["--for", "10"], "unit"),
        (["--max-file-size", "1Ki"], "1Mi"),
    ] {
        let said = expect(&trace(&arguments).output().unwrap(), 2);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    let output = trace(&["/nonexistent/t.svg"]).output().unwrap();
    let said = expect(&output, 1);
    assert!(said.contains("/nonexistent/t.svg"), "{said}");
    assert!(is_empty(dir.path()));
}

#[test]
fn an_unknown_pod_or_cgroup_is_named_with_those_that_are_like_it() {
    let dir = tempfile::tempdir().unwrap();
    let pods = dir.path().join("pods.yaml");
    let pod = |name| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: app}}]}}\n"
        )
    };
    fs::write(
        &pods,
        format!("{}---\n{}", pod("web-frontend"), pod("database")),
    )
    .unwrap();
    let ask = |name: &str| {
        trace(&["--pod", name, "-f"])
            .arg(&pods)
            .args(["--cgroup-root", "/plimsoll-test-nowhere"])
            .output()
            .unwrap()
    };
    let said = expect(&ask("default/web-frontent"), 3);
    assert!(
        said.contains("did you mean default/web-frontend?"),
        "{said}"
    );
    let said = expect(&ask("default/database"), 3);
    assert!(said.contains("does not run on this node"), "{said}");
    // Nobody to ask.
    let said = expect(&trace(&["--pod", "default/web"]).output().unwrap(), 1);
    assert!(said.contains("-f") && said.contains("UID"), "{said}");

    let Some(busy) = Busy::start("near") else {
        return;
    };
    let wrong = busy.path.replace("near", "nera");
    let said = expect(&trace(&["--cgroup", &wrong]).output().unwrap(), 3);
    assert!(
        said.contains(&format!("did you mean {}", busy.path)),
        "{said}"
    );
}

#[test]
fn without_the_right_it_says_which_capability() {
    if !rustix::process::geteuid().is_root() {
        notes::left_out("only root can give up a capability");
        return;
    }
    // The program must be readable for whoever runs it.
    let dir = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
    let copy = dir.path().join("plimsoll-trace");
    fs::copy(env!("CARGO_BIN_EXE_plimsoll-trace"), &copy).unwrap();
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path(), all).unwrap();
    let output = Command::new(&copy)
        .args(["--for", "10ms"])
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let said = expect(&output, 1);
    for word in ["cpu-clock", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN"] {
        assert!(said.contains(word), "{said}");
    }
}
