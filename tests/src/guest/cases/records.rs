//! The BPF programs against a real kernel: each record is compared with what the kernel itself says.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use plimsoll::kernel::decode::{Body, MemoryLimitEvent, NodeCounters, OomLimit, Record};
use plimsoll::kernel::object::object;
use plimsoll::kernel::{Bpf, BpfOptions, Counts, Family, HookSet, HookState, Unavailable};
use plimsoll_abi::Kind;

use super::super::cgroup;
use super::super::clock::now_ns;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::Machine::{Hybrid, Numa8, V6_1, V6_12, V7_2};
use super::super::machines::On;
use super::super::memory::{Meminfo, MeminfoFile, mib};
use super::super::process::{hog_in, wait_log};
use super::needs_memory_v2;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "records::every_family_attaches",
        // And with several NUMA nodes: a program walks them.
        on: On::These(&[V6_1, V6_12, V7_2, Hybrid, Numa8]),
        run: every_family_attaches,
    },
    Test {
        name: "records::one_crossing_per_arming",
        on: On::EachKernelAndHybrid,
        run: one_crossing_per_arming,
    },
    Test {
        name: "records::a_cgroup_s_life",
        on: On::EachKernelAndHybrid,
        run: a_cgroup_s_life,
    },
    Test {
        name: "records::what_is_counted_goes_with_its_own_hierarchy_s_cgroup",
        on: On::EachKernelAndHybrid,
        run: what_is_counted_goes_with_its_own_hierarchy_s_cgroup,
    },
    Test {
        name: "records::oom_names_limit_owner_and_victim",
        on: On::EachKernel,
        run: oom_names_limit_owner_and_victim,
    },
    Test {
        name: "records::limit_counts_equal_memory_events",
        on: On::EachKernel,
        run: limit_counts_equal_memory_events,
    },
    Test {
        name: "records::throttle_time_equals_cpu_stat",
        on: On::EachKernel,
        run: throttle_time_equals_cpu_stat,
    },
    Test {
        name: "records::an_overrun_is_counted_exactly",
        on: On::EachKernel,
        run: an_overrun_is_counted_exactly,
    },
];

/// Instructions of a program that the verifier may walk, of the million that it takes: what it walks is the larger part
/// of the agent's start, and a program that is near the end on one kernel is beyond it on the next.
const WALKED_MAX: u32 = 120_000;

