//! On a directory that looks like a v2 tree; `agent/tests/placement.rs` does the same with processes.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_core::placement::assignments::Assignment;
use plimsoll_core::placement::memory::Block;
use plimsoll_core::placement::numa_mask::NumaMask;

use super::*;
use crate::act::placement::PodQuotas;
use crate::act::placement::answered::AnsweredSet;
use crate::act::placement::checkpoint::CHECKPOINT;
use crate::host::HostRoot;
use crate::host::cgroup::tests::fake_v2;
use crate::host::mounted::Mounted;
use crate::notes;
use crate::pods::names::KubeletTree;

struct Node {
    _dir: tempfile::TempDir,
    host: HostRoot,
}

const A: &str = "kubepods/poda/main";
const B: &str = "kubepods/besteffort/podb/main";

impl Node {
    /// Eight CPUs and two containers.
    fn new() -> Self {
        let (dir, host) = fake_v2();
        let node = Self { _dir: dir, host };
        node.online("0-7");
        for path in [A, B] {
            let path = PathBuf::from(path);
            for dir in path.ancestors() {
                let dir = node.host.path("/sys/fs/cgroup").join(dir);
                std::fs::create_dir_all(&dir).unwrap();
                std::fs::write(dir.join("cgroup.subtree_control"), "cpuset cpu memory").unwrap();
            }
            for (file, text) in [
                ("cpuset.cpus", "\n"),
                ("cpuset.cpus.effective", "0-7\n"),
                ("cpuset.mems", "\n"),
                ("cpu.max", "100000 100000\n"),
                ("../cpu.max", "100000 100000\n"),
            ] {
                node.put(path.join(file).to_str().unwrap(), text);
            }
        }
        node
    }

    fn online(&self, list: &str) {
        let path = self.host.sysfs("devices/system/cpu");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("online"), list).unwrap();
    }

    fn cgroup(&self, file: &str) -> PathBuf {
        self.host.path("/sys/fs/cgroup").join(file)
    }

    fn put(&self, file: &str, text: &str) {
        std::fs::write(self.cgroup(file), text).unwrap();
    }

    fn cpus(&self) -> [String; 2] {
        [A, B].map(|path| self.text(&format!("{path}/cpuset.cpus")))
    }

    fn text(&self, file: &str) -> String {
        let text = std::fs::read_to_string(self.cgroup(file)).unwrap();
        text.trim().to_owned()
    }

    fn place(&self) -> NodePaths {
        NodePaths {
            host: self.host.clone(),
            mounts: self.host.cgroup_mounts().unwrap(),
            cgroup_root: CgroupPath::default(),
            kubelet: None,
            state_dir: self.host.path("run"),
            kubelet_dir: PathBuf::from("/var/lib/kubelet"),
        }
    }

    fn applier(&self) -> Applier {
        let options = Options {
            moves_interrupts: false,
            keeps_quota: false,
        };
        Applier::open(self.place(), options).unwrap().0
    }
}

fn wanted(pool: &str, exclusive: &[(&str, &str)]) -> Wanted {
    let containers = exclusive.iter().map(|(pod, list)| {
        let assignment = Assignment {
            cpus: Some(CpuSet::parse(list).unwrap()),
            memory: vec![Block {
                nodes: NumaMask::of(1),
                resource: "memory".to_owned(),
                bytes: 1 << 30,
            }],
            ..Assignment::default()
        };
        let containers = BTreeMap::from([("main".to_owned(), assignment)]);
        (PodUid::from(*pod), containers)
    });
    let quota = Quota {
        quota_us: 200_000,
        period_us: 100_000,
    };
    let quotas = PodQuotas {
        pod: Some(quota),
        containers: BTreeMap::from([("main".into(), quota)]),
    };
    Wanted {
        assignments: Assignments {
            shared_pool: CpuSet::parse(pool).unwrap(),
            containers: containers.collect(),
            refused: BTreeMap::new(),
        },
        quotas: BTreeMap::from([("a".into(), quotas)]),
        names: Names::new(),
        foreign: plugin_cpusets::Ids::new(),
        answered: Answered::new(),
        memory: BTreeMap::new(),
    }
}

fn written(outcome: &Outcome) -> Vec<(String, &str, &str)> {
    let written = outcome.written.iter();
    written
        .map(|write| (write.pod.to_string(), write.what, write.value.as_str()))
        .collect()
}

fn occupied(outcome: &Outcome) -> CpuSet {
    let occupied = outcome.occupied.iter();
    occupied.fold(CpuSet::EMPTY, |all, who| all | who.cpus)
}

fn said(outcome: &Outcome) -> String {
    outcome.remarks().join("\n")
}

#[test]
fn a_placement_comes_changes_and_goes() {
    let node = Node::new();
    let mut applier = node.applier();
    let first = wanted("0-5", &[("a", "6-7")]);
    let outcome = applier.apply(&first).unwrap();
    assert_eq!(
        written(&outcome),
        [
            ("b".into(), "cpuset.cpus", "0-5"),
            ("a".into(), "cpuset.cpus", "6-7"),
            ("a".into(), "cpuset.mems", "1"),
            ("a".into(), "cpu.max", "max"),
            ("a".into(), "cpu.max", "max"),
        ]
    );
    assert!(said(&outcome).is_empty(), "{}", said(&outcome));
    assert!(applier.apply(&first).unwrap().written.is_empty());
    // The next agent knows who is alone where.
    let mut applier = node.applier();
    assert!(applier.apply(&first).unwrap().written.is_empty());
    let outcome = applier.apply(&wanted("2-7", &[("a", "0-1")])).unwrap();
    assert_eq!(
        written(&outcome)[..4],
        [
            ("b".into(), "cpuset.cpus", "2-5"),
            ("a".into(), "cpuset.cpus", "2-5"),
            ("b".into(), "cpuset.cpus", "2-7"),
            ("a".into(), "cpuset.cpus", "0-1"),
        ]
    );
    let outcome = applier.withdraw(first.quotas.clone()).unwrap().unwrap();
    assert_eq!(node.cpus(), ["0-7", "0-7"]);
    assert_eq!(
        written(&outcome)[2..],
        [
            ("a".into(), "cpuset.mems", ""),
            ("a".into(), "cpu.max", "200000 100000"),
            ("a".into(), "cpu.max", "200000 100000"),
        ]
    );
    assert_eq!(node.text(&format!("{B}/cpu.max")), "100000 100000");
    assert!(!node.place().state_dir.join(CHECKPOINT).exists());
    assert!(applier.withdraw(Quotas::new()).unwrap().is_none());
}

