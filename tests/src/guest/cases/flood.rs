//! A hostile cgroup floods the rings: what is urgent arrives all the same, and every record is accounted for.
//!
//! `PLIMSOLL_FLOOD_RECORDS=1000000` makes the flood as large as that (minutes in an emulated guest); without it, it is
//! as large as some seconds allow.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use plimsoll::kernel::decode::{Body, OomLimit, RefaultKind};
use plimsoll::kernel::object::object;
use plimsoll::kernel::{Account, AtEnd, Bpf, BpfOptions, Counted, Counts, Family, HookSet};
use plimsoll_abi::{BY_CGROUP_AND_CAUSE_MAX, Kind, OOM_RECORDS_PER_WINDOW};
use rustix::fs::{Advice, fadvise};

use super::super::cgroup;
use super::super::clock::wait_until;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::memory::mib;
use super::super::process::{Guard, hog_in, program, shell_in};
use super::disk::Disk;
use super::needs_memory_v2;
use super::records::{Scratch, id};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "flood::what_is_urgent_arrives_and_all_is_accounted_for",
        on: On::Once(Machine::V7_2),
        run: lifecycle_flood,
    },
    Test {
        name: "flood::requests_for_huge_pages_that_are_refused_are_hardly_charges",
        on: On::Once(Machine::V7_2),
        run: huge_requests,
    },
    Test {
        name: "flood::kills_beyond_a_cgroup_s_share_are_counted",
        on: On::Weekly(Machine::V6_1),
        run: oom_flood,
    },
    Test {
        name: "flood::a_pod_of_many_cgroups_leaves_the_counts_of_others_alone",
        // The programs that count are the same on every kernel, and eight thousand cgroups take their time.
        on: On::Weekly(Machine::V7_2),
        run: cgroup_flood,
    },
];

/// Records of the flood when nothing is said.
const RECORDS: u64 = 16_000;
/// Cgroups in each chain through which a process is moved.
const DEPTH: usize = 48;
/// A user without any privilege.
const NOBODY: u32 = 65_534;
/// Thresholds that are armed and crossed meanwhile.
const CROSSINGS: u64 = 24;
/// The flood has so long.
const PATIENCE: Duration = Duration::from_secs(1500);
/// The kinds that it consists of.
const KINDS: [Kind; 4] = [
    Kind::CgroupMkdir,
    Kind::CgroupRmdir,
    Kind::CgroupAttach,
    Kind::CgroupPopulated,
];

fn produced(account: &Account) -> u64 {
    KINDS.map(|kind| account.of(kind).produced).iter().sum()
}

fn load(window: Duration) -> anyhow::Result<Bpf> {
    Ok(Bpf::load(
        object()?,
        &BpfOptions {
            hooks: HookSet::ALL,
            without: &[],
            window,
            counts: Counts::EachCgroup,
        },
    )?)
}

/// A cgroup of the memory hierarchy, removed at the end.
struct Hostile(PathBuf);

impl Hostile {
    fn new(name: &str) -> anyhow::Result<Self> {
        let root = cgroup::memory_root();
        let path = root.join(name);
        ensure!(cgroup::remove(&path), "{} stays", path.display());
        let control = root.join("cgroup.subtree_control");
        if control.exists() {
            fs::write(control, "+memory")?;
        }
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// Whoever gets this may make cgroups below and move his processes, and nothing else.
    fn delegate(&self) -> anyhow::Result<()> {
        chown(&self.0)?;
        chown(&self.0.join("cgroup.procs"))
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        if !cgroup::remove(&self.0) {
            eprintln!("{} stays", self.0.display());
        }
    }
}

/// Two chains of cgroups, and a user without any privilege who moves a process from the end of one to the end of the
/// other: every cgroup on the way is emptied or filled, a record each. And one who makes and removes cgroups.
fn storm(hostile: &Hostile) -> anyhow::Result<Vec<Guard>> {
    let mut ends = Vec::new();
    for chain in ["a", "b"] {
        let mut path = hostile.0.clone();
        for level in 0..DEPTH {
            path.push(if level == 0 { chain } else { "c" });
            fs::create_dir(&path)?;
            chown(&path)?;
            chown(&path.join("cgroup.procs"))?;
        }
        ends.push(path);
    }
    let [from, to] = &ends[..] else {
        anyhow::bail!("two chains")
    };
    let movers = (0..2).map(|_| {
        format!(
            "set -e; read go; while :; do echo $$ > {}/cgroup.procs; echo $$ > {}/cgroup.procs; done",
            to.display(),
            from.display()
        )
    });
    let makers = (0..1).map(|maker| {
        let path = hostile.0.join(format!("made-{maker}"));
        format!(
            "set -e; read go; while :; do mkdir {0}; rmdir {0}; done",
            path.display()
        )
    });
    movers
        .chain(makers)
        .map(|script| {
            let mut child = Command::new("sh")
                .args(["-c", &script])
                .uid(NOBODY)
                .gid(NOBODY)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::inherit())
                .spawn()
                .context("starting a shell")?;
            // Whoever delegates a cgroup puts the first process into it.
            fs::write(from.join("cgroup.procs"), child.id().to_string())?;
            drop(child.stdin.take().map(|mut input| input.write_all(b"go\n")));
            Ok(Guard(child))
        })
        .collect()
}

