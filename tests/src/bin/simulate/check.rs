//! What must hold after every step, seen from outside: from the calls of the agent and the state of the machine.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::machine::{CGROUPS, MIB, MS, SECOND};
use crate::world::{self, World};

pub(crate) mod journal;

/// From one wait of the loop to the next, at most.
pub(crate) const TURN_NS: u64 = 100 * MS;
/// From a record of a crossing to the sample that answers it, at most.
pub(crate) const ANSWER_NS: u64 = 50 * MS;
/// Memory may be short for so long while a pod has what is missing and nothing happens to it.
const UNANSWERED_NS: u64 = 5 * SECOND;
/// The default of `evictionBreaker.interval`.
const BREAKER_NS: u64 = 10 * SECOND;
/// So many victims in this time, while one of them has freed nothing, are a cascade.
const CASCADE_NS: u64 = 10 * SECOND;
const CASCADE_VICTIMS: usize = 2;
/// A victim is dying for so long before the next may be taken.
const PASS_NS: u64 = 2 * SECOND;
/// Of the loop's time, what a flood of others' attaches may take, percent.
const SHARE_MAX: u64 = 30;
/// Open files: of the agent itself, and of each pod.
const DESCRIPTORS: usize = 128;
const DESCRIPTORS_PER_POD: usize = 600;
/// Of one kind, as many as are shown.
const SHOWN_MAX: usize = 3;

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Broken {
    /// Which rule.
    pub(crate) rule: String,
    pub(crate) text: String,
    pub(crate) at_ms: u64,
}

#[derive(Debug, Clone, Default)]
struct Victim {
    signalled_ns: Option<u64>,
    /// By this agent or one before it.
    was_signalled: bool,
    held_bytes: u64,
    is_killed: bool,
    ended_ns: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub(crate) broken: Vec<Broken>,
    counts: BTreeMap<String, usize>,
    pub(crate) threshold_bytes: u64,
    /// The loop has waited for the first time.
    is_serving: bool,
    turn_began_ns: Option<u64>,
    turn_operations: u64,
    /// What the loop's time went into since it last waited, by call.
    costs: BTreeMap<&'static str, u64>,
    pub(crate) turns: u64,
    pub(crate) longest_turn_ns: u64,
    pub(crate) most_operations: u64,
    pending: Vec<u64>,
    /// Allocations of the loop's thread when it woke for a crossing.
    allocations: Option<u64>,
    pub(crate) crossings: u64,
    pub(crate) slowest_answer_ns: u64,
    pub(crate) evictions: u64,
    pub(crate) oom_kills: u64,
    victims: BTreeMap<usize, Victim>,
    /// When the agent last read that memory is short.
    seen_short_ns: u64,
    short_since_ns: Option<u64>,
    /// What a file of a cgroup that was there before said: by cgroup and name.
    originals: BTreeMap<(usize, String), String>,
    pub(crate) line: Vec<u8>,
    pub(crate) lines: u64,
    pub(crate) prints: bool,
    pub(crate) result: Option<String>,
    unledgered: BTreeSet<String>,
    /// Some operation was made to fail.
    pub(crate) has_failed: bool,
    /// The loop has waited for the end of another thread: it ends.
    pub(crate) is_ending: bool,
    /// The loop was held up in a call that was made to block.
    pub(crate) was_held_up: bool,
    /// Of this turn, what the loop was held up for in a call that was made to block.
    pub(crate) held_up_ns: u64,
    /// A kernel setting was changed, at any time.
    pub(crate) has_changed_knobs: bool,
    /// What the loop has worked so far.
    pub(crate) worked_ns: u64,
    /// The loop has waited for the first time, in this or an earlier agent.
    pub(crate) has_served: bool,
    /// The largest part of the loop's time that a flood has taken, percent.
    pub(crate) largest_share: u64,
}