#[test]
fn a_new_container_and_one_that_was_changed_are_put_right() {
    let node = Node::new();
    let mut applier = node.applier();
    let first = wanted("0-5", &[("a", "6-7")]);
    applier.apply(&first).unwrap();
    node.put(&format!("{B}/cpuset.cpus"), "0-7");
    let outcome = applier.apply(&first).unwrap();
    assert_eq!(written(&outcome), [("b".into(), "cpuset.cpus", "0-5")]);
    assert!(applier.apply(&first).unwrap().written.is_empty());
}

#[test]
fn who_writes_cpusets_again_and_again_is_left_alone() {
    let node = Node::new();
    let mut applier = node.applier();
    let first = wanted("0-5", &[("a", "6-7")]);
    applier.apply(&first).unwrap();
    let start = Instant::now();
    let contest = |applier: &mut Applier, at: Instant| {
        for _ in 1..REWRITES_MAX {
            node.put(&format!("{B}/cpuset.cpus"), "3");
            applier.apply_at(&first, at).unwrap();
        }
        node.put(&format!("{B}/cpuset.cpus"), "3");
        applier.apply_at(&first, at).unwrap_err().to_string()
    };
    let error = contest(&mut applier, start);
    assert!(
        error.contains(
            r#"podb/main: another program changed cpuset.cpus from "0-5" to "3", 3 times"#
        ) && error.contains("pauses for 60 s"),
        "{error}"
    );
    let minute = Duration::from_secs(60);
    let early = start + minute - Duration::from_secs(1);
    let others = wanted("0-7", &[]);
    assert!(applier.apply_at(&others, early).is_err());
    assert_eq!(node.cpus(), ["6-7", "3"]);
    // It is tried again, and they are still there: the next pause is longer.
    let again = start + minute;
    applier.apply_at(&first, again).unwrap();
    assert_eq!(node.cpus(), ["6-7", "0-5"]);
    let error = contest(&mut applier, again);
    assert!(error.contains("pauses for 120 s"), "{error}");
    assert!(applier.apply_at(&first, again + minute).is_err());
    // And then they are gone.
    let last = again + 2 * minute;
    let outcomes: Vec<Outcome> = (0..6)
        .map(|_| applier.apply_at(&first, last).unwrap())
        .collect();
    assert_eq!(node.cpus(), ["6-7", "0-5"]);
    let said: Vec<String> = outcomes
        .iter()
        .map(said)
        .filter(|said| !said.is_empty())
        .collect();
    assert_eq!(
        said,
        [
            "/kubepods/besteffort/podb/main: no other program changes its cpuset.cpus any more; placement goes on"
        ]
    );
    // Who comes now is somebody new.
    assert!(contest(&mut applier, last).contains("pauses for 60 s"));
}

#[test]
fn a_kubelet_that_places_is_left_alone() {
    let node = Node::new();
    let kubelet = node.host.path("/var/lib/kubelet");
    std::fs::create_dir_all(&kubelet).unwrap();
    std::fs::write(
        kubelet.join("cpu_manager_state"),
        r#"{"policyName":"static"}"#,
    )
    .unwrap();
    // What a kubelet has left is no kubelet.
    let mut applier = node.applier();
    let comm = node.host.procfs("77");
    std::fs::create_dir_all(&comm).unwrap();
    std::fs::write(comm.join("comm"), "kubelet\n").unwrap();
    std::fs::write(comm.join("cmdline"), "kubelet\0").unwrap();
    std::fs::write(comm.join("status"), "Uid:\t0\t0\t0\t0\n").unwrap();
    let options = applier.options;
    // Any process in a pod may have this name.
    let in_pod = "0::/kubepods/poda/main\n";
    std::fs::write(comm.join("cgroup"), in_pod).unwrap();
    Applier::open(node.place(), options).unwrap();
    std::fs::write(comm.join("cgroup"), "0::/system.slice/kubelet.service\n").unwrap();
    let errors = [
        Applier::open(node.place(), options).unwrap_err(),
        applier.apply(&wanted("0-5", &[("a", "6-7")])).unwrap_err(),
    ];
    for error in errors.map(|error| error.to_string()) {
        assert!(
            error.contains("(pid 77)") && error.contains("cpuManagerPolicy: none"),
            "{error}"
        );
    }
    assert_eq!(node.cpus(), ["", ""]);
    std::fs::write(
        kubelet.join("cpu_manager_state"),
        r#"{"policyName":"none"}"#,
    )
    .unwrap();
    applier.apply(&wanted("0-5", &[("a", "6-7")])).unwrap();
}

#[test]
fn cpus_that_go_offline_are_reported_and_survived() {
    let node = Node::new();
    let mut applier = node.applier();
    assert!(applier.look_at_machine().unwrap().is_some());
    assert!(applier.look_at_machine().unwrap().is_none());
    let first = wanted("0-3", &[("a", "6-7"), ("b", "4-5")]);
    applier.apply(&first).unwrap();
    for (online, cpus, lacks) in [
        // The kernel runs it on 6, and on both again when 7 is back.
        ("0-6", ["6-7", "4-5"], "exclusive CPUs 7 went offline"),
        ("0-4", ["0-3", "4-5"], "exclusive CPUs 6-7 went offline"),
    ] {
        node.online(online);
        assert!(applier.look_at_machine().unwrap().is_some());
        let outcome = applier.apply(&first).unwrap();
        assert!(said(&outcome).contains(lacks), "{}", said(&outcome));
        assert_eq!(node.cpus(), cpus, "{online}");
    }
    node.online("0-7");
    let outcome = applier.apply(&first).unwrap();
    assert_eq!(node.cpus(), ["6-7", "4-5"], "{}", said(&outcome));
}