fn chown(path: &Path) -> anyhow::Result<()> {
    std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY))
        .with_context(|| path.display().to_string())
}

/// A request for huge pages is charged, whole, before it is refused: 64 TiB each, which no memory stands for.
fn huge_requests() -> Outcome {
    const REQUESTS: u64 = 1000;
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let hostile = Hostile::new("huge-requests")?;
    let mut bpf = load(Duration::from_millis(100))?;
    let before = bpf.charged_bytes().context("charges are counted")?;
    bpf.arm_charges(before + mib(64 * 1024))?;
    let mut asking = hog_in(&hostile.0, &format!("huge-requests --count {REQUESTS}"))?;
    ensure!(asking.wait_gone(PATIENCE), "it is still asking");
    let after = bpf.charged_bytes().context("charges are counted")?;
    let charged = after - before;
    // It is charged at all: the kernel has not come to refuse them earlier.
    ensure!(
        (REQUESTS * mib(1)..=REQUESTS * mib(4) + mib(256)).contains(&charged),
        "{charged} bytes were charged for {REQUESTS} requests that were refused"
    );
    // Neither is what comes afterwards lost among them.
    let armed = after + mib(32);
    bpf.arm_charges(armed)?;
    let mut told = 0;
    bpf.drain_critical(512, |record| {
        told += u64::from(matches!(record.body, Body::ChargesReached { .. }))
    });
    ensure!(told == 0, "{told} crossings told that were none");
    let _charger = hog_in(&hostile.0, "hold --mb 64")?;
    wait_until(PATIENCE, Duration::from_millis(10), || {
        bpf.drain_critical(512, |record| match record.body {
            Body::ChargesReached { charged_bytes, .. } if charged_bytes >= armed => told += 1,
            _ => {}
        });
        told > 0
    });
    ensure!(told == 1, "the crossing was told {told} times");
    eprintln!("{charged} bytes charged for {REQUESTS} requests");
    Ok(Done::Passed)
}