impl Checks {
    pub(crate) fn broken(&mut self, rule: &str, text: String, now_ns: u64) {
        let count = self.counts.entry(rule.to_owned()).or_default();
        *count += 1;
        if *count <= SHOWN_MAX {
            let at_ms = now_ns.saturating_sub(world::EPOCH_NS) / MS;
            self.broken.push(Broken {
                rule: rule.to_owned(),
                text,
                at_ms,
            });
        }
    }

    pub(crate) fn has_ended_victim(&self) -> bool {
        let victims = self.victims.values();
        victims
            .into_iter()
            .any(|it| it.was_signalled && it.ended_ns.is_some())
    }

    pub(crate) fn is_serving(&self) -> bool {
        self.is_serving
    }

    pub(crate) fn operation(&mut self, is_loop: bool) {
        if is_loop {
            self.turn_operations += 1;
        }
    }

    /// The loop has spent time in a call.
    pub(crate) fn spent(&mut self, call: &'static str, cost_ns: u64) {
        *self.costs.entry(call).or_default() += cost_ns;
    }

    /// The call that took most of it.
    fn culprit(&self) -> &'static str {
        let most = self.costs.iter().max_by_key(|(_, cost_ns)| **cost_ns);
        most.map_or("nothing", |(call, _)| call)
    }

    /// The run is over, and the agent has not ended.
    pub(crate) fn never_ended(&mut self, now_ns: u64) {
        self.turn_ended(now_ns);
        self.broken(
            "end",
            "the agent did not end within two minutes of SIGTERM".to_owned(),
            now_ns,
        );
    }

    /// The loop waits.
    pub(crate) fn turn_ended(&mut self, now_ns: u64) {
        self.is_serving = true;
        self.has_served = true;
        if let Some(began_ns) = self.turn_began_ns.take() {
            let held_up_ns = std::mem::take(&mut self.held_up_ns);
            let took_ns = (now_ns - began_ns).saturating_sub(held_up_ns);
            self.turns += 1;
            self.worked_ns += took_ns;
            self.longest_turn_ns = self.longest_turn_ns.max(took_ns);
            self.most_operations = self.most_operations.max(self.turn_operations);
            if took_ns > TURN_NS && !self.is_ending {
                let text = format!(
                    "a turn took {} ms and {} operations",
                    took_ns / MS,
                    self.turn_operations
                );
                self.broken(&format!("turn/{}", self.culprit()), text, now_ns);
            }
        }
    }

    /// The loop goes on.
    pub(crate) fn turn_begins(&mut self, now_ns: u64) {
        self.turn_began_ns = Some(now_ns);
        self.turn_operations = 0;
        self.costs.clear();
        self.allocations = (!self.pending.is_empty()).then(world::allocations);
    }

    /// A flood of what the agent need not follow is over: it took so much of the loop's time.
    pub(crate) fn flooded(&mut self, lasted_ns: u64, worked_ns: u64, now_ns: u64) {
        let share = worked_ns * 100 / lasted_ns.max(1);
        self.largest_share = self.largest_share.max(share);
        if share > SHARE_MAX {
            let text = format!(
                "a flood of attaches took {share} % of the loop's time for {} ms",
                lasted_ns / MS
            );
            self.broken("share", text, now_ns);
        }
    }

    /// The agent has ended. It ends when it is asked to, or when something that it cannot start without could not be
    /// had.
    pub(crate) fn ended(&mut self, result: &str, is_asked: bool, now_ns: u64) {
        let is_start_refused = self.has_failed && !self.has_served;
        let is_well = result.is_empty() || self.has_failed;
        if !(is_asked || is_start_refused) || !is_well {
            let text = format!("the agent ended: {result:?}");
            self.broken("ended", text, now_ns);
        }
    }

    pub(crate) fn crossed(&mut self, now_ns: u64) {
        self.crossings += 1;
        self.pending.push(now_ns);
    }

    /// The loop reads what the node has.
    pub(crate) fn sampled(&mut self, now_ns: u64, available_bytes: u64) {
        for crossed_ns in std::mem::take(&mut self.pending) {
            let took_ns = now_ns - crossed_ns;
            self.slowest_answer_ns = self.slowest_answer_ns.max(took_ns);
            if self.is_serving && took_ns > ANSWER_NS {
                self.broken(
                    &format!("late/{}", self.culprit()),
                    format!("a crossing was answered after {} ms", took_ns / MS),
                    now_ns,
                );
            }
        }
        if let Some(before) = self.allocations.take() {
            let count = world::allocations() - before;
            // To say what failed takes memory, and is not the ordinary way.
            if count > 0 && !self.has_failed {
                self.broken(
                    "allocation",
                    format!("{count} allocations between a crossing and the sample"),
                    now_ns,
                );
            }
        }
        if available_bytes < self.threshold_bytes {
            self.seen_short_ns = now_ns;
        }
    }

    pub(crate) fn descriptors(&mut self, open: usize, now_ns: u64) {
        if open > DESCRIPTORS + DESCRIPTORS_PER_POD * self.victims.len().max(8) {
            self.broken(
                "descriptors",
                format!("{open} descriptors are open"),
                now_ns,
            );
        }
    }

    pub(crate) fn killed(&mut self, now_ns: u64) {
        // The next agent knows nothing of what this one has begun.
        for victim in self.victims.values_mut() {
            victim.is_killed = false;
            if victim.ended_ns.is_none() {
                victim.signalled_ns = None;
            }
        }
        self.is_serving = false;
        self.is_ending = false;
        self.turn_began_ns = None;
        self.pending.clear();
        self.allocations = None;
        self.short_since_ns = None;
        self.seen_short_ns = now_ns;
        self.line.clear();
    }

    pub(crate) fn pod_started(&mut self, pod: usize, _now_ns: u64) {
        self.victims.insert(pod, Victim::default());
    }

    pub(crate) fn pod_ended(&mut self, pod: usize, now_ns: u64) {
        self.victims.entry(pod).or_default().ended_ns = Some(now_ns);
    }

    pub(crate) fn kernel_oom_kill(&mut self, _pod: Option<usize>, _now_ns: u64) {
        self.oom_kills += 1;
    }

    /// What the agent writes to its output, in any portions.
    pub(crate) fn output(&mut self, bytes: &[u8], now_ns: u64) {
        for byte in bytes {
            if *byte == b'\n' {
                self.lines += 1;
                let line = std::mem::take(&mut self.line);
                let text = String::from_utf8_lossy(&line).into_owned();
                if self.prints {
                    eprintln!("agent: {}", text.escape_debug());
                }
                if text.chars().any(char::is_control) {
                    self.broken(
                        "control",
                        format!("a line has control characters: {}", text.escape_debug()),
                        now_ns,
                    );
                }
            } else {
                self.line.push(*byte);
            }
        }
    }
}