/// On v2 a CPU that goes offline stays in what is written, and that is nobody's doing.
#[test]
fn a_cpu_that_goes_offline_is_no_other_program() {
    let node = Node::new();
    let mut applier = node.applier();
    let first = wanted("0-5,7", &[("a", "6")]);
    applier.apply(&first).unwrap();
    node.online("0-6");
    // As the engine has it, once it knows.
    for pool in ["0-5,7", "0-5", "0-5", "0-5", "0-5", "0-5"] {
        applier.look_at_machine().unwrap();
        let outcome = applier.apply(&wanted(pool, &[("a", "6")])).unwrap();
        assert_eq!(outcome.failed.len(), 0, "{}", said(&outcome));
    }
    node.online("0-7");
    for _ in 0..5 {
        applier.look_at_machine().unwrap();
        applier.apply(&first).unwrap();
    }
    assert_eq!(node.cpus(), ["6", "0-5,7"]);
    // Somebody who writes is seen as before.
    for _ in 0..REWRITES_MAX - 1 {
        node.put(&format!("{B}/cpuset.cpus"), "0\n");
        applier.apply(&first).unwrap();
    }
    node.put(&format!("{B}/cpuset.cpus"), "0\n");
    applier.apply(&first).unwrap_err();
}

#[test]
fn what_a_kubelet_may_go_on_with_is_written_until_it_is_there() {
    let node = Node::new();
    let mut applier = node.applier();
    let file = node.place().state_dir.join("for-kubelet.cpu_manager_state");
    std::fs::create_dir_all(&file).unwrap();
    let first = wanted("0-5", &[("a", "6-7")]);
    let outcome = applier.apply(&first).unwrap();
    assert!(
        said(&outcome).contains("for-kubelet."),
        "{}",
        said(&outcome)
    );
    assert_eq!(node.cpus(), ["6-7", "0-5"], "it is in force all the same");
    std::fs::remove_dir(&file).unwrap();
    assert_eq!(said(&applier.apply(&first).unwrap()), "");
    assert!(file.is_file());
    // An agent that ended in between, or wrote none.
    std::fs::remove_file(&file).unwrap();
    drop(applier);
    node.applier().apply(&first).unwrap();
    assert!(file.is_file());
}