fn lifecycle_flood() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let records: u64 = match std::env::var("PLIMSOLL_FLOOD_RECORDS") {
        Ok(text) => text.parse().context("PLIMSOLL_FLOOD_RECORDS")?,
        Err(_) => RECORDS,
    };
    let hostile = Hostile::new("flood")?;
    hostile.delegate()?;
    let victim = Hostile::new("flood-victim")?;
    fs::write(victim.0.join("memory.max"), mib(8).to_string())?;
    let mut bpf = load(Duration::from_millis(100))?;
    let charged = Hostile::new("flood-charged")?;
    let storm = storm(&hostile)?;
    let _charger = hog_in(&charged.0, "ramp --rate-mb-s 2 --max-mb 768")?;
    let begin = Instant::now();
    let (mut armed, mut crossed, mut late, mut choices) = (0, 0, 0, 0);
    let mut kills = 0_u64;
    let mut hog: Option<Guard> = None;
    let mut is_armed = false;
    let mut seen = 0;
    while seen < records || crossed < CROSSINGS || kills < 2 {
        ensure!(begin.elapsed() < PATIENCE, "{seen} of {records} records");
        // All through the flood, not only while it is young.
        if !is_armed && armed < CROSSINGS && seen >= records / CROSSINGS * armed {
            let charged = bpf.charged_bytes().context("charges are counted")?;
            bpf.arm_charges(charged + 4096)?;
            (is_armed, armed) = (true, armed + 1);
        }
        if hog.is_none() && kills < 2 {
            hog = Some(hog_in(&victim.0, "hold --mb 24")?);
        } else if let Some(running) = &mut hog
            && running.wait_gone(Duration::ZERO)
        {
            (hog, kills) = (None, kills + 1);
        }
        bpf.drain_critical(512, |record| match record.body {
            Body::ChargesReached { .. } => {
                crossed += 1;
                is_armed = false;
                late += u64::from(record.cgroup_id != 0);
            }
            Body::OomKill { limit, .. } => choices += u64::from(limit != OomLimit::Unknown),
            _ => {}
        });
        // For most of the flood nobody reads the other ring, so that it overruns.
        if seen > records / 4 * 3 {
            bpf.drain_lifecycle(256, |_| {});
        }
        seen = produced(&bpf.account()?);
    }
    drop(storm);
    let took = begin.elapsed();
    let account = bpf.finish(AtEnd::Detach, |bpf| {
        for _ in 0..256 {
            bpf.drain_critical(512, |record| match record.body {
                Body::ChargesReached { .. } => crossed += 1,
                Body::OomKill { limit, .. } => choices += u64::from(limit != OomLimit::Unknown),
                _ => {}
            });
            bpf.drain_lifecycle(512, |_| {});
            bpf.drain_pressure(512, |_| {});
        }
    })?;
    let dropped: u64 = KINDS.map(|kind| account.of(kind).dropped).iter().sum();
    eprintln!(
        "{} records of the flood in {took:?}, {dropped} of them dropped; {armed} thresholds armed, {crossed} crossings told, {choices} OOM kills",
        produced(&account),
    );
    let open: Vec<_> = account.open().collect();
    ensure!(open.is_empty(), "this does not add up: {open:?}");
    ensure!(
        produced(&account) >= records && dropped > 0,
        "no flood: {} produced, {dropped} dropped",
        produced(&account)
    );
    ensure!(
        armed == CROSSINGS && crossed == armed && late == 0,
        "{crossed} crossings told of {armed}"
    );
    for kind in [Kind::ChargesReached, Kind::OomKill, Kind::NodeReclaim] {
        let count = account.of(kind);
        ensure!(
            count.dropped == 0 && count.folded == 0,
            "{}: {count:?}",
            kind.name()
        );
    }
    let oom_kills = cgroup::keyed(&victim.0.join("memory.events"), "oom_kill")?;
    ensure!(
        choices == oom_kills && choices >= 2,
        "{choices} choices told, memory.events {oom_kills}"
    );
    ensure!(account.unreadable == 0, "{} unreadable", account.unreadable);
    Ok(Done::Passed)
}

/// One kill of a whole cgroup with more processes than its share of records.
fn oom_flood() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let crowd = u32::try_from(OOM_RECORDS_PER_WINDOW)? + 40;
    let group = Hostile::new("flood-crowd")?;
    fs::write(group.0.join("memory.max"), mib(96).to_string())?;
    fs::write(group.0.join("memory.oom.group"), "1")?;
    // So long that all of it is one window.
    let mut bpf = load(Duration::from_secs(120))?;
    let script = format!(
        "i=0; while [ $i -lt {crowd} ]; do sleep 300 & i=$((i+1)); done; exec {} hold --mb 128",
        program("hog").display()
    );
    let mut shell = shell_in(&group.0, &script)?;
    ensure!(
        shell.wait_gone(Duration::from_secs(120)),
        "the crowd is over its limit and lives"
    );
    let (mut choices, mut victims) = (0_u64, 0_u64);
    let account = bpf.finish(AtEnd::Detach, |bpf| {
        bpf.drain_critical(4096, |record| {
            if let Body::OomKill { limit, .. } = record.body {
                if limit == OomLimit::Unknown {
                    victims += 1;
                } else {
                    choices += 1;
                }
            }
        });
        for _ in 0..64 {
            bpf.drain_lifecycle(1024, |_| {});
            bpf.drain_pressure(1024, |_| {});
        }
    })?;
    let count = account.of(Kind::OomKill);
    let (mut folded_choices, mut folded_victims) = (0, 0);
    bpf.drain_oom_kills(|totals| {
        folded_choices += totals.choices;
        folded_victims += totals.victims;
    })?;
    let kernel = cgroup::keyed(&group.0.join("memory.events"), "oom_kill")?;
    ensure!(
        kernel > u64::from(crowd),
        "{kernel} processes were killed of more than {crowd}"
    );
    ensure!(
        choices == 1 && choices + victims == OOM_RECORDS_PER_WINDOW,
        "{choices} choices and {victims} victims told"
    );
    ensure!(
        count.consumed == OOM_RECORDS_PER_WINDOW
            && count.dropped == 0
            && count.folded == folded_choices + folded_victims,
        "{count:?}, and {folded_choices} and {folded_victims} in totals"
    );
    // The kernel counts the chosen one twice, by itself and with its cgroup, unless it was dead by then; it marks a
    // task once.
    let named = victims + folded_victims;
    ensure!(
        folded_choices == 0 && (kernel - 1..=kernel).contains(&named),
        "{named} victims named, memory.events {kernel}"
    );
    Ok(Done::Passed)
}