impl World {
    /// The agent sends a signal to a process, or kills a cgroup.
    pub(crate) fn check_signal(&mut self, pod: Option<usize>, signal: i32) {
        let now_ns = self.now_ns;
        if !matches!(signal, libc::SIGTERM | libc::SIGKILL) {
            return;
        }
        let Some(pod) = pod else {
            self.checks.broken(
                "stranger",
                "a process of no pod gets a signal".to_owned(),
                now_ns,
            );
            return;
        };
        let victim = self.checks.victims.entry(pod).or_default();
        let was_killed = victim.is_killed;
        victim.is_killed |= signal == libc::SIGKILL;
        if signal == libc::SIGTERM && was_killed && victim.ended_ns.is_none() {
            let text = format!(
                "{} was killed, never ended, and is chosen again",
                self.machine.pods[pod].uid
            );
            self.checks.broken("again", text, now_ns);
            return;
        }
        if victim.signalled_ns.is_some() || victim.ended_ns.is_some() {
            return;
        }
        victim.signalled_ns = Some(now_ns);
        victim.was_signalled = true;
        let held_bytes = self.machine.used(pod, now_ns);
        victim.held_bytes = held_bytes;
        self.checks.evictions += 1;
        let it = &self.machine.pods[pod];
        let name = it.uid.clone();
        if it.is_exempt {
            self.checks
                .broken("exempt", format!("{name} is exempt and is ended"), now_ns);
        }
        if now_ns.saturating_sub(self.checks.seen_short_ns) > 2 * SECOND {
            self.checks.broken(
                "no-shortage",
                format!("{name} is ended, and memory was not short"),
                now_ns,
            );
        }
        self.check_pass(pod, &name);
        self.check_evidence(pod, &name);
    }