/// A scratch cgroup in the hierarchy of a controller.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new(controller: &str) -> anyhow::Result<Self> {
        let root = cgroup::hierarchies()
            .into_iter()
            .find(|root| {
                let v1 = root.file_name().is_some_and(|name| {
                    name.to_string_lossy()
                        .split(',')
                        .any(|part| part == controller)
                });
                v1 || fs::read_to_string(root.join("cgroup.controllers"))
                    .is_ok_and(|text| text.split_whitespace().any(|word| word == controller))
            })
            .with_context(|| format!("no hierarchy has the {controller} controller"))?;
        Self::at(root.join("records-test"))
    }

    /// Another one beside it, of the unified hierarchy.
    pub(super) fn beside(name: &str) -> anyhow::Result<Self> {
        Self::at(Path::new("/sys/fs/cgroup").join(name))
    }

    fn at(path: PathBuf) -> anyhow::Result<Self> {
        ensure!(
            cgroup::remove(&path),
            "{} cannot be removed",
            path.display()
        );
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(super) fn child(&self, name: &str) -> anyhow::Result<PathBuf> {
        // On v1 there is no such file and no need for it.
        let subtree = self.0.join("cgroup.subtree_control");
        if subtree.exists() {
            fs::write(subtree, "+memory")?;
        }
        let path = self.0.join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }

    pub(super) fn set(&self, file: &str, value: &str) -> anyhow::Result<()> {
        fs::write(self.0.join(file), value).with_context(|| format!("writing {value} to {file}"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !cgroup::remove(&self.0) {
            eprintln!("{} stays behind", self.0.display());
        }
    }
}

pub(super) fn id(directory: &Path) -> anyhow::Result<u64> {
    Ok(fs::metadata(directory)?.ino())
}

/// Loads these families.
pub(super) fn load(families: &[Family], window: Duration) -> anyhow::Result<Bpf> {
    let hooks = families
        .iter()
        .fold(HookSet::NONE, |set, &family| set.with(family));
    Ok(Bpf::load(
        object()?,
        &BpfOptions {
            hooks,
            without: &[],
            window,
            counts: Counts::EachCgroup,
        },
    )?)
}

/// Drains all rings for at most `timeout`, until `done`.
fn drain(bpf: &mut Bpf, timeout: Duration, mut done: impl FnMut(Record<'_>) -> bool) -> bool {
    let end = Instant::now() + timeout;
    let mut is_done = false;
    while !is_done && Instant::now() < end {
        bpf.drain_critical(1024, |record| is_done |= done(record));
        bpf.drain_lifecycle(1024, |record| is_done |= done(record));
        bpf.drain_pressure(1024, |record| is_done |= done(record));
        std::thread::sleep(Duration::from_millis(5));
    }
    is_done
}

/// What is there now, and arrives within a moment.
pub(super) fn settle(bpf: &mut Bpf, mut each: impl FnMut(Record<'_>)) {
    drain(bpf, Duration::from_millis(300), |record| {
        each(record);
        false
    });
}

fn every_family_attaches() -> Outcome {
    let bpf = Bpf::load(
        object()?,
        &BpfOptions {
            hooks: HookSet::ALL,
            without: &[],
            window: Duration::from_millis(10),
            counts: Counts::EachCgroup,
        },
    )?;
    for family in Family::ALL {
        let hooks = bpf.hooks().iter().filter(|hook| hook.family == family);
        ensure!(
            hooks.clone().any(|hook| hook.is_attached()),
            "{}: nothing attached: {:?}",
            family.name(),
            hooks.collect::<Vec<_>>()
        );
    }
    for hook in bpf.hooks() {
        // What this kernel does not have is fine; what it has and refuses is not.
        if let HookState::Unavailable(
            unavailable @ (Unavailable::Refused { .. } | Unavailable::KindRefused { .. }),
        ) = &hook.state
        {
            anyhow::bail!("{}: {unavailable}", hook.program);
        }
        if let HookState::Attached {
            verified_insns: Some(walked),
            ..
        } = hook.state
        {
            ensure!(
                walked <= WALKED_MAX,
                "{}: the verifier walked {walked} instructions, {WALKED_MAX} at most are wanted",
                hook.program
            );
        }
    }
    Ok(Done::Passed)
}

fn one_crossing_per_arming() -> Outcome {
    let scratch = Scratch::new("memory")?;
    let mut bpf = load(&[Family::Charges], Duration::from_millis(10))?;
    let nothing = bpf.newest_arming();
    let log = Path::new("/tmp/records-hog.log");
    let mut hogs = Vec::new();
    for _ in 0..3 {
        let charged = bpf.charged_bytes().context("charges are counted")?;
        // The second replaces the first, which then must not be reported.
        let replaced = bpf.arm_charges(charged + mib(16))?;
        let armed_bytes = charged + mib(24);
        let armed = bpf.arm_charges(armed_bytes)?;
        ensure!(
            replaced > nothing && armed > replaced && bpf.newest_arming() == armed,
            "{armed:?} after {replaced:?}"
        );
        let before_ns = now_ns();
        let before = MeminfoFile::open()?.read()?;
        let mut counted = None;
        // A log that is not there yet is as good as one that was removed.
        let _not_there = fs::remove_file(log);
        hogs.push(hog_in(
            &scratch.0,
            &format!("--log {} hold --mb 64", log.display()),
        )?);
        ensure!(
            wait_log(log, "ready", Duration::from_secs(30)).is_some(),
            "the hog did not come up"
        );
        let mut records = Vec::new();
        settle(&mut bpf, |record| {
            if let Body::ChargesReached {
                charged_bytes,
                generation,
                node,
            } = record.body
            {
                records.push((record.cgroup_id, charged_bytes, generation, record.ts_ns));
                counted = node;
            }
        });
        let &[(cgroup_id, charged_bytes, generation, at_ns)] = &records[..] else {
            anyhow::bail!("{} records for {armed:?}: {records:?}", records.len());
        };
        ensure!(
            cgroup_id == 0 && generation == armed,
            "the record is of cgroup {cgroup_id}, {generation:?}; {armed:?} was armed"
        );
        let now_charged = bpf.charged_bytes().context("charges are counted")?;
        ensure!(
            (armed_bytes..=now_charged).contains(&charged_bytes),
            "{charged_bytes} bytes charged, {armed_bytes} armed, {now_charged} charged now"
        );
        ensure!(
            at_ns > before_ns && at_ns < now_ns(),
            "the record's time {at_ns} is not of CLOCK_MONOTONIC"
        );
        let counted = counted.context("the record does not say what memory the node has")?;
        are_between(&counted, &before, &MeminfoFile::open()?.read()?)?;
    }
    Ok(Done::Passed)
}

/// What a record says of the node is between what `/proc/meminfo` says before and after the hog has come, but for what
/// else changes meanwhile.
fn are_between(counted: &NodeCounters, before: &Meminfo, after: &Meminfo) -> Result<()> {
    let figures = [
        (
            "free",
            counted.free_bytes,
            before.free_bytes,
            after.free_bytes,
        ),
        (
            "available",
            counted.available_bytes,
            before.available_bytes,
            after.available_bytes,
        ),
        (
            "anonymous",
            counted.anon_bytes,
            before.anon_bytes,
            after.anon_bytes,
        ),
        (
            "page cache",
            counted.file_bytes,
            before.file_bytes,
            after.file_bytes,
        ),
        (
            "inactive page cache",
            counted.inactive_file_bytes,
            before.inactive_file_bytes,
            after.inactive_file_bytes,
        ),
        (
            "shared memory",
            counted.shmem_bytes,
            before.shmem_bytes,
            after.shmem_bytes,
        ),
    ];
    for (what, counted, before, after) in figures {
        let (least, most) = (before.min(after), before.max(after));
        ensure!(
            (least.saturating_sub(mib(8))..=most + mib(8)).contains(&counted),
            "the record says {counted} bytes {what}, /proc/meminfo {before} before and {after} after"
        );
    }
    Ok(())
}

fn a_cgroup_s_life() -> Outcome {
    let scratch = Scratch::new("memory")?;
    let mut bpf = load(&[Family::Lifecycle], Duration::from_millis(10))?;
    let group = scratch.child("lives")?;
    let group_id = id(&group)?;
    let hog = hog_in(&group, "hold --mb 1")?;
    let pid = hog.pid();
    std::thread::sleep(Duration::from_millis(200));
    drop(hog);
    ensure!(cgroup::remove(&group), "the cgroup cannot be removed");
    let mut life = Vec::new();
    let path_end = "/records-test/lives";
    let ended = drain(&mut bpf, Duration::from_secs(10), |record| {
        if record.cgroup_id != group_id {
            return false;
        }
        match record.body {
            Body::CgroupMkdir { path, level, .. } => {
                let path = String::from_utf8_lossy(path).into_owned();
                life.push(if path.ends_with(path_end) && level == 2 {
                    "made".to_owned()
                } else {
                    format!("made as {path}, level {level}")
                });
            }
            Body::CgroupAttach { tgid, .. } => life.push(if tgid == pid {
                "joined".to_owned()
            } else {
                format!("joined by {tgid}")
            }),
            Body::CgroupPopulated { is_populated, .. } => {
                life.push(if is_populated { "populated" } else { "empty" }.to_owned())
            }
            Body::CgroupRmdir { .. } => life.push("removed".to_owned()),
            _ => {}
        }
        life.last().is_some_and(|last| last == "removed")
    });
    ensure!(ended, "no end of the cgroup's life: {life:?}");
    // `populated` comes before or after the task's own record.
    let mut expected = vec!["made", "joined", "populated", "empty", "removed"];
    let mut sorted = life.clone();
    sorted.sort();
    expected.sort_unstable();
    ensure!(
        sorted == expected && life.first().is_some_and(|first| first == "made"),
        "a life of {life:?}, expected {expected:?}"
    );
    Ok(Done::Passed)
}

/// A cgroup v1 hierarchy without a controller, while it is mounted.
struct Named(PathBuf);

impl Named {
    fn mount() -> anyhow::Result<Self> {
        let path = PathBuf::from("/tmp/records-hierarchy");
        fs::create_dir_all(&path)?;
        let mounted = Command::new("mount")
            .args(["-t", "cgroup", "-o", "none,name=plimsoll-records", "cgroup"])
            .arg(&path)
            .status()
            .context("starting mount")?;
        ensure!(mounted.success(), "no cgroup v1 hierarchy: {mounted}");
        Ok(Self(path))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.0.display());
        }
    }
}

/// Ids of cgroups are unique only within a hierarchy.
fn what_is_counted_goes_with_its_own_hierarchy_s_cgroup() -> Outcome {
    let named = Named::mount()?;
    let other = Scratch::at(named.0.join("other"))?;
    let mut bpf = load(
        &[Family::Lifecycle, Family::Processes],
        Duration::from_millis(10),
    )?;
    let followed = |bpf: &Bpf, id| -> anyhow::Result<bool> {
        let mut found = false;
        bpf.drain_processes(|totals| found |= totals.cgroup_id == id)?;
        Ok(found)
    };
    // As if a cgroup of the memory hierarchy had this id.
    let other_id = id(&other.0)?;
    bpf.follow_processes(&[other_id].into())?;
    drop(other);
    settle(&mut bpf, |_| {});
    ensure!(
        followed(&bpf, other_id)?,
        "a cgroup that no controller is in took a namesake's counts away"
    );
    let scratch = Scratch::new("memory")?;
    let memory_id = id(&scratch.0)?;
    let wanted = [other_id, memory_id].into();
    bpf.follow_processes(&wanted)?;
    drop(scratch);
    settle(&mut bpf, |_| {});
    ensure!(
        !followed(&bpf, memory_id)?,
        "the counts of a cgroup that is gone stay"
    );
    // An entry that has gone missing is added again, within two rounds of twelve looks (docs/decisions/0072).
    for _ in 0..24 {
        bpf.follow_processes(&wanted)?;
    }
    ensure!(followed(&bpf, memory_id)?, "it is not followed again");
    Ok(Done::Passed)
}

fn oom_names_limit_owner_and_victim() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let scratch = Scratch::new("memory")?;
    let victim = scratch.child("victim")?;
    scratch.set("memory.max", "32M")?;
    let mut bpf = load(&[Family::Oom], Duration::from_millis(10))?;
    let mut hog = hog_in(&victim, "hold --mb 64")?;
    let pid = hog.pid();
    ensure!(
        hog.wait_gone(Duration::from_secs(30)),
        "the hog is over its limit and lives"
    );
    let mut kills = Vec::new();
    settle(&mut bpf, |record| {
        if let Body::OomKill {
            limit, tgid, comm, ..
        } = record.body
        {
            kills.push((record.cgroup_id, limit, tgid, comm.to_vec()));
        }
    });
    // The choice, with the limit, and then each victim: here that one.
    let limits = [OomLimit::Cgroup(id(&scratch.0)?), OomLimit::Unknown];
    let victim_id = id(&victim)?;
    let expected: Vec<_> = limits
        .into_iter()
        .map(|limit| (victim_id, limit, pid, b"hog".to_vec()))
        .collect();
    ensure!(kills == expected, "kills {kills:?}, expected {expected:?}");
    Ok(Done::Passed)
}

fn limit_counts_equal_memory_events() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let scratch = Scratch::new("memory")?;
    let (high, max) = (scratch.child("high")?, scratch.child("max")?);
    fs::write(high.join("memory.high"), "16M")?;
    fs::write(max.join("memory.max"), "16M")?;
    // With no window every event has its own record, so that the last one has the full count.
    let mut bpf = load(&[Family::Memcg], Duration::ZERO)?;
    let (high_id, max_id) = (id(&high)?, id(&max)?);
    let slowed = hog_in(&high, "hold --mb 17")?;
    let mut killed = hog_in(&max, "hold --mb 64")?;
    ensure!(
        killed.wait_gone(Duration::from_secs(30)),
        "the hog is over its limit and lives"
    );
    let (mut highs, mut maxes, mut ooms) = (0, 0, 0);
    let mut take = |record: Record<'_>| {
        if let Body::MemoryEvent { event, count, .. } = record.body {
            match event {
                MemoryLimitEvent::High if record.cgroup_id == high_id => highs = count.max(highs),
                MemoryLimitEvent::Max if record.cgroup_id == max_id => maxes = count.max(maxes),
                MemoryLimitEvent::Oom if record.cgroup_id == max_id => ooms = count.max(ooms),
                _ => {}
            }
        }
    };
    drain(&mut bpf, Duration::from_secs(3), |record| {
        take(record);
        false
    });
    drop(slowed);
    settle(&mut bpf, &mut take);
    let events = |directory: &Path, key| cgroup::keyed(&directory.join("memory.events"), key);
    let kernel = (
        events(&high, "high")?,
        events(&max, "max")?,
        events(&max, "oom")?,
    );
    ensure!(
        kernel.0 > 0 && kernel.1 > 0 && kernel.2 > 0,
        "the hogs did not meet their limits: {kernel:?}"
    );
    // Before 7.2 each entry of `reclaim_high` counts. One that finds the cgroup within its limit again is no event for
    // the kernel: too many at times, never too few.
    let most_highs = if bpf.is_attached("memcg_memory_event") {
        kernel.0
    } else {
        kernel.0 + kernel.0.div_ceil(8)
    };
    ensure!(
        (kernel.0..=most_highs).contains(&highs) && (maxes, ooms) == (kernel.1, kernel.2),
        "records say high {highs}, max {maxes}, oom {ooms}; memory.events {kernel:?}"
    );
    Ok(Done::Passed)
}