const PAGE_BYTES: u64 = 4096;
/// Pages that stay in the page cache, and as many that need not: the kernel remembers evicted pages only while a cgroup
/// has some cache left (mm/workingset.c `count_shadow_nodes`).
const KEPT: u64 = 2048;

/// A file whose pages a cgroup has had in the page cache, and has no more.
struct Evicted(File);

impl Evicted {
    /// This process is in `cgroup` afterwards.
    fn new(disk: &Disk, cgroup: &Path, pages: u64) -> anyhow::Result<Self> {
        let name = cgroup.file_name().context("a cgroup has a name")?;
        let path = disk.0.join(name);
        let file = File::create_new(&path)?;
        // A hole: to read it takes no disk.
        let all = pages + KEPT + KEPT;
        file.set_len(all * PAGE_BYTES)?;
        let file = File::open(&path)?;
        join(cgroup)?;
        let mut page = [0; PAGE_BYTES as usize];
        for index in 0..all {
            file.read_exact_at(&mut page, index * PAGE_BYTES)?;
        }
        // One page at a time from now on.
        fadvise(&file, 0, None, Advice::Random)?;
        // The oldest go first. EAGAIN: it could not free as much.
        let reclaim = ((pages + KEPT) * PAGE_BYTES).to_string();
        let _less = fs::write(cgroup.join("memory.reclaim"), reclaim);
        Ok(Self(file))
    }

    fn read(&self, page: u64) -> anyhow::Result<()> {
        Ok(self.0.read_exact_at(&mut [0], page * PAGE_BYTES)?)
    }
}

/// Moves this process.
fn join(cgroup: &Path) -> anyhow::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), "0").with_context(|| cgroup.display().to_string())
}

fn pages_back(bpf: &Bpf, cgroup: &Path) -> anyhow::Result<u64> {
    let (mut pages, wanted) = (0, id(cgroup)?);
    bpf.drain_refaults(|totals| {
        if (totals.cgroup_id, totals.what) == (wanted, RefaultKind::File) {
            pages = totals.pages;
        }
    })?;
    Ok(pages)
}

/// A process goes through more cgroups than a map has places, reads one page back in each, and all of them stay.
fn cgroup_flood() -> Outcome {
    /// Pages that the other pod reads back.
    const OTHERS: u64 = 64;
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let places = u64::from(BY_CGROUP_AND_CAUSE_MAX);
    let many = places + 64;
    let disk = Disk::mount(64, 16384)?;
    let scratch = Scratch::new("memory")?;
    let (greedy, other) = (scratch.child("greedy")?, scratch.child("other")?);
    let mut bpf = Bpf::load(
        object()?,
        &BpfOptions {
            hooks: HookSet::NONE.with(Family::Refault),
            without: &[],
            window: Duration::from_millis(100),
            counts: Counts::PodsOnly,
        },
    )?;
    bpf.count_only(&Counted {
        memory: [id(&greedy)?, id(&other)?].into(),
        cpu: [].into(),
    })?;
    let others = Evicted::new(&disk, &other, OTHERS)?;
    let pages = Evicted::new(&disk, &greedy, many)?;
    let nested = |index| greedy.join(format!("n{index}"));
    let begin = Instant::now();
    for index in 0..many {
        fs::create_dir(nested(index))?;
        join(&nested(index))?;
        pages.read(index)?;
    }
    let made = begin.elapsed();
    join(&other)?;
    for index in 0..OTHERS {
        others.read(index)?;
    }
    join(&cgroup::memory_root())?;
    let kernel =
        |group: &Path| cgroup::keyed(&group.join("memory.stat"), "workingset_refault_file");
    let seen = [pages_back(&bpf, &other)?, pages_back(&bpf, &greedy)?];
    let mut wanted = [0; 2];
    // The kernel brings few changes up to date every two seconds.
    wait_until(Duration::from_secs(30), Duration::from_millis(100), || {
        wanted = [&other, &greedy].map(|group| kernel(group).unwrap_or(0));
        wanted == seen
    });
    let untracked = bpf.account()?.untracked();
    for index in 0..many {
        fs::remove_dir(nested(index))?;
    }
    eprintln!(
        "{many} cgroups in {made:?}, removed after {:?}; pages back {seen:?}, memory.stat {wanted:?}, untracked {untracked}",
        begin.elapsed()
    );
    // The page that was read last may have stayed.
    ensure!(
        seen == wanted && wanted[0] > OTHERS / 2 && wanted[1] > places && untracked == 0,
        "pages back: {seen:?}, memory.stat {wanted:?}; {untracked} found no place"
    );
    Ok(Done::Passed)
}