    fn check_pass(&mut self, pod: usize, name: &str) {
        let now_ns = self.now_ns;
        let others: Vec<(usize, Victim)> = self
            .checks
            .victims
            .iter()
            .filter(|(other, _)| **other != pod)
            .map(|(other, victim)| (*other, victim.clone()))
            .collect();
        let (mut recent, mut holds_all) = (0, false);
        for (other, victim) in others {
            let Some(signalled_ns) = victim.signalled_ns else {
                continue;
            };
            let other_name = &self.machine.pods[other].uid;
            if victim.ended_ns.is_none() && now_ns - signalled_ns < PASS_NS {
                let text = format!("{name} is ended while {other_name} still is on its way out");
                self.checks.broken("pass", text, now_ns);
            }
            recent += usize::from(now_ns - signalled_ns < CASCADE_NS);
            holds_all |= self.machine.used(other, now_ns) > victim.held_bytes / 5 * 4;
        }
        if recent >= CASCADE_VICTIMS && holds_all {
            let text = format!(
                "{name} is ended {recent} others after, in {} s, while a victim still has its memory",
                CASCADE_NS / SECOND
            );
            self.checks.broken("cascade", text, now_ns);
        }
    }

    /// What a pod has beyond its request, as the ranking sees it; `None` for one that is not to be taken, or not any
    /// more.
    fn excess(&self, pod: usize) -> Option<u64> {
        let it = &self.machine.pods[pod];
        let victim = self.checks.victims.get(&pod)?;
        let is_candidate =
            !it.is_exempt && !it.processes.is_empty() && victim.signalled_ns.is_none();
        let used = self
            .machine
            .used(pod, self.now_ns)
            .saturating_sub(it.inactive_bytes);
        is_candidate.then(|| used.saturating_sub(it.request_bytes))
    }

    /// No other has clearly more.
    fn check_evidence(&mut self, pod: usize, name: &str) {
        let it = &self.machine.pods[pod];
        let used = self
            .machine
            .used(pod, self.now_ns)
            .saturating_sub(it.inactive_bytes);
        let victims = used.saturating_sub(it.request_bytes);
        let most = (0..self.machine.pods.len())
            .filter_map(|other| Some((self.excess(other)?, other)))
            .max();
        if let Some((excess, other)) = most
            && excess > victims + victims / 4 + 256 * MIB
        {
            let text = format!(
                "{name} with {} MiB over its request is ended, {} has {} MiB",
                victims / MIB,
                self.machine.pods[other].uid,
                excess / MIB
            );
            self.checks.broken("evidence", text, self.now_ns);
        }
    }