fn throttle_time_equals_cpu_stat() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let scratch = Scratch::new("cpu")?;
    scratch.set("cpu.max", "10000 50000")?;
    let mut bpf = load(&[Family::Throttle], Duration::from_millis(10))?;
    let mut hog = hog_in(&scratch.0, "spin --threads 2 --seconds 3")?;
    ensure!(
        hog.wait_gone(Duration::from_secs(60)),
        "the spinner does not end"
    );
    settle(&mut bpf, |_| {});
    let group_id = id(&scratch.0)?;
    let mut totals = None;
    bpf.drain_throttle(|seen| {
        if seen.cgroup_id == group_id {
            totals = Some(seen);
        }
    })?;
    let totals = totals.context("no throttling was seen")?;
    let kernel_ns = cgroup::keyed(&scratch.0.join("cpu.stat"), "throttled_usec")? * 1000;
    // The same clock, at the same two moments; the file's microseconds are rounded down. A kernel may bring its clock
    // up to date once more before the end.
    let bound_ns = kernel_ns / 100 + 1000;
    ensure!(
        kernel_ns > 0 && totals.count > 0,
        "the spinner was not throttled"
    );
    ensure!(
        totals.sum_ns.abs_diff(kernel_ns) <= bound_ns,
        "records say {} ns, cpu.stat {kernel_ns} ns, allowed {bound_ns} ns apart",
        totals.sum_ns
    );
    Ok(Done::Passed)
}