#[test]
fn when_the_kubelet_turns_static_nothing_is_gone_on_from_later() {
    let (node, place) = beside("none");
    let mut applier = open_at(&place);
    let wanted = wanted("0-1,4-7", &[("a", "2-3")]);
    applier.apply(&wanted).unwrap();
    let checkpoint = place.state_dir.join(CHECKPOINT);
    assert!(checkpoint.exists());
    let state = node.host.path("/var/lib/kubelet/cpu_manager_state");
    std::fs::write(&state, r#"{"policyName":"static"}"#).unwrap();
    applier.apply(&wanted).unwrap_err();
    assert!(!checkpoint.exists());
    std::fs::write(&state, r#"{"policyName":"none"}"#).unwrap();
    applier.apply(&wanted).unwrap();
    assert!(checkpoint.exists());
}

#[test]
fn a_damaged_checkpoint_is_set_aside_and_written_anew() {
    let node = Node::new();
    let mut applier = node.applier();
    let first = wanted("0-5", &[("a", "6-7")]);
    applier.apply(&first).unwrap();
    let path = node.place().state_dir.join(CHECKPOINT);
    let good = std::fs::read(&path).unwrap();
    std::fs::write(&path, &good[1..]).unwrap();
    let outcome = applier.apply(&first).unwrap();
    assert!(said(&outcome).contains("damaged-1"), "{}", said(&outcome));
    assert_eq!(written(&outcome), []);
    assert_eq!(std::fs::read(&path).unwrap(), good);
}

#[test]
fn nobody_arrives_where_somebody_cannot_leave() {
    let node = Node::new();
    // A file that can be read and not written, also by root: the CPUs that are online here.
    let real = "/sys/devices/system/cpu/online";
    let Ok(all) = std::fs::read_to_string(real) else {
        return notes::left_out(format_args!("no {real}"));
    };
    let stuck = node.cgroup(&format!("{B}/cpuset.cpus"));
    std::fs::remove_file(&stuck).unwrap();
    std::os::unix::fs::symlink(real, &stuck).unwrap();
    node.online("0-1023");
    node.put(&format!("{A}/cpuset.cpus"), "1000");
    node.put(&format!("{A}/cpuset.cpus.effective"), "0-1023\n");
    let mut applier = node.applier();
    let outcome = applier
        .apply(&wanted("1022-1023", &[("a", "0-1")]))
        .unwrap();
    let remarks = said(&outcome);
    assert!(
        remarks.contains("pod b container main") && remarks.contains("is refused"),
        "{remarks}"
    );
    assert!(
        remarks.contains("pod a container main: CPUs 0")
            && remarks.contains("/kubepods/besteffort/podb/main cannot be moved off them"),
        "{remarks} ({all})"
    );
    let there = CpuSet::parse(all.trim()).unwrap();
    let occupied = occupied(&outcome);
    assert!(there.is_subset(&occupied), "{occupied}");
    assert_eq!(
        node.text(&format!("{A}/cpuset.cpus")),
        "2-1023",
        "where nobody is alone"
    );
    let checkpoint = std::fs::read_to_string(node.place().state_dir.join(CHECKPOINT)).unwrap();
    assert!(checkpoint.contains("before"), "it has not come into force");
    // As long as that one is stuck others come and go, and what is known of before is about those that are there.
    let path = node.place().state_dir;
    let read = || {
        let lock = PlacementLock::exclusive_by_force(&path, BREAK_AFTER).unwrap();
        match Checkpoint::read(&lock, &path).unwrap() {
            Found::Checkpoint(found) => found.before.unwrap(),
            other => panic!("{other:?}"),
        }
    };
    for round in 0..5 {
        let own = (1000 + round).to_string();
        let passing = [("a", own.as_str()), ("gone", "900-910")];
        let last = [("a", own.as_str())];
        for exclusive in [&passing[..], &last[..]] {
            let outcome = applier.apply(&wanted("1022-1023", exclusive)).unwrap();
            assert_eq!(outcome.failed.len(), 1, "{}", said(&outcome));
        }
        let pods: Vec<_> = read().containers.keys().cloned().collect();
        assert_eq!(pods, ["a".into()]);
        assert_eq!(read().cpus(&"a".into(), "main").cpus.to_string(), own);
    }
}

#[test]
fn the_thread_carries_out_the_newest() {
    use crate::act::placement::{Placement, Report};
    let node = Node::new();
    let (placement, mut reports) =
        Placement::start(node.applier(), Duration::from_secs(3600)).unwrap();
    let report = reports.blocking_recv().unwrap();
    assert!(
        matches!(&report, Report::Machine { usable } if usable.cpus.len() == 8),
        "{report:?}"
    );
    placement.want(wanted("0-6", &[("a", "7")]));
    let last = placement.want(wanted("0-5", &[("a", "6-7")]));
    loop {
        match reports.blocking_recv().unwrap() {
            Report::Applied { number, .. } if number == last => break,
            Report::Applied { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(node.cpus(), ["6-7", "0-5"]);
    node.put(&format!("{B}/cpuset.cpus"), "0-7");
    placement.look();
    let report = reports.blocking_recv().unwrap();
    assert!(
        matches!(&report, Report::Applied { number, outcome } if *number == last && outcome.written.len() == 1),
        "{report:?}"
    );
    assert_eq!(placement.lost_reports(), 0);
    drop(placement);
    // A turn that was still queued may have seen the change, and the next one that it is over.
    while let Some(report) = reports.blocking_recv() {
        assert!(
            matches!(&report, Report::Applied { number, outcome } if *number == last && outcome.written.is_empty()),
            "{report:?}"
        );
    }
}

/// A node with a kubelet's tree of the systemd driver: pod a has a sandbox and two containers.
fn beside(policy: &str) -> (Node, NodePaths) {
    let node = Node::new();
    for dir in [A, B] {
        std::fs::remove_dir_all(node.cgroup(dir)).unwrap();
    }
    std::fs::remove_dir_all(node.cgroup("kubepods")).unwrap();
    for name in [SANDBOX, MAIN, SIDE] {
        let dir = node.cgroup(&container(name));
        for above in dir.ancestors().skip(1).take(2) {
            std::fs::create_dir_all(above).unwrap();
            std::fs::write(above.join("cgroup.subtree_control"), "cpuset cpu memory").unwrap();
        }
        std::fs::create_dir_all(&dir).unwrap();
        for (file, text) in [
            ("cpuset.cpus", "\n"),
            ("cpuset.cpus.effective", "0-7\n"),
            ("cpuset.mems", "\n"),
            ("cpu.max", "200000 100000\n"),
        ] {
            std::fs::write(dir.join(file), text).unwrap();
        }
    }
    kubelet_says(&node, policy);
    let mut place = node.place();
    place.kubelet = Some(KubeletTree::find(&place.mounts, &place.cgroup_root).unwrap());
    (node, place)
}

fn kubelet_says(node: &Node, policy: &str) {
    let dir = node.host.path("/var/lib/kubelet");
    std::fs::create_dir_all(&dir).unwrap();
    let text = format!(r#"{{"policyName":"{policy}","defaultCpuSet":"","checksum":1}}"#);
    std::fs::write(dir.join("cpu_manager_state"), text).unwrap();
}

const SANDBOX: char = '0';
const MAIN: char = '1';
const SIDE: char = '2';

fn id(name: char) -> String {
    name.to_string().repeat(64)
}

fn container(name: char) -> String {
    let id = id(name);
    format!("kubepods.slice/kubepods-poda.slice/cri-containerd-{id}.scope")
}

fn by_name(names: &[(char, &str)]) -> Names {
    let names = names
        .iter()
        .map(|(id_, name)| (id(*id_), (*name).to_owned()));
    BTreeMap::from([("a".into(), names.collect())])
}

fn cpus_of(node: &Node) -> [String; 3] {
    [SANDBOX, MAIN, SIDE].map(|name| node.text(&format!("{}/cpuset.cpus", container(name))))
}

fn open_at(place: &NodePaths) -> Applier {
    let options = Options {
        moves_interrupts: false,
        keeps_quota: false,
    };
    Applier::open(place.clone(), options).unwrap().0
}

#[test]
fn a_runtimes_containers_are_placed_by_their_ids_and_get_back_what_they_had() {
    let (node, place) = beside("none");
    // Of another program.
    node.put(&format!("{}/cpuset.cpus", container(SIDE)), "5-6\n");
    let mut applier = open_at(&place);
    let mut wanted = wanted("0-1,4-7", &[("a", "2-3")]);
    // Not named yet: it shares the pool, as the sandbox does.
    applier.apply(&wanted).unwrap();
    assert_eq!(cpus_of(&node), ["0-1,4-7", "0-1,4-7", "0-1,4-7"]);
    wanted.names = by_name(&[(MAIN, "main"), (SIDE, "side")]);
    let outcome = applier.apply(&wanted).unwrap();
    assert_eq!(said(&outcome), "");
    assert_eq!(cpus_of(&node), ["0-1,4-7", "2-3", "0-1,4-7"]);
    assert_eq!(node.text(&format!("{}/cpuset.mems", container(MAIN))), "1");
    // Quotas are the kubelet's.
    let quota = format!("{}/cpu.max", container(MAIN));
    assert_eq!(node.text(&quota), "200000 100000");
    // An agent that was started anew, to which nobody has named anything yet, moves nobody.
    drop(applier);
    let mut applier = open_at(&place);
    let mut again = wanted.clone();
    again.names = Names::new();
    let outcome = applier.apply(&again).unwrap();
    assert_eq!(written(&outcome), []);
    // Nor does one that has decided something else by then: what has just its old CPUs is that container.
    let mut grown = self::wanted("0-1,6-7", &[("a", "2-5")]);
    grown.names = Names::new();
    applier.apply(&grown).unwrap();
    assert_eq!(cpus_of(&node), ["0-1,6-7", "2-5", "0-1,6-7"]);
    let outcome = applier.withdraw(Quotas::new()).unwrap().unwrap();
    assert_eq!(said(&outcome), "");
    assert_eq!(cpus_of(&node), ["", "", "5-6"]);
    assert_eq!(node.text(&format!("{}/cpuset.mems", container(MAIN))), "");
    assert!(!place.state_dir.join(CHECKPOINT).exists());
}

#[test]
fn what_the_runtime_has_set_for_us_is_undone_too() {
    let (node, place) = beside("none");
    let (main, side) = (container(MAIN), container(SIDE));
    node.put(&format!("{main}/cpuset.cpus"), "2-3\n");
    node.put(&format!("{main}/cpuset.mems"), "1\n");
    node.put(&format!("{side}/cpuset.cpus"), "0-1,4-7\n");
    let mut applier = open_at(&place);
    // Its id is not known, and it is where its own CPUs are.
    let outcome = applier.apply(&wanted("0-1,4-7", &[("a", "2-3")])).unwrap();
    let of_sandbox = vec![("a".to_owned(), "cpuset.cpus", "0-1,4-7")];
    assert_eq!(written(&outcome), of_sandbox);
    drop(applier);
    // As `plimsoll uninstall` does.
    let path = place.state_dir.join(kubelet_cgroups::CPUSETS_LEDGER);
    Ledger::open(&node.host, path).unwrap().restore().unwrap();
    assert_eq!(cpus_of(&node), ["", "", ""]);
    assert_eq!(node.text(&format!("{main}/cpuset.mems")), "");
}

fn answered(containers: &[(char, &str, Option<u32>)]) -> Answered {
    let sets = containers.iter().map(|(name, cpus, node)| {
        let set = AnsweredSet {
            cpus: CpuSet::parse(cpus).ok(),
            mems: node.map(NumaMask::of),
        };
        (id(*name), set)
    });
    BTreeMap::from([("a".into(), sets.collect())])
}

/// The pool has changed since, and no table has it any more.
#[test]
fn what_the_runtime_was_answered_is_ours_whatever_is_wanted_by_now() {
    let (node, place) = beside("none");
    let (main, side) = (container(MAIN), container(SIDE));
    node.put(&format!("{main}/cpuset.cpus"), "2-3\n");
    node.put(&format!("{main}/cpuset.mems"), "0\n");
    node.put(&format!("{side}/cpuset.cpus"), "0-1\n");
    let mut applier = open_at(&place);
    let mut wanted = wanted("0-1,6-7", &[("a", "4-5")]);
    wanted.names = by_name(&[(MAIN, "main"), (SIDE, "side")]);
    wanted.answered = answered(&[(MAIN, "2-3", Some(0)), (SIDE, "0-1", None)]);
    let outcome = applier.apply(&wanted).unwrap();
    assert_eq!(said(&outcome), "");
    assert_eq!(cpus_of(&node), ["0-1,6-7", "4-5", "0-1,6-7"]);
    assert_eq!(node.text(&format!("{main}/cpuset.mems")), "1");
    let outcome = applier.withdraw(Quotas::new()).unwrap().unwrap();
    assert_eq!(said(&outcome), "");
    assert_eq!(cpus_of(&node), ["", "", ""]);
    assert_eq!(node.text(&format!("{main}/cpuset.mems")), "");
}

/// The runtime writes the set of its answer when the cgroup has been looked at.
#[test]
fn a_set_that_the_runtime_writes_after_the_first_look_is_put_right() {
    let (node, place) = beside("none");
    let side = format!("{}/cpuset.cpus", container(SIDE));
    let mut applier = open_at(&place);
    let mut wanted = wanted("0-1,6-7", &[]);
    let began = Instant::now();
    let after = |ms| began + Duration::from_millis(ms);
    applier.apply_at(&wanted, began).unwrap();
    assert_eq!(applier.next_look(), None, "the runtime has asked for none");
    wanted.answered = answered(&[(SIDE, "0-1", None)]);
    applier.apply_at(&wanted, began).unwrap();
    assert_eq!(applier.next_look(), Some(after(1000)));
    node.put(&side, "0-1\n");
    let looked = |applier: &mut Applier, ms| {
        let outcome = applier.apply_at(&wanted, after(ms)).unwrap();
        (outcome.written.len(), applier.next_look())
    };
    assert_eq!(looked(&mut applier, 1000), (1, Some(after(3000))));
    assert_eq!(node.text(&side), "0-1,6-7");
    assert_eq!(looked(&mut applier, 2000), (0, Some(after(3000))));
    assert_eq!(looked(&mut applier, 3000), (0, None));
    assert_eq!(looked(&mut applier, 9000), (0, None));
    // Another one, which is right after a second.
    wanted.answered = answered(&[(SIDE, "0-1", None), (MAIN, "0-1", None)]);
    applier.apply_at(&wanted, after(9000)).unwrap();
    assert_eq!(applier.next_look(), Some(after(10_000)));
    applier.apply_at(&wanted, after(10_500)).unwrap();
    assert_eq!(applier.next_look(), None);
    // While nothing may be written nobody looks the more often.
    std::fs::remove_dir_all(node.cgroup(&container(SIDE))).unwrap();
    wanted.answered = answered(&[(SANDBOX, "0-1", None)]);
    applier.apply_at(&wanted, after(11_000)).unwrap();
    assert_eq!(applier.next_look(), Some(after(12_000)));
    kubelet_says(&node, "static");
    applier.apply_at(&wanted, after(12_000)).unwrap_err();
    assert_eq!(applier.next_look(), None);
}

/// With the driver of systemd crun has the processes below the scope, and writes the set of the specification there as
/// well.
#[test]
fn what_crun_writes_below_a_scope_follows_what_is_written_above() {
    let (node, place) = beside("none");
    let nested = |name, file: &str| format!("{}/container/{file}", container(name));
    for (name, cpus, mems) in [(MAIN, "2-3", "1"), (SIDE, "5-6", "")] {
        let dir = node.cgroup(&nested(name, ""));
        std::fs::create_dir(dir).unwrap();
        node.put(&nested(name, "cpuset.cpus"), cpus);
        node.put(&nested(name, "cpuset.mems"), mems);
        node.put(&nested(name, "cpuset.cpus.effective"), "0-7\n");
        node.put(&format!("{}/cpuset.cpus", container(name)), cpus);
    }
    let below = || {
        [
            node.text(&nested(MAIN, "cpuset.cpus")),
            node.text(&nested(MAIN, "cpuset.mems")),
            node.text(&nested(SIDE, "cpuset.cpus")),
        ]
    };
    let mut applier = open_at(&place);
    let mut wanted = wanted("0-1,6-7", &[("a", "2-5")]);
    wanted.names = by_name(&[(MAIN, "main"), (SIDE, "side")]);
    wanted.answered = answered(&[(MAIN, "2-3", Some(1))]);
    let outcome = applier.apply(&wanted).unwrap();
    assert_eq!(said(&outcome), "");
    assert_eq!(cpus_of(&node), ["0-1,6-7", "2-5", "0-1,6-7"]);
    assert_eq!(below(), ["", "", ""]);
    assert!(applier.apply(&wanted).unwrap().written.is_empty());
    // The runtime changes the container, and writes all of it again.
    node.put(&nested(MAIN, "cpuset.cpus"), "2-3");
    let outcome = applier.apply(&wanted).unwrap();
    assert_eq!(written(&outcome), [("a".to_owned(), "cpuset.cpus", "")]);
    assert_eq!(below(), ["", "", ""]);
    // What counts is where the processes are.
    node.put(&nested(MAIN, "cpuset.cpus.effective"), "2-3\n");
    let said = said(&applier.apply(&wanted).unwrap());
    assert!(
        said.contains("CPUs 2-5 were written, and the kernel runs it on 2-3"),
        "{said}"
    );
    node.put(&nested(MAIN, "cpuset.cpus.effective"), "0-7\n");
    applier.withdraw(Quotas::new()).unwrap().unwrap();
    assert_eq!(cpus_of(&node), ["", "", "5-6"]);
    assert_eq!(below(), ["", "", "5-6"], "one of them was not ours");
}

#[test]
fn a_kubelet_that_manages_cpus_stops_the_next_write() {
    let (node, place) = beside("static");
    // Also where it was so at the start: its policy may change.
    let mut applier = open_at(&place);
    let wanted = wanted("0-1,4-7", &[("a", "2-3")]);
    let text = applier.apply(&wanted).unwrap_err().to_string();
    assert!(
        text.contains("the kubelet manages cpusets itself"),
        "{text}"
    );
    assert_eq!(cpus_of(&node), ["", "", ""]);
    kubelet_says(&node, "none");
    applier.apply(&wanted).unwrap();
    assert_eq!(cpus_of(&node), ["0-1,4-7", "0-1,4-7", "0-1,4-7"]);
    applier.withdraw(Quotas::new()).unwrap().unwrap();
    // It is started again with another policy.
    kubelet_says(&node, "static");
    applier.apply(&wanted).unwrap_err();
    assert_eq!(cpus_of(&node), ["", "", ""]);
    kubelet_says(&node, "none");
    let state = node.host.path("/var/lib/kubelet/memory_manager_state");
    std::fs::write(state, r#"{"policyName":"Static"}"#).unwrap();
    applier.apply(&wanted).unwrap_err();
    assert_eq!(cpus_of(&node), ["", "", ""]);
}

/// The agent may be started first.
#[test]
fn nothing_is_placed_before_the_kubelet_has_written_its_state() {
    let (node, place) = beside("none");
    std::fs::remove_file(node.host.path("/var/lib/kubelet/cpu_manager_state")).unwrap();
    let mut applier = open_at(&place);
    let mut wanted = wanted("0-1,4-7", &[("a", "2-3")]);
    wanted.names = by_name(&[(MAIN, "main")]);
    let text = applier.apply(&wanted).unwrap_err().to_string();
    assert!(text.contains("is unknown"), "{text}");
    assert_eq!(cpus_of(&node), ["", "", ""]);
    kubelet_says(&node, "none");
    applier.apply(&wanted).unwrap();
    assert_eq!(cpus_of(&node), ["0-1,4-7", "2-3", "0-1,4-7"]);
}

#[test]
fn memory_nodes_stay_while_the_kubelets_own_books_cannot_be_read() {
    let (node, place) = beside("none");
    let main = container(MAIN);
    let mems = |node: &Node| node.text(&format!("{main}/cpuset.mems"));
    let mut wanted = wanted("0-1,4-7", &[("a", "2-3")]);
    wanted.names = by_name(&[(MAIN, "main")]);
    let mut applier = open_at(&place);
    applier.apply(&wanted).unwrap();
    let state = node.host.path("/var/lib/kubelet/memory_manager_state");
    std::fs::write(&state, r#"{"policyName":"Static","machineState":7}"#).unwrap();
    applier.apply(&wanted).unwrap_err();
    assert_eq!(mems(&node), "1");
    assert!(
        applier
            .not_left
            .as_ref()
            .unwrap()
            .contains("stay as they are")
    );
    // An agent that is to place nothing any more keeps what it takes to try again.
    std::fs::remove_file(&state).unwrap();
    applier.apply(&wanted).unwrap();
    let for_kubelet = place.state_dir.join("for-kubelet.cpu_manager_state");
    std::fs::write(&state, r#"{"policyName":"Static","machineState":7}"#).unwrap();
    Applier::hand_over(&place).unwrap_err();
    assert!(mems(&node) == "1" && for_kubelet.exists());
    let none = r#"{"policyName":"Static","machineState":{},"checksum":0}"#;
    std::fs::write(&state, none).unwrap();
    applier.apply(&wanted).unwrap_err();
    assert_eq!((mems(&node).as_str(), &applier.not_left), ("", &None));
    assert!(Applier::hand_over(&place).unwrap());
    assert!(!for_kubelet.exists());
}

/// The kubelet writes CPUs of all its containers, and memory nodes of none that runs.
#[test]
fn a_kubelet_that_begins_to_place_finds_no_memory_nodes_of_ours() {
    let (node, place) = beside("none");
    let main = container(MAIN);
    let mems = |node: &Node| node.text(&format!("{main}/cpuset.mems"));
    let mut applier = open_at(&place);
    let mut wanted = wanted("0-1,4-7", &[("a", "2-3")]);
    wanted.names = by_name(&[(MAIN, "main")]);
    applier.apply(&wanted).unwrap();
    assert_eq!(mems(&node), "1");
    kubelet_says(&node, "static");
    applier.apply(&wanted).unwrap_err();
    assert_eq!(mems(&node), "");
    // Its own.
    node.put(&format!("{main}/cpuset.mems"), "0\n");
    applier.apply(&wanted).unwrap_err();
    assert_eq!(mems(&node), "0");
    // It does not write a set again that has the value that it wants: that of ours is its own by now, also for
    // `plimsoll uninstall`.
    let path = place.state_dir.join(kubelet_cgroups::CPUSETS_LEDGER);
    Ledger::open(&node.host, path).unwrap().restore().unwrap();
    assert_eq!(cpus_of(&node), ["0-1,4-7", "2-3", "0-1,4-7"]);
    // The agent was away while that happened.
    kubelet_says(&node, "none");
    applier.apply(&wanted).unwrap();
    assert_eq!(mems(&node), "1");
    drop(applier);
    kubelet_says(&node, "static");
    open_at(&place);
    assert_eq!(mems(&node), "0");
}

#[test]
fn a_kubelet_that_goes_on_from_our_state_keeps_memory_nodes_and_the_checkpoint_goes() {
    let (node, place) = beside("none");
    let main = container(MAIN);
    let mut wanted = wanted("0-1,4-7", &[("a", "2-3")]);
    wanted.names = by_name(&[(MAIN, "main")]);
    open_at(&place).apply(&wanted).unwrap();
    assert!(
        !Applier::hand_over(&place).unwrap(),
        "the kubelet places nothing"
    );
    let text = |nodes: u32| {
        format!(
            r#"{{"policyName":"Static","machineState":{{}},"entries":{{"a":{{"main":[{{"numaAffinity":[{nodes}],"type":"memory","size":1}}]}}}},"checksum":0}}"#
        )
    };
    let state = node.host.path("/var/lib/kubelet/memory_manager_state");
    std::fs::write(&state, text(1)).unwrap();
    let written = place.state_dir.join("for-kubelet.cpu_manager_state");
    assert!(written.exists());
    assert!(Applier::hand_over(&place).unwrap());
    assert_eq!(node.text(&format!("{main}/cpuset.mems")), "1");
    assert!(!place.state_dir.join(CHECKPOINT).exists() && !written.exists());
    // Elsewhere by its books.
    std::fs::remove_file(&state).unwrap();
    open_at(&place).apply(&wanted).unwrap();
    std::fs::write(&state, text(0)).unwrap();
    assert!(Applier::hand_over(&place).unwrap());
    assert_eq!(node.text(&format!("{main}/cpuset.mems")), "");
}

#[test]
fn what_another_plugin_has_set_stays_and_is_said_where_it_overlaps() {
    let (node, place) = beside("none");
    let side = container(SIDE);
    node.put(&format!("{side}/cpuset.cpus"), "3,6\n");
    node.put(&format!("{side}/cpuset.cpus.effective"), "3,6\n");
    node.put(&format!("{side}/cpuset.mems"), "0\n");
    let mut wanted = wanted("0-1,4-7", &[("a", "2-3")]);
    wanted.names = by_name(&[(MAIN, "main"), (SIDE, "side")]);
    wanted.foreign = BTreeMap::from([("a".into(), [id(SIDE)].into())]);
    let mut applier = open_at(&place);
    let outcome = applier.apply(&wanted).unwrap();
    assert_eq!(cpus_of(&node), ["0-1,4-7", "2-3", "3,6"]);
    let said = said(&outcome);
    assert!(
        said.contains("another NRI plugin has put it on CPUs 3, which are exclusive"),
        "{said}"
    );
    // An agent that is started anew knows of it.
    drop(applier);
    assert_eq!(Foreign::open(&place.state_dir).0.ids, wanted.foreign);
    let mut applier = open_at(&place);
    applier.withdraw(Quotas::new()).unwrap().unwrap();
    assert_eq!(cpus_of(&node), ["", "", "3,6"]);
    assert_eq!(node.text(&format!("{side}/cpuset.mems")), "0");
}

/// A kubelet writes the set of all pods at its start: CPUs that come later are outside of it, as are those that
/// AllowedCPUs= leaves out.
#[test]
fn cpus_outside_of_the_set_of_all_pods_are_not_used_and_are_named() {
    let (node, place) = beside("none");
    let kubepods = "kubepods.slice/cpuset.cpus.effective";
    node.put(kubepods, "0-3\n");
    let mut applier = open_at(&place);
    let usable = applier.look_at_machine().unwrap().unwrap();
    assert_eq!(
        (usable.cpus.to_string(), usable.outside.to_string()),
        ("0-3".to_owned(), "4-7".to_owned())
    );
    // As an engine has it that planned when they were inside.
    let mut stale = wanted("0-1,5-7", &[("a", "2-4")]);
    stale.names = by_name(&[(MAIN, "main")]);
    let outcome = applier.apply(&stale).unwrap();
    assert_eq!(cpus_of(&node), ["0-1", "2-3", "0-1"]);
    let said = said(&outcome);
    assert!(
        said.contains("CPUs 4-7 are online, and no pod can run there")
            && said.contains("cgroup /kubepods.slice on 0-3"),
        "{said}"
    );
    assert!(
        said.contains("its exclusive CPUs 4 went offline, or out of"),
        "{said}"
    );
    // None of those that somebody was given: it shares, with nobody's exclusive CPUs.
    let mut stale = wanted("0-4", &[("a", "5-7")]);
    stale.names = by_name(&[(MAIN, "main")]);
    applier.apply(&stale).unwrap();
    assert_eq!(cpus_of(&node), ["0-3", "0-3", "0-3"]);
    assert!(applier.look_at_machine().unwrap().is_none());
    node.put(kubepods, "0-7\n");
    let usable = applier.look_at_machine().unwrap().unwrap();
    assert!(usable.outside.is_empty() && usable.cpus.len() == 8);
    let outcome = applier.apply(&stale).unwrap();
    assert_eq!(self::said(&outcome), "");
    assert_eq!(cpus_of(&node), ["0-4", "5-7", "0-4"]);
}

/// What was written is in the file, and the kernel runs the container on what the cgroup above has.
#[test]
fn a_container_that_the_kernel_runs_elsewhere_is_said_and_is_in_the_way() {
    let (node, place) = beside("none");
    let (main, side) = (container(MAIN), container(SIDE));
    let mut wanted = wanted("0-1,4-7", &[("a", "2-3")]);
    wanted.names = by_name(&[(MAIN, "main")]);
    node.put(&format!("{main}/cpuset.cpus.effective"), "0-2\n");
    let mut applier = open_at(&place);
    for _ in 0..=REWRITES_MAX {
        let outcome = applier.apply(&wanted).unwrap();
        let said = said(&outcome);
        assert!(
            said.contains("CPUs 2-3 were written, and the kernel runs it on 0-2"),
            "{said}"
        );
        assert_eq!(outcome.failed.len(), 1, "{said}");
        assert_eq!(occupied(&outcome).to_string(), "0-2");
    }
    node.put(&format!("{main}/cpuset.cpus.effective"), "2-3\n");
    // One that shares is in the way where it is on what others have for themselves, and else not.
    node.put(&format!("{side}/cpuset.cpus.effective"), "6-7\n");
    assert_eq!(said(&applier.apply(&wanted).unwrap()), "");
    node.put(&format!("{side}/cpuset.cpus.effective"), "3,6\n");
    let outcome = applier.apply(&wanted).unwrap();
    assert_eq!(outcome.failed.len(), 1, "{}", said(&outcome));
    assert_eq!(occupied(&outcome).to_string(), "3,6");
}

/// Nobody tells of CPUs and memory nodes that come and go.
#[test]
fn the_thread_sees_a_machine_that_changes() {
    use crate::act::placement::{Placement, Report, Reports};
    let node = Node::new();
    let hour = Duration::from_secs(3600);
    let (_placement, mut reports) = Placement::start(node.applier(), hour).unwrap();
    let next = |reports: &mut Reports| match reports.blocking_recv().unwrap() {
        Report::Machine { usable } => (usable.cpus.to_string(), usable.nodes.to_string()),
        other => panic!("{other:?}"),
    };
    assert_eq!(next(&mut reports), ("0-7".to_owned(), String::new()));
    node.online("0-6");
    assert_eq!(next(&mut reports), ("0-6".to_owned(), String::new()));
    let nodes = node.host.sysfs("devices/system/node");
    std::fs::create_dir_all(&nodes).unwrap();
    std::fs::write(nodes.join("has_memory"), "0,2\n").unwrap();
    assert_eq!(next(&mut reports), ("0-6".to_owned(), "0,2".to_owned()));
}

/// As a `/run` that any user has filled: nobody gets CPUs that the next agent would not know of, and who comes is kept
/// off those of others.
#[test]
fn on_a_full_state_directory_what_was_kept_is_carried_out() {
    let (node, place) = beside("none");
    std::fs::create_dir_all(&place.state_dir).unwrap();
    let Some(_mounted) = Mounted::tmpfs(&place.state_dir, "size=512k,mode=700") else {
        return;
    };
    let mut applier = open_at(&place);
    let mut first = wanted("0-1,4-7", &[("a", "2-3")]);
    first.names = by_name(&[(MAIN, "main")]);
    let (late, side) = (node.cgroup(&container(SIDE)), container(SIDE));
    let aside = node.cgroup("late");
    std::fs::rename(&late, &aside).unwrap();
    assert_eq!(said(&applier.apply(&first).unwrap()), "");
    let filler = place.state_dir.join("filler");
    std::fs::write(&filler, vec![1; 1 << 20]).unwrap_err();

    // One that shares, and one that was decided since.
    std::fs::rename(&aside, &late).unwrap();
    let mut second = wanted("0-1,6-7", &[("a", "2-5")]);
    second.names = first.names.clone();
    let outcome = applier.apply(&second).unwrap();
    let (why, kept) = outcome.fell_back.clone().unwrap();
    assert!(why.contains("placement.json"), "{why}");
    assert_eq!(kept, first.assignments);
    assert_eq!(cpus_of(&node), ["0-1,4-7", "2-3", "0-1,4-7"]);
    assert_eq!(outcome.failed.len(), 0, "{}", said(&outcome));
    assert!(said(&outcome).contains("placements stay as they are"));
    applier.withdraw(Quotas::new()).unwrap_err();
    assert_eq!(cpus_of(&node), ["0-1,4-7", "2-3", "0-1,4-7"]);
    // Its set is in the ledger like any other.
    let ledger = place.state_dir.join(kubelet_cgroups::CPUSETS_LEDGER);
    assert!(std::fs::read_to_string(&ledger).unwrap().contains(&side));

    std::fs::remove_file(&filler).unwrap();
    let outcome = applier.apply(&second).unwrap();
    assert_eq!(said(&outcome), "");
    assert_eq!(cpus_of(&node), ["0-1,6-7", "2-5", "0-1,6-7"]);
}