    /// Memory is short, and the agent does nothing.
    pub(crate) fn check_machine(&mut self) {
        let now_ns = self.now_ns;
        let available = self.machine.available(now_ns);
        let missing = self.checks.threshold_bytes.saturating_sub(available);
        let candidate = (0..self.machine.pods.len()).find(|pod| {
            self.excess(*pod)
                .is_some_and(|excess| excess > missing.max(100 * MIB))
        });
        let is_dying = self.checks.victims.values().any(|victim| {
            victim.ended_ns.is_none()
                && victim
                    .signalled_ns
                    .is_some_and(|at_ns| now_ns - at_ns < UNANSWERED_NS)
        });
        // While memory of a pod that has gone stays, pods go one after the other (`evictionBreaker`).
        let is_held_back = self.machine.pods.iter().any(|pod| pod.stays_bytes > 0)
            && self.checks.victims.values().any(|victim| {
                let since = victim.signalled_ns;
                since.is_some_and(|at_ns| now_ns - at_ns < BREAKER_NS + UNANSWERED_NS)
            });
        // A loop that hangs has a rule of its own.
        let hangs = self
            .checks
            .turn_began_ns
            .is_some_and(|began_ns| now_ns.saturating_sub(began_ns) > TURN_NS);
        let (Some(pod), true, false) = (
            candidate,
            missing > 0 && self.checks.is_serving,
            is_dying || is_held_back || hangs,
        ) else {
            self.checks.short_since_ns = None;
            return;
        };
        let since_ns = *self.checks.short_since_ns.get_or_insert(now_ns);
        if now_ns - since_ns > UNANSWERED_NS {
            self.checks.short_since_ns = None;
            let text = format!(
                "{} MiB are missing for {} s, {} has them and is left alone",
                missing / MIB,
                UNANSWERED_NS / SECOND,
                self.machine.pods[pod].uid
            );
            self.checks.broken("unanswered", text, now_ns);
        }
    }

    /// The agent is about to write a control file. Of those that outlive it, the ledger must know.
    pub(crate) fn check_knob(&mut self, cgroup: usize, file: &str, path: &str, value: &str) {
        let it = &self.machine.cgroups[cgroup];
        if matches!(
            file,
            "cgroup.kill" | "cgroup.procs" | "memory.reclaim" | "cgroup.event_control"
        ) {
            return;
        }
        let is_of_pod = it.pod.is_some();
        let searched = if file == "cgroup.subtree_control" {
            path.rsplit_once('/').map_or(path, |(dir, _)| dir)
        } else {
            path
        };
        if is_of_pod && file != "memory.high" {
            return;
        }
        let before = it.values.get(file).cloned().unwrap_or_default();
        if before == value.trim() {
            return;
        }
        if !it.is_agents {
            self.checks
                .originals
                .entry((cgroup, file.to_owned()))
                .or_insert(before);
        }
        self.checks.has_changed_knobs = true;
        let is_written =
            self.is_in_ledger(searched) || (it.is_agents && self.is_in_ledger(&it.path));
        if !is_written && self.checks.unledgered.insert(path.to_owned()) {
            self.checks.broken(
                "ledger",
                format!("{path} is changed and in no ledger"),
                self.now_ns,
            );
        }
    }

    fn is_in_ledger(&self, path: &str) -> bool {
        let entries = std::fs::read_dir(self.root.join("state"))
            .into_iter()
            .flatten()
            .flatten();
        let mut ledgers = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|it| it == "jsonl"));
        ledgers.any(|ledger| std::fs::read_to_string(ledger).is_ok_and(|text| text.contains(path)))
    }

    /// The agent has ended in an orderly way.
    pub(crate) fn check_end(&mut self) {
        let now_ns = self.now_ns;
        for ((cgroup, file), before) in std::mem::take(&mut self.checks.originals) {
            let it = &self.machine.cgroups[cgroup];
            let now = it.values.get(&file).cloned().unwrap_or_default();
            // What cannot be put back stays in the ledger, for the next start.
            let dir = format!("{CGROUPS}/{}", it.path);
            if it.is_there && now != before && !self.is_in_ledger(&dir) {
                let it = &self.machine.cgroups[cgroup];
                let text = format!("{}/{file} was {before:?} and is {now:?}", it.path);
                self.checks.broken("restored", text, now_ns);
            }
        }
        if !self.checks.has_failed {
            self.check_journal();
        }
        // Programs that cannot be had, or not be taken away, are the agent's to say.
        let accounts = if self.checks.has_failed {
            Vec::new()
        } else {
            self.bpf.open_accounts()
        };
        for (kind, produced, consumed, dropped) in accounts {
            let text = format!(
                "{}: {produced} produced, {consumed} consumed, {dropped} dropped",
                kind.name()
            );
            self.checks.broken("account", text, now_ns);
        }
    }
}