fn an_overrun_is_counted_exactly() -> Outcome {
    const ROUNDS_MAX: u32 = 100_000;
    let scratch = Scratch::new("memory")?;
    let mut bpf = load(&[Family::Lifecycle], Duration::from_millis(10))?;
    let path = scratch.0.join("flicker");
    let mut rounds = 0_u64;
    for round in 0..ROUNDS_MAX {
        fs::create_dir(&path)?;
        fs::remove_dir(&path)?;
        rounds += 1;
        if round % 256 == 0 && bpf.account()?.lost() > 100 {
            break;
        }
    }
    let mut made = 0_u64;
    settle(&mut bpf, |record| {
        made += u64::from(matches!(record.body, Body::CgroupMkdir { .. }))
    });
    let drops = bpf.account()?;
    ensure!(
        drops.lost() > 0,
        "{ROUNDS_MAX} rounds did not fill the ring"
    );
    let open: Vec<_> = drops.open().collect();
    ensure!(open.is_empty(), "this does not add up: {open:?}");
    let mkdirs = drops.of(Kind::CgroupMkdir);
    ensure!(
        mkdirs.produced >= rounds && mkdirs.consumed == made,
        "{rounds} rounds, {made} records read, counted {mkdirs:?}"
    );
    // And the ring works again.
    fs::create_dir(&path)?;
    let path_id = id(&path)?;
    let again = drain(&mut bpf, Duration::from_secs(5), |record| {
        record.cgroup_id == path_id
    });
    ensure!(again, "no record after the overrun");
    Ok(Done::Passed)
}
