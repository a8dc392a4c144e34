//! On a fake procfs whose files behave as the kernel's do as far as reading and writing goes; and with real processes,
//! which fork.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::budget::Budget;
use super::look::{DOUBT_NS, Recent};
use super::*;

const GIB: u64 = 1 << 30;

/// A host in a directory with one pod: container `main` (Burstable, 1 of 10 GiB: 900) and container `free`.
struct Fake {
    dir: tempfile::TempDir,
    scores: OomScores,
    looker: Looker,
    errors: Vec<String>,
}

impl Fake {
    fn new() -> Self {
        Self::with(
            r#"{"spec":{"containers":[{"name":"main","resources":{"requests":{"memory":"1Gi"}}},{"name":"free"}]}}"#,
        )
    }

    fn with(pod: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "7:cpu:/\n4:memory:/\n0::/\n");
        let host = HostRoot::new(dir.path());
        let capacity = NonZeroU64::new(10 * GIB).unwrap();
        let mut scores = OomScores::without_thread(capacity, true);
        let pod: Pod = serde_json::from_str(pod).unwrap();
        scores.pods.insert(
            PodUid::from("u"),
            PodScores {
                pod: Arc::new(pod.with_defaults()),
                ordered: BTreeMap::new(),
                given_names: BTreeMap::new(),
                cgroups: Vec::new(),
            },
        );
        let mut fake = Self {
            dir,
            scores,
            looker: Looker::new(host),
            errors: Vec::new(),
        };
        for cgroup in ["", "main", "free", "main/below", "0123abcd"] {
            fs::create_dir_all(fake.cgroup(cgroup)).unwrap();
            fake.procs(cgroup, &[]);
        }
        fake.find();
        fake
    }

    fn cgroup(&self, name: &str) -> PathBuf {
        self.dir.path().join("pod").join(name)
    }

    fn id(&self, name: &str) -> u64 {
        fs::metadata(self.cgroup(name)).unwrap().ino()
    }

    fn procs(&self, cgroup: &str, pids: &[u32]) {
        let text: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
        fs::write(self.cgroup(cgroup).join("cgroup.procs"), text).unwrap();
    }

    fn pod(&mut self) -> &mut PodScores {
        self.scores.pods.get_mut(&PodUid::from("u")).unwrap()
    }

    /// The cgroups of these names, in the pod's: "" is that.
    fn find_these<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        let names = names.into_iter();
        let found = names.map(|name| (name, self.cgroup(name), self.id(name)));
        let found: Vec<_> = found.collect();
        let capacity = self.scores.capacity_bytes;
        let found = found.iter().map(|(name, dir, id)| KeptCgroup {
            dir,
            id: *id,
            depth: Path::new(name).components().count(),
        });
        self.pod().find_cgroups(found, capacity);
    }

    fn find(&mut self) {
        self.find_these(["", "main", "free", "main/below", "0123abcd"]);
        self.scores.index(&PodUid::from("u"), &[]);
    }

    fn set(&self, pid: u32, adj: i32) {
        let dir = self.dir.path().join(format!("proc/{pid}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("oom_score_adj"), format!("{adj}\n")).unwrap();
    }

    fn adj(&self, pid: u32) -> i32 {
        let path = self.dir.path().join(format!("proc/{pid}/oom_score_adj"));
        let text = fs::read_to_string(path).unwrap();
        text.lines().next().unwrap().parse().unwrap()
    }

    fn attach(&mut self, cgroup: &str, pid: u32) {
        let id = self.id(cgroup);
        self.scores.came(id, pid);
        self.serve(1);
    }

    /// What is to be served next is, and takes no time.
    fn serve(&mut self, now_ns: u64) {
        self.serve_in(now_ns, 0);
    }

    /// And takes so long.
    fn serve_in(&mut self, now_ns: u64, took_ns: u64) {
        let Some(mut job) = self.scores.next_job(now_ns) else {
            return;
        };
        // A machine on which everything takes long.
        job.allowance.for_ns = u64::MAX;
        let mut report = self.looker.done(job, now_ns);
        report.took_ns = took_ns;
        let errors = &mut self.errors;
        self.scores
            .take_in(report, now_ns + took_ns, &mut |_, error| {
                errors.push(error.to_string());
            });
    }

    /// One look at every cgroup.
    fn look(&mut self, now_ns: u64, writes: u32) {
        self.look_within(now_ns, &mut budget(u32::MAX, writes, u64::MAX));
    }

    fn look_within(&mut self, now_ns: u64, budget: &mut Budget) {
        self.look_at(None, now_ns, budget);
    }

    /// One look at every cgroup, of which one has a newcomer.
    fn look_at(&mut self, newcomer: Option<Newcomer>, now_ns: u64, budget: &mut Budget) {
        let Self {
            scores,
            errors,
            looker,
            ..
        } = self;
        for cgroup in &mut scores.pods.get_mut(&PodUid::from("u")).unwrap().cgroups {
            let of_this = newcomer.filter(|newcomer| newcomer.cgroup_id == cgroup.id);
            let pids = Vec::from_iter(of_this.map(|newcomer| newcomer.pid));
            let mut processes = cgroup.take().unwrap();
            let mut failed = |error: OomScoreError| errors.push(error.to_string());
            processes.look(&pids, now_ns, &mut looker.turn(budget, &mut failed));
            cgroup.processes = Some(processes);
        }
    }

    fn processes(&mut self, cgroup: &str) -> &mut Processes {
        let id = self.id(cgroup);
        self.pod()
            .cgroup_mut(id)
            .unwrap()
            .processes
            .as_mut()
            .unwrap()
    }
}

fn budget(processes: u32, writes: u32, for_ns: u64) -> Budget {
    Budget::from_now(Allowance {
        processes,
        writes,
        for_ns,
    })
}

#[test]
fn each_cgroup_has_its_containers_score() {
    let mut fake = Fake::new();
    let wanted: BTreeMap<String, i32> = fake
        .pod()
        .cgroups
        .iter()
        .map(|cgroup| {
            let dir = cgroup.dir.to_string_lossy();
            (dir.rsplit("pod").next().unwrap().to_owned(), cgroup.wanted)
        })
        .collect();
    // The pod's own has the least protected one's; a runtime's sandbox has none of ours.
    let expected = [
        ("/", 999),
        ("/free", 999),
        ("/main", 900),
        ("/main/below", 900),
    ];
    assert_eq!(
        wanted,
        expected.map(|(name, adj)| (name.to_owned(), adj)).into()
    );
}

/// A pod that may make cgroups may give them the container's name: the order of the pods counts it once.
#[test]
fn a_cgroup_made_in_a_container_is_no_container_whatever_its_name() {
    let mut fake = Fake::new();
    fs::create_dir_all(fake.cgroup("main/main/main")).unwrap();
    fake.find_these(["", "main", "free", "main/main", "main/main/main"]);
    let uid = PodUid::from("u");
    let containers = fake.scores.containers(&uid).map(|one| (one.name, one.dir));
    let mut containers: Vec<_> = containers.collect();
    containers.sort_unstable();
    let expected = ["free", "main"].map(|name| (name, fake.cgroup(name)));
    let expected: Vec<_> = expected.iter().map(|(name, dir)| (*name, &**dir)).collect();
    assert_eq!(containers, expected);
    // Its processes have the container's score all the same.
    assert_eq!(fake.pod().cgroups.len(), 5);
}

/// The API lists a container's id a second after its start, and later where it is slow.
#[test]
fn a_container_has_its_score_as_soon_as_its_runtime_has_named_it() {
    let mut fake = Fake::new();
    let (known, unknown) = ("a".repeat(64), "b".repeat(64));
    let cgroups = [String::new(), known.clone(), unknown.clone()];
    for cgroup in &cgroups {
        fs::create_dir_all(fake.cgroup(cgroup)).unwrap();
    }
    let uid = PodUid::from("u");
    let mut find = || {
        fake.find_these(cgroups.iter().map(String::as_str));
        let named = fake.scores.containers(&uid);
        let named: Vec<String> = named.map(|it| it.name.to_owned()).collect();
        // Of a name that the pod does not have nothing is believed.
        for (id, name) in [(&known, "main"), (&unknown, "other")] {
            fake.scores.note_made(&uid, id.clone(), name.to_owned());
        }
        named
    };
    assert_eq!(find(), [""; 0]);
    assert_eq!(find(), ["main"]);
}

#[test]
fn whoever_is_there_at_the_start_is_served() {
    let mut fake = Fake::new();
    for (pid, adj) in [(100_001, 0), (100_002, 1000), (100_003, 900)] {
        fake.set(pid, adj);
    }
    fake.set(100_009, -998);
    fake.procs("main", &[100_003, 100_001, 100_002, 100_004]);
    fake.procs("0123abcd", &[100_009]);
    fake.look(1, 100);
    assert_eq!(
        [100_001, 100_002, 100_003].map(|pid| fake.adj(pid)),
        [900; 3]
    );
    assert_eq!(fake.adj(100_009), -998, "a runtime's sandbox was touched");
    assert_eq!(fake.looker.counts.written, 2);
    assert_eq!(fake.errors, Vec::<String>::new());
}

#[test]
fn a_newcomer_is_served_and_a_raised_score_is_not_fought() {
    let mut fake = Fake::new();
    fake.look(1, 100);
    fake.set(100_001, 0);
    fake.set(100_002, 1000);
    fake.procs("main", &[100_001, 100_002]);
    fake.attach("main", 100_001);
    assert_eq!(fake.adj(100_001), 900);
    // Not named by a record, and higher: somebody's choice.
    assert_eq!(fake.adj(100_002), 1000);
    fake.attach("main", 100_002);
    assert_eq!(fake.adj(100_002), 900);
    // It raises itself, and its child inherits that.
    fake.set(100_002, 950);
    fake.set(100_003, 950);
    fake.procs("main", &[100_001, 100_002, 100_003]);
    fake.look(2, 100);
    let review = |fake: &mut Fake| {
        for cgroup in &mut fake.pod().cgroups {
            cgroup.processes.as_mut().unwrap().review_due = true;
        }
        fake.look(3, 100);
    };
    review(&mut fake);
    assert_eq!([100_002, 100_003].map(|pid| fake.adj(pid)), [950; 2]);
    // Lowering is another matter: only who may can do that, and the next review takes it back.
    fake.set(100_001, -1000);
    review(&mut fake);
    assert_eq!(fake.adj(100_001), 900);
}

#[test]
fn a_child_forked_before_its_parent_was_served_is_found() {
    let mut fake = Fake::with(
        r#"{"spec":{"containers":[{"name":"main","resources":{"limits":{"cpu":"1","memory":"1Gi"}}}]}}"#,
    );
    fake.look(1, 100);
    // Both have 0, more than a Guaranteed container's -997; only the parent is named.
    fake.set(100_001, 0);
    fake.set(100_002, 0);
    fake.procs("main", &[100_001]);
    fake.attach("main", 100_001);
    fake.procs("main", &[100_001, 100_002]);
    // Its fork was in flight: it is listed only now.
    let again_ns = fake.scores.serve_at_ns().unwrap();
    assert_eq!(again_ns, 1 + AGAIN_NS[0]);
    fake.serve(again_ns);
    assert_eq!([100_001, 100_002].map(|pid| fake.adj(pid)), [-997; 2]);
    for _ in 1..AGAIN_NS.len() {
        let again_ns = fake.scores.serve_at_ns().unwrap();
        fake.serve(again_ns);
    }
    assert_eq!(fake.scores.serve_at_ns(), None, "for ever");
}

#[test]
fn a_child_that_is_listed_with_its_parent_is_no_stranger() {
    let mut fake = Fake::with(
        r#"{"spec":{"containers":[{"name":"main","resources":{"limits":{"cpu":"1","memory":"1Gi"}}}]}}"#,
    );
    fake.set(100_001, -997);
    fake.procs("main", &[100_001]);
    fake.look(1, 100);
    // Only the parent is named, and both are listed; the child has the smaller pid.
    fake.set(100_002, 0);
    fake.set(100_003, 0);
    fake.procs("main", &[100_001, 100_002, 100_003]);
    fake.attach("main", 100_003);
    assert_eq!([100_002, 100_003].map(|pid| fake.adj(pid)), [-997; 2]);
}

#[test]
fn a_child_that_is_seen_before_its_parents_record_is_found() {
    let mut fake = Fake::new();
    fake.look(1, 100);
    // A shell and its child have been moved in; a look for another reason comes before the record.
    fake.set(100_001, 1000);
    fake.set(100_002, 1000);
    // And one that has raised its own score.
    fake.set(100_003, 950);
    fake.procs("main", &[100_001, 100_002, 100_003]);
    fake.look(2, 100);
    let scores = |fake: &Fake| [100_001, 100_002, 100_003].map(|pid| fake.adj(pid));
    assert_eq!(scores(&fake), [1000, 1000, 950]);
    fake.attach("main", 100_001);
    assert_eq!(scores(&fake), [900, 900, 950]);
    // A score that was high for longer than any record takes is a choice.
    fake.set(100_004, 1000);
    fake.procs("main", &[100_003, 100_004]);
    let cgroup = fake.id("main");
    fake.processes("main").inherited = Recent::default();
    fake.look(3, 100);
    fake.look(3 + DOUBT_NS, 100);
    fake.set(100_005, 1000);
    fake.procs("main", &[100_003, 100_004, 100_005]);
    fake.scores.came(cgroup, 100_005);
    fake.serve(4 + DOUBT_NS);
    assert_eq!([fake.adj(100_004), fake.adj(100_005)], [1000, 900]);
}

#[test]
fn who_is_in_doubt_is_judged_later_where_there_is_no_time_now() {
    let mut fake = Fake::new();
    fake.look(1, 100);
    fake.set(100_001, 1000);
    fake.set(100_002, 1000);
    fake.procs("main", &[100_001, 100_002]);
    fake.look(2, 100);
    let newcomer = Newcomer {
        cgroup_id: fake.id("main"),
        pid: 100_001,
    };
    let one_write = &mut budget(u32::MAX, 1, u64::MAX);
    fake.look_at(Some(newcomer), 3, one_write);
    assert_eq!([100_001, 100_002].map(|pid| fake.adj(pid)), [900, 1000]);
    fake.look(4, 100);
    assert_eq!([100_001, 100_002].map(|pid| fake.adj(pid)), [900, 900]);
}

#[test]
fn a_new_score_reaches_what_had_the_old_one() {
    let mut fake = Fake::new();
    for (pid, adj) in [(100_001, 0), (100_002, 0)] {
        fake.set(pid, adj);
    }
    fake.procs("main", &[100_001, 100_002]);
    fake.look(1, 100);
    fake.set(100_002, 950);
    fake.scores.order(&PodUid::from("u"), "main", Some(500));
    fake.look(2, 100);
    assert_eq!([100_001, 100_002].map(|pid| fake.adj(pid)), [500, 950]);
    fake.scores.order(&PodUid::from("u"), "main", Some(970));
    fake.look(3, 100);
    assert_eq!([100_001, 100_002].map(|pid| fake.adj(pid)), [970, 970]);
    fake.scores.order(&PodUid::from("u"), "main", None);
    fake.look(4, 100);
    assert_eq!([100_001, 100_002].map(|pid| fake.adj(pid)), [900, 900]);
}

#[test]
fn a_turn_writes_no_more_than_its_budget_and_goes_on_later() {
    let mut fake = Fake::new();
    let pids: Vec<u32> = (100_001..100_301).collect();
    for &pid in &pids {
        fake.set(pid, 0);
    }
    fake.procs("main", &pids);
    let mut turns = 0;
    while pids.iter().any(|pid| fake.adj(*pid) != 900) {
        let before = fake.looker.counts.written;
        turns += 1;
        fake.look(turns, 128);
        assert!(fake.looker.counts.written - before <= 128);
        assert!(turns <= 3, "no end");
    }
    assert_eq!((turns, fake.looker.counts.written), (3, 300));
}

/// Of a pod with very many processes a turn looks at a few, and the next one goes on after those: at the first look,
/// for a new score, and when nothing is to do.
#[test]
fn a_turn_looks_at_no_more_than_its_budget_and_goes_on_where_it_was() {
    const COUNT: u32 = 4_000;
    let mut fake = Fake::new();
    let pids: Vec<u32> = (100_001..=100_000 + COUNT).collect();
    for &pid in &pids {
        fake.set(pid, 900);
    }
    fake.procs("main", &pids);
    let turn = || budget(256, 128, u64::MAX);
    let mut now_ns = 0;
    let mut rounds = |fake: &mut Fake, most: u32| {
        let mut turns = 0;
        loop {
            now_ns += 1;
            turns += 1;
            fake.look_within(now_ns, &mut turn());
            let cgroups = &fake.pod().cgroups;
            if !cgroups.iter().any(CgroupScores::is_left) {
                return turns;
            }
            assert!(turns <= most, "no end");
        }
    };
    let looks = COUNT.div_ceil(256);
    assert!((looks..=looks + 1).contains(&rounds(&mut fake, looks + 1)));
    assert_eq!(fake.looker.counts.written, 0, "all were right");
    fake.scores.order(&PodUid::from("u"), "main", Some(950));
    let writes = COUNT.div_ceil(128);
    assert!((writes..=writes + 2).contains(&rounds(&mut fake, writes + 2)));
    assert!(pids.iter().all(|pid| fake.adj(*pid) == 950));
    // A newcomer that the budget does not reach is one still.
    fake.set(300_000, 1000);
    fake.set(200_000, 1000);
    let newer: Vec<u32> = pids.iter().copied().chain([200_000, 300_000]).collect();
    fake.procs("main", &newer);
    let mut one_look = budget(1, 1, u64::MAX);
    let mut failed = |error: OomScoreError| panic!("{error}");
    let mut looker = Looker::new(HostRoot::new(fake.dir.path()));
    let mut turn = looker.turn(&mut one_look, &mut failed);
    let processes = fake.processes("main");
    processes.look(&[200_000, 300_000], now_ns, &mut turn);
    assert_eq!((fake.adj(200_000), fake.adj(300_000)), (950, 1000));
    fake.look(now_ns + 1, 100);
    assert_eq!(fake.adj(300_000), 950);
}

/// However long a look takes, the next one goes further.
#[test]
fn a_turn_without_time_comes_to_an_end() {
    let mut fake = Fake::new();
    let pids: Vec<u32> = (100_001..=100_200).collect();
    for &pid in &pids {
        fake.set(pid, 0);
    }
    fake.procs("main", &pids);
    let mut turns = 0;
    while pids.iter().any(|pid| fake.adj(*pid) != 900) {
        turns += 1;
        fake.look_within(turns, &mut budget(256, 128, 0));
        assert!(turns <= 210, "no end");
    }
    assert!(turns >= 200, "one at a time: {turns}");
}

/// A review of all processes.
fn review(fake: &mut Fake, now_ns: u64) -> u64 {
    for cgroup in &mut fake.pod().cgroups {
        cgroup.processes.as_mut().unwrap().review_due = true;
    }
    let before = fake.looker.counts.readings;
    fake.look(now_ns, 100);
    fake.looker.counts.readings - before
}

#[test]
fn a_review_that_finds_all_right_reads_each_cgroup_once() {
    let mut fake = Fake::new();
    for (pid, adj) in [(11, 0), (12, 0)] {
        fake.set(pid, adj);
    }
    fake.procs("main", &[11, 12]);
    fake.look(1, 100);
    assert_eq!((fake.adj(11), fake.adj(12)), (900, 900));
    assert_eq!(review(&mut fake, 2), 4, "of four cgroups");
    // Privilege has lowered one: what it forks until it is put right has the low score, too. One reading for the proof,
    // one for what was forked.
    fake.set(12, 5);
    assert_eq!(review(&mut fake, 3), 4 + 2);
    assert_eq!(fake.adj(12), 900);
    // Who is new is found by a review as well, and what that one may have forked.
    fake.set(13, 5);
    fake.procs("main", &[11, 12, 13]);
    assert_eq!(review(&mut fake, 4), 4 + 2);
    assert_eq!(fake.adj(13), 900);
    // One that has ended since the listing may have been wrong, and have forked before.
    fs::remove_dir_all(fake.dir.path().join("proc/12")).unwrap();
    assert_eq!(review(&mut fake, 5), 4 + 1);
}

#[test]
fn a_flood_of_foreign_attaches_reads_nothing() {
    let mut fake = Fake::new();
    fake.look(1, 100);
    fake.set(100_001, 0);
    fake.procs("main", &[100_001]);
    let before = fake.looker.counts;
    let id = fake.id("main");
    for index in 0..100_000 {
        fake.scores.came(id + 1_000_000 + index, 100_001);
    }
    assert_eq!(fake.scores.serve_at_ns(), None);
    fake.serve(1);
    assert_eq!(fake.looker.counts, before);
    assert_eq!(fake.adj(100_001), 0);
}

#[test]
fn a_flood_in_one_cgroup_costs_a_tenth_and_is_served_together() {
    let mut fake = Fake::new();
    fake.look(1, 100);
    let (id, other) = (fake.id("main"), fake.id("free"));
    for pid in 0..100 {
        fake.scores.came(id, 100_000 + pid);
    }
    fake.scores.came(other, 5);
    let before = fake.looker.counts.readings;
    fake.serve_in(1000, 700);
    assert_eq!(fake.looker.counts.readings - before, 1, "all of main");
    assert_eq!(fake.scores.serve_at_ns(), Some(8000), "and then the other");
    fake.serve(8000);
    assert!(fake.scores.newcomers.is_empty());
    assert_eq!(
        fake.scores.serve_at_ns(),
        Some(1700 + AGAIN_NS[0]),
        "forks that were in flight"
    );
}

#[test]
fn too_many_newcomers_lead_to_a_review_of_their_cgroup() {
    let mut fake = Fake::new();
    fake.look(1, 100);
    fake.set(100_001, 1000);
    fake.procs("main", &[100_001]);
    let (id, other) = (fake.id("main"), fake.id("free"));
    for _ in 0..NEWCOMERS_MAX {
        fake.scores.came(other, 2);
    }
    fake.scores.came(id, 100_001);
    assert_eq!(fake.scores.counts().overflowed, 1);
    let reviewed = |fake: &mut Fake| -> Vec<u64> {
        let cgroups = fake.pod().cgroups.iter();
        let due = cgroups.filter(|cgroup| cgroup.is_left());
        due.map(|cgroup| cgroup.id).collect()
    };
    assert_eq!(reviewed(&mut fake), [id]);
    fake.look(2, 100);
    assert_eq!(fake.adj(100_001), 900);
}

#[test]
fn newcomers_of_one_cgroup_do_not_keep_another_one_from_its_second_look() {
    let mut fake = Fake::new();
    fake.look(1, 100);
    fake.set(100_001, 1000);
    fake.set(100_002, 1000);
    fake.procs("main", &[100_001]);
    fake.attach("main", 100_001);
    fake.procs("main", &[100_001, 100_002]);
    let again_ns = fake.scores.serve_at_ns().unwrap();
    let flooded = fake.id("free");
    for _ in 0..2 {
        fake.scores.came(flooded, 2);
        fake.serve(again_ns);
    }
    assert_eq!(fake.adj(100_002), 900);
}

#[test]
fn an_unreadable_file_is_an_error() {
    let mut fake = Fake::new();
    let procs = fake.cgroup("main").join("cgroup.procs");
    fs::remove_file(&procs).unwrap();
    fs::create_dir(&procs).unwrap();
    fake.look(1, 100);
    assert_eq!(fake.errors.len(), 1);
    assert!(
        fake.errors[0].contains("main/cgroup.procs"),
        "{:?}",
        fake.errors
    );
    for now_ns in 2..100 {
        fake.look(now_ns, 100);
    }
    assert_eq!(fake.errors.len(), 1, "once for a cgroup");
}

impl Fake {
    /// From now on a thread looks.
    fn start(&mut self) {
        let looker = Looker::new(HostRoot::new(self.dir.path()));
        let thread = ScoreThread::start(looker, Arc::default()).unwrap();
        self.scores.thread = Some(thread);
    }

    fn keep_on(&mut self) {
        let errors = &mut self.errors;
        self.scores.keep_on(now_ns(), &mut |_, error| {
            errors.push(error.to_string());
        });
    }

    /// Until these have their score.
    fn wait_for(&mut self, pids: &[u32], adj: i32) {
        for _ in 0..10_000 {
            self.keep_on();
            if pids.iter().all(|pid| self.adj(*pid) == adj) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("never: {:?}", self.scores);
    }

    /// Whoever lists this cgroup waits, as for a lock of the kernel. Returns another name of what is waited for.
    fn hold_up(&self, cgroup: &str) -> PathBuf {
        let procs = self.cgroup(cgroup).join("cgroup.procs");
        let held = self.dir.path().join("held");
        fs::remove_file(&procs).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, &procs, FileType::Fifo, mode, 0).unwrap();
        fs::hard_link(&procs, &held).unwrap();
        held
    }
}

/// A write of a score takes a lock that any process can hold for seconds.
#[test]
fn a_look_that_is_held_up_holds_up_nobody_who_asks_for_it() {
    let mut fake = Fake::new();
    fake.start();
    fake.set(100_001, 0);
    fake.set(100_002, 0);
    let held = fake.hold_up("main");
    let (main, free) = (fake.id("main"), fake.id("free"));
    fake.scores.came(main, 100_001);
    fake.keep_on();
    // The loop goes on: more come, and those of the same cgroup as well.
    fake.procs("free", &[100_002]);
    for _ in 0..100 {
        fake.scores.came(free, 100_002);
        fake.scores.came(main, 100_001);
        fake.keep_on();
    }
    assert_eq!(fake.scores.away, [main]);
    assert_eq!(fake.scores.serve_at_ns(), None, "the thread tells when");
    assert_eq!([100_001, 100_002].map(|pid| fake.adj(pid)), [0, 0]);
    // What waited has its turn, and what was held up has another one.
    let let_go = fs::OpenOptions::new().write(true).open(held).unwrap();
    let listed = fake.dir.path().join("listed");
    fs::write(&listed, "100001\n").unwrap();
    fs::rename(&listed, fake.cgroup("main").join("cgroup.procs")).unwrap();
    drop(let_go);
    fake.wait_for(&[100_001], 900);
    fake.wait_for(&[100_002], 999);
    assert_eq!(fake.errors, Vec::<String>::new());
}

/// What is due waits where the thread has no place: none of it is lost, and no pod's is looked at twice.
#[test]
fn more_cgroups_than_have_places_wait_for_their_turn() {
    let mut fake = Fake::new();
    let names: Vec<String> = (0..3 * JOBS_MAX).map(|it| format!("main/{it}")).collect();
    for name in &names {
        fs::create_dir_all(fake.cgroup(name)).unwrap();
        fake.procs(name, &[]);
    }
    fake.find_these([""].into_iter().chain(names.iter().map(|name| &**name)));
    let uid = PodUid::from("u");
    fake.scores.queue_due(&uid, 1);
    fake.scores.queue_due(&uid, 1);
    let mut jobs = Vec::new();
    let take = |fake: &mut Fake| std::iter::from_fn(|| fake.scores.next_job(1)).collect::<Vec<_>>();
    jobs.extend(take(&mut fake));
    assert_eq!(jobs.len(), FOLLOWED_MAX, "a newcomer waits behind no more");
    assert_eq!(fake.scores.serve_at_ns(), None);
    let mut looks = 0;
    while let Some(job) = jobs.pop() {
        looks += 1;
        let report = fake.looker.done(job, 1);
        fake.scores.take_in(report, 1, &mut |_, _| {});
        jobs.extend(take(&mut fake));
    }
    assert_eq!(looks, 1 + names.len());
    assert!(fake.scores.away.is_empty());
}

#[test]
fn scores_are_put_back_and_the_end_does_not_wait_for_a_thread_that_is_held_up() {
    let mut fake = Fake::new();
    for (pid, cgroup) in [(100_001, "main"), (100_002, "free")] {
        fake.set(pid, 0);
        fake.procs(cgroup, &[pid]);
    }
    fake.start();
    let uid = PodUid::from("u");
    for container in ["main", "free"] {
        fake.scores.order(&uid, container, Some(500));
    }
    fake.scores.queue_due(&uid, now_ns());
    fake.wait_for(&[100_001, 100_002], 500);
    assert_eq!(fake.scores.put_back(&mut |_, _| {}), 0);
    assert_eq!([100_001, 100_002].map(|pid| fake.adj(pid)), [900, 999]);

    fake.scores.order(&uid, "main", Some(400));
    fake.scores.queue_due(&uid, now_ns());
    fake.wait_for(&[100_001], 400);
    let _held = fake.hold_up("main");
    assert!(fake.scores.put_back(&mut |_, _| {}) > 0);
    assert_eq!(fake.adj(100_001), 400);
}

/// A real process; killed at the end.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// On the real procfs: raising needs no privilege.
#[test]
fn a_real_process_gets_its_score() {
    let mut fake = Fake::new();
    fs::rename(
        fake.dir.path().join("proc"),
        fake.dir.path().join("fake-proc"),
    )
    .unwrap();
    std::os::unix::fs::symlink("/proc", fake.dir.path().join("proc")).unwrap();
    let sleeper = Sleeper(
        Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let pid = sleeper.0.id();
    fake.procs("main", &[pid]);
    fake.attach("main", pid);
    let path = format!("/proc/{pid}/oom_score_adj");
    assert_eq!(fs::read_to_string(&path).unwrap().trim(), "900");
    assert_eq!(fake.errors, Vec::<String>::new());
    // Gone: nothing to do, nothing to say.
    drop(sleeper);
    std::thread::sleep(Duration::from_millis(10));
    fake.scores.order(&PodUid::from("u"), "main", Some(950));
    fake.look(2, 100);
    assert_eq!(fake.errors, Vec::<String>::new());
}
