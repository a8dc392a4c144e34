//! What is told to the API server: pure. It takes what was heard (pods, the node, the agent, answers) and says which
//! call comes next; it opens no connection and reads no clock.

pub mod body;
pub mod event;
pub mod eviction;
pub mod node;
pub mod policy;
pub mod pressure;
mod reach;
pub mod retention;
pub mod topology;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::kube::pod::NO_NAMESPACE;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::protocol::cluster_link::{
    EvictionIntent, INTENTS_MAX, Settled, ToAgent, ToCluster, valid_ms,
};

use crate::backoff::{Backoff, Pace};
use crate::call::{Answer, Call};
use crate::clock::Now;
use crate::pod::SeenPod;
use crate::store::Store;
use event::{EventKey, Events, Regarding, Said};
use eviction::{Effect, Eviction, Purpose, Step, View};
use node::{NodePurpose, NodeReports, SeenNode};
use policy::{EvictBy, Policy};
use pressure::OverusedList;
use reach::Reach;
use topology::{ObjectState, TopologyReports};

/// Calls in any second.
const CALLS_PER_S: usize = 10;
/// Calls that are on their way.
const IN_FLIGHT_MAX: usize = 8;
/// How often the kept pods are looked through, milliseconds.
const RETENTION_EVERY_MS: u64 = 10_000;

const EVICTED: &str = "Evicted";
const NOT_SHOWN: &str = "EvictionNotShown";
const UNREPORTED: &str = "EvictionsUnreported";

/// Whom an answer is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// An eviction.
    Eviction(PodUid, Purpose),
    /// An Event.
    Event(EventKey),
    /// The node.
    Node(NodePurpose),
    /// What its NUMA nodes have left.
    Topology,
    /// An evicted pod that is kept no longer.
    Kept(PodUid),
}

/// What the API server can do, by discovery.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Served {
    /// Group and version of `pods/eviction` (`policy/v1`, before 1.22 `policy/v1beta1`).
    pub eviction: Option<String>,
    /// Whether there is `policy/v1` with budgets, else `policy/v1beta1`.
    pub has_policy_v1: bool,
}

/// Figures for the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Evictions that the API server has not taken.
    pub unreported: u64,
    /// Age of the oldest of them, milliseconds.
    pub oldest_unreported_ms: u64,
    /// Evictions that are not settled.
    pub unsettled: u64,
    /// Events that were not written.
    pub events_dropped: u64,
    /// Intents beyond the bound, and what else the agent sent that was not taken.
    pub intents_refused: u64,
    /// How many were settled, by [`Settled`] in its order.
    pub settled: [u64; 4],
    /// Whether the API server has this node.
    pub is_node_known: bool,
    /// How the object of this node's NUMA nodes is, and for how long it is not as it should be, milliseconds.
    pub topology: (ObjectState, u64),
}

/// All that is to be told, and how far it is.
#[derive(Debug)]
pub struct Reporter {
    policy: Policy,
    node_name: String,
    /// `None`: not known yet.
    served: Option<Served>,
    node: Option<SeenNode>,
    is_node_known: bool,
    evictions: BTreeMap<PodUid, Eviction>,
    /// Where the search for the next eviction goes on, so that each has its turn.
    turn: Option<PodUid>,
    events: Events,
    reports: NodeReports,
    topology: TopologyReports,
    pace: Pace,
    in_flight: usize,
    /// After a call without an answer nothing is sent for a while.
    gate_ms: u64,
    gate: Backoff,
    reach: Reach,
    kept_in_flight: BTreeSet<PodUid>,
    kept_not_before_ms: u64,
    /// What the last list of the pods has at least is what was there at this time; the same of the last one that is
    /// whole. None: it came from a cache.
    list_began_ms: Option<u64>,
    whole_list_began_ms: Option<u64>,
    seed: u64,
    /// What the agent last said of evictions that were never reported.
    unreported: u64,
    figures: Figures,
    /// For the agent, to be taken by [`Self::outgoing`].
    outgoing: Vec<ToAgent>,
    /// For people, to be taken by [`Self::words`].
    words: Vec<String>,
    is_soft_grace_said: bool,
}

impl Reporter {
    /// `seed`: for jitter, different for each process.
    #[must_use]
    pub fn new(node_name: &str, policy: Policy, seed: u64) -> Self {
        Self {
            policy,
            node_name: node_name.to_owned(),
            served: None,
            node: None,
            is_node_known: false,
            evictions: BTreeMap::new(),
            turn: None,
            events: Events::new(node_name, seed),
            reports: NodeReports::new(seed),
            topology: TopologyReports::new(seed),
            pace: Pace::new(CALLS_PER_S),
            in_flight: 0,
            gate_ms: 0,
            gate: Backoff::new(seed),
            reach: Reach::default(),
            kept_in_flight: BTreeSet::new(),
            kept_not_before_ms: 0,
            list_began_ms: None,
            whole_list_began_ms: None,
            seed,
            unreported: 0,
            figures: Figures::default(),
            outgoing: Vec::new(),
            words: Vec::new(),
            is_soft_grace_said: false,
        }
    }

    /// What discovery found.
    pub fn served(&mut self, served: Served) {
        self.served = Some(served);
    }

    /// The node as watched.
    pub fn saw_node(&mut self, node: SeenNode, now: Now) {
        let version = &node.kubelet_version;
        if self
            .node
            .as_ref()
            .is_none_or(|known| known.kubelet_version != *version)
        {
            self.outgoing.push(ToAgent::Node {
                kubelet_version: version.clone(),
            });
        }
        let known = self.node.as_ref().and_then(|known| known.overused.as_ref());
        if known != node.overused.as_ref() {
            self.outgoing.push(overused(node.overused.as_ref(), now));
        }
        if self
            .node
            .as_ref()
            .is_some_and(|known| known.uid != node.uid)
        {
            self.reports.note_new_node();
        }
        self.node = Some(node);
        self.is_node_known = true;
    }

    /// The API server has no such node: nothing can be said of it. What is known of its kubelet stays.
    pub const fn note_no_node(&mut self) {
        self.is_node_known = false;
    }

    /// The API server said something that is no error of its own.
    pub fn heard(&mut self) {
        self.gate.reset();
        self.gate_ms = 0;
        if self.reach.heard() {
            self.outgoing.push(ToAgent::Api { is_reachable: true });
        }
    }

    /// The API server did not answer, or with an error of its own.
    pub fn missed(&mut self, now: Now) {
        self.reach.missed(now);
    }

    /// Whether it answers; to be asked every second or so.
    pub fn check_reach(&mut self, now: Now) -> bool {
        if self.reach.note_loss(now) {
            self.outgoing.push(ToAgent::Api {
                is_reachable: false,
            });
        }
        self.reach.is_reachable()
    }

    /// The agent is connected: what it has to know before the pods.
    #[must_use]
    pub fn greeting(&self, now: Now) -> Vec<ToAgent> {
        let mut frames = vec![ToAgent::Api {
            is_reachable: self.reach.is_reachable(),
        }];
        if let Some(node) = &self.node {
            frames.push(ToAgent::Node {
                kubelet_version: node.kubelet_version.clone(),
            });
            frames.push(overused(node.overused.as_ref(), now));
        }
        frames
    }

    /// The agent is gone: what its node lacks is not known any more. One that comes back says it again.
    pub fn lost_agent(&mut self, now: Now) {
        self.reports.lose_agent(now);
    }

    /// A frame of the agent that is no greeting.
    pub fn from_agent(&mut self, frame: ToCluster, now: Now) {
        match frame {
            ToCluster::Hello {
                unreported,
                soft_grace_s,
                ..
            } => {
                if let Some(soft_grace_s) = soft_grace_s {
                    self.note_soft_grace(soft_grace_s);
                }
                // Those that are wanted follow; one may have been withdrawn while nothing was connected.
                self.drop_withdrawn();
                for eviction in self.evictions.values_mut() {
                    eviction.withdraw();
                }
                self.unreported(unreported, now);
            }
            ToCluster::Evicted { intent, is_let_go } => self.evicted(*intent, is_let_go, now),
            ToCluster::Withdrawn { uid } => {
                if let Some(eviction) = self.evictions.get_mut(&uid) {
                    eviction.withdraw();
                }
                self.drop_withdrawn();
            }
            ToCluster::CgroupGone { uid } => {
                if let Some(eviction) = self.evictions.get_mut(&uid) {
                    eviction.cgroup_gone(now);
                }
            }
            ToCluster::LetGo { uid } => {
                if let Some(eviction) = self.evictions.get_mut(&uid) {
                    eviction.let_go();
                }
            }
            ToCluster::Withheld { memory_bytes } => self.reports.withhold(memory_bytes),
            ToCluster::NodeTopology { topology } => {
                if self.policy.node_resource_topology {
                    self.topology.want(*topology);
                }
            }
            ToCluster::Conditions { conditions } => {
                let taints = self.policy.taint_on_pressure && !self.policy.dry_run;
                for begun in self.reports.want(conditions, taints) {
                    self.say_of_node(
                        condition_reason(&begun),
                        &begun.message,
                        begun.since_unix_ms,
                        now,
                    );
                }
            }
        }
    }

    fn evicted(&mut self, intent: EvictionIntent, is_let_go: bool, now: Now) {
        let uid = intent.uid.clone();
        // Sent again after each connection: what is known goes on where it is.
        if let Some(known) = self.evictions.get_mut(&uid) {
            known.keep(is_let_go);
            return;
        }
        if self.evictions.len() >= INTENTS_MAX {
            self.figures.intents_refused += 1;
            return;
        }
        let seed = self.seed ^ u64::try_from(self.evictions.len()).unwrap_or(0) << 32;
        let mut eviction = Eviction::new(intent, now, seed);
        eviction.keep(is_let_go);
        self.evictions.insert(uid, eviction);
    }

    /// Forgets what was withdrawn, unless the API server has taken it, or is being asked.
    fn drop_withdrawn(&mut self) {
        self.evictions.retain(|_, eviction| !eviction.is_dropped());
    }

    /// Soft thresholds give pods this time: the status does not wait for it, the Eviction API does. Without any there
    /// is no time in which that could be asked.
    fn note_soft_grace(&mut self, grace_s: u32) {
        let text = match (self.policy.evict_by, grace_s) {
            (EvictBy::EvictionApi, 0) => "--evict-by EvictionAPI has no effect: soft thresholds give pods no grace, and the Eviction API is asked within it alone; set evictionMaxPodGracePeriod in the agent's configuration".to_owned(),
            (EvictBy::EvictionApi, _) | (EvictBy::Status, 0) => return,
            (EvictBy::Status, grace_s) => format!(
                "soft thresholds give a pod up to {grace_s} s (evictionMaxPodGracePeriod), and its status says Failed when they begin: a StatefulSet or a Job may start another pod while its containers still run; give --evict-by EvictionAPI (components/eviction-api), which shows the end when they have ended"
            ),
        };
        if !std::mem::replace(&mut self.is_soft_grace_said, true) {
            self.words.push(text);
        }
    }

    fn unreported(&mut self, count: u64, now: Now) {
        // Said again with each connection.
        if count > std::mem::replace(&mut self.unreported, count) {
            let note = format!(
                "{count} evictions were never reported, because more than {INTENTS_MAX} waited while the API server could not be reached"
            );
            self.say_of_node(UNREPORTED, &note, now.unix_ms, now);
        }
    }

    fn say_of_node(&mut self, reason: &'static str, note: &str, unix_ms: u64, now: Now) {
        let Some(node) = &self.node else { return };
        let regarding = Regarding {
            kind: "Node",
            namespace: String::new(),
            name: self.node_name.clone(),
            uid: node.uid.clone(),
        };
        let said = Said {
            regarding,
            reason,
            action: "Watch",
            note: note.to_owned(),
            ending: "",
            unix_ms,
            annotations: BTreeMap::new(),
        };
        self.events.say(said, now);
    }

    fn say_of_eviction(&mut self, uid: &PodUid, reason: &'static str, now: Now) {
        let Some(eviction) = self.evictions.get(uid) else {
            return;
        };
        let said = said_of(eviction, reason);
        self.events.say(said, now);
    }

    /// A list of the node's pods begins, which has all that were there at this time; none: it may lack new ones.
    pub const fn list_begins(&mut self, current_ms: Option<u64>) {
        self.list_began_ms = current_ms;
    }

    /// That list is whole.
    pub const fn list_ends(&mut self) {
        self.whole_list_began_ms = self.list_began_ms;
    }

    /// The API server said that this pod is gone.
    pub fn pod_gone(&mut self, uid: &PodUid) {
        if let Some(eviction) = self.evictions.get_mut(uid) {
            eviction.gone();
        }
    }

    /// Whether a list of the pods is to be had: the pod of an eviction is not known, and only a list that is begun
    /// later than the eviction came can say that it is gone. A watch that has stopped says nothing of a pod that is
    /// new.
    #[must_use]
    pub fn wants_list(&self, pods: &Store) -> bool {
        let waits = |(uid, eviction): (&PodUid, &Eviction)| {
            eviction.waits_for_a_list(pods.get(uid), self.list_began_ms)
        };
        pods.is_listed() && self.evictions.iter().any(waits)
    }

    fn view(&self, pods: &Store) -> View<'_> {
        View {
            policy: &self.policy,
            is_listed: pods.is_listed(),
            is_complete: pods.is_complete(),
            list_began_ms: self.whole_list_began_ms,
            kubelet_heeds_status: self
                .node
                .as_ref()
                .is_none_or(SeenNode::kubelet_heeds_status),
            has_eviction_api: self.served.as_ref().map(|served| served.eviction.is_some()),
        }
    }

    /// The next call, if one can be made now. Evictions come first, then what is said of the node, then Events, then
    /// what is kept too long.
    pub fn next(&mut self, pods: &Store, now: Now) -> Option<(Target, Call)> {
        self.settle(pods, now);
        if self.in_flight >= IN_FLIGHT_MAX
            || now.mono_ms < self.gate_ms
            || !self.pace.allows(now.mono_ms)
        {
            return None;
        }
        let found = self
            .next_eviction(pods, now)
            .or_else(|| self.next_of_node(now))
            .or_else(|| self.next_topology(pods, now))
            .or_else(|| self.next_event(now))
            .or_else(|| self.next_kept(pods, now))?;
        self.in_flight += 1;
        self.pace.count(now.mono_ms);
        Some(found)
    }

    /// Names pods that the agent evicted before it had their names, so that their Events are where their owners look.
    fn name_pods(&mut self, pods: &Store) {
        let unnamed = |eviction: &&mut Eviction| eviction.intent.namespace == NO_NAMESPACE;
        for eviction in self.evictions.values_mut().filter(unnamed) {
            if let Some(pod) = pods.get(&eviction.intent.uid) {
                eviction.intent.namespace = pod.namespace.to_string();
                eviction.intent.name = pod.name.to_string();
            }
        }
    }

    /// Settles what needs no further call.
    fn settle(&mut self, pods: &Store, now: Now) {
        self.name_pods(pods);
        let view = self.view(pods);
        let ended =
            |(uid, eviction): (&PodUid, &Eviction)| match eviction.next(pods.get(uid), view, now) {
                Step::Settle(how) => Some((uid.clone(), how)),
                Step::Wait(_) | Step::Call(_) => None,
            };
        let ended: Vec<(PodUid, Settled)> = self.evictions.iter().filter_map(ended).collect();
        for (uid, how) in ended {
            let reason = if how == Settled::GivenUp {
                NOT_SHOWN
            } else {
                EVICTED
            };
            let was_said = self
                .evictions
                .get_mut(&uid)
                .is_some_and(|it| it.say(reason));
            if !was_said {
                self.say_of_eviction(&uid, reason, now);
            }
            // The intent stays on the agent's disk until its story is told.
            if self.events.is_waiting(uid.as_str(), reason) {
                continue;
            }
            self.evictions.remove(&uid);
            let counted = match how {
                Settled::Shown => 0,
                Settled::EndedOtherwise => 1,
                Settled::Gone => 2,
                Settled::GivenUp => 3,
            };
            if let Some(count) = self.figures.settled.get_mut(counted) {
                *count += 1;
            }
            self.outgoing.push(ToAgent::Settled { uid, how });
        }
    }

    fn next_eviction(&mut self, pods: &Store, now: Now) -> Option<(Target, Call)> {
        let view = self.view(pods);
        let ready =
            |(uid, eviction): (&PodUid, &Eviction)| match eviction.next(pods.get(uid), view, now) {
                Step::Call(purpose) => Some((uid.clone(), purpose)),
                Step::Wait(_) | Step::Settle(_) => None,
            };
        let found = match &self.turn {
            Some(turn) => {
                use std::ops::Bound::{Excluded, Unbounded};
                let after = self.evictions.range((Excluded(turn.clone()), Unbounded));
                after.chain(&self.evictions).find_map(ready)
            }
            None => self.evictions.iter().find_map(ready),
        };
        let (uid, purpose) = found?;
        let eviction = self.evictions.get_mut(&uid)?;
        let served = self.served.as_ref();
        let version = served.and_then(|served| served.eviction.as_deref());
        let call = body::call(
            eviction,
            purpose,
            pods.get(&uid)?,
            version.unwrap_or_default(),
            self.policy.dry_run,
        );
        eviction.sent();
        self.turn = Some(uid.clone());
        Some((Target::Eviction(uid, purpose), call))
    }

    /// The node, unless the API server has it no more.
    fn known_node(&self) -> Option<&SeenNode> {
        self.node.as_ref().filter(|_| self.is_node_known)
    }

    fn next_of_node(&mut self, now: Now) -> Option<(Target, Call)> {
        let node = self.node.as_ref().filter(|_| self.is_node_known);
        self.reports.take_over(node, now);
        let purpose = self.reports.next(node, now)?;
        let call = self
            .reports
            .send(purpose, &self.node_name, now, self.policy.dry_run);
        Some((Target::Node(purpose), call))
    }

    fn next_topology(&mut self, pods: &Store, now: Now) -> Option<(Target, Call)> {
        let is_due = pods.is_listed() && self.topology.prepare(self.node.as_ref(), pods, now);
        let dry_run = self.policy.dry_run;
        is_due.then(|| {
            let call = self.topology.send(&self.node_name, now, dry_run);
            (Target::Topology, call)
        })
    }

    fn next_event(&mut self, now: Now) -> Option<(Target, Call)> {
        let key = self.events.next(now)?;
        let call = self.events.send(&key, self.policy.dry_run)?;
        Some((Target::Event(key), call))
    }

    fn next_kept(&mut self, pods: &Store, now: Now) -> Option<(Target, Call)> {
        if now.mono_ms < self.kept_not_before_ms || !pods.is_listed() {
            return None;
        }
        let is_settled = |pod: &SeenPod| {
            !self.evictions.contains_key(&pod.uid) && !self.kept_in_flight.contains(&pod.uid)
        };
        let beyond = retention::surplus(
            pods.iter(),
            is_settled,
            self.policy.evicted_pods,
            now.unix_ms,
        );
        let Some(pod) = beyond.first().filter(|_| !self.policy.dry_run) else {
            self.kept_not_before_ms = now.mono_ms + RETENTION_EVERY_MS;
            return None;
        };
        self.kept_in_flight.insert(pod.uid.clone());
        let call = body::delete(pod, None, self.policy.dry_run);
        Some((Target::Kept(pod.uid.clone()), call))
    }

    /// What came of a call of [`Self::next`].
    pub fn answered(&mut self, target: &Target, answer: &Answer, pods: &mut Store, now: Now) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let unreadable = Answer::Lost("the answer is no object".to_owned());
        let answer = if is_readable(target, answer) {
            answer
        } else {
            &unreadable
        };
        match answer {
            Answer::Done(_) => self.heard(),
            // A token that is not taken is heard by nobody, as for the watches.
            Answer::Refused(refusal)
                if refusal.is_foreign || matches!(refusal.code, 401 | 502..=504) =>
            {
                self.missed(now);
            }
            Answer::Refused(refusal) if refusal.code < 500 => self.heard(),
            // 500 is also the answer where a webhook fails or two budgets meet: it says nothing about the server. The
            // watches do.
            Answer::Refused(_) => {}
            Answer::Lost(_) => {
                self.missed(now);
                if now.mono_ms >= self.gate_ms {
                    self.gate_ms = now.mono_ms + self.gate.wait_ms();
                }
            }
        }
        match target {
            Target::Eviction(uid, purpose) => {
                self.eviction_answered(uid, *purpose, answer, pods, now)
            }
            Target::Event(key) => self.events.answered(key, answer, now),
            Target::Node(purpose) => {
                if let Some(node) = self.reports.answered(*purpose, answer, now) {
                    self.saw_node(node, now);
                }
            }
            Target::Topology => self.topology.answered(answer, now),
            Target::Kept(uid) => {
                // A pod that could not be deleted is looked at again with the next round, not before.
                self.kept_in_flight.remove(uid);
                if !matches!(answer, Answer::Done(_)) {
                    self.kept_not_before_ms = now.mono_ms + RETENTION_EVERY_MS;
                }
                // The watch, which says it later, finds a pod that is not known any more.
                if matches!(answer, Answer::Done(_)) && pods.gone(uid) {
                    self.outgoing.push(ToAgent::PodGone { uid: uid.clone() });
                }
            }
        }
    }

    fn eviction_answered(
        &mut self,
        uid: &PodUid,
        purpose: Purpose,
        answer: &Answer,
        pods: &mut Store,
        now: Now,
    ) {
        let Some(eviction) = self.evictions.get_mut(uid) else {
            return;
        };
        let effect = eviction.answered(purpose, answer, now);
        if let (Answer::Done(body), Purpose::Read | Purpose::Report) = (answer, purpose)
            && !self.policy.dry_run | (purpose == Purpose::Read)
        {
            match pods.saw_in_answer(uid, body) {
                Some(true) => {}
                Some(false) => eviction.gone(),
                None if purpose == Purpose::Read => eviction.unread(now),
                // Whatever it was: the watch says it.
                None => {}
            }
        }
        match effect {
            Effect::None => {}
            Effect::Reported => {
                if !eviction.say(EVICTED) {
                    self.outgoing.push(ToAgent::Reported { uid: uid.clone() });
                    self.say_of_eviction(uid, EVICTED, now);
                }
            }
            Effect::RefusedByBudget => self.outgoing.push(ToAgent::Refused { uid: uid.clone() }),
        }
        self.drop_withdrawn();
    }

    /// What is to be sent to the agent since the last time.
    pub fn outgoing(&mut self) -> Vec<ToAgent> {
        std::mem::take(&mut self.outgoing)
    }

    /// What is to be said to people since the last time.
    pub fn words(&mut self) -> Vec<String> {
        let mut words = std::mem::take(&mut self.words);
        words.extend(self.topology.words());
        words
    }

    /// Whether something has to be looked at within a fraction of a second; else the next thing heard, or some seconds,
    /// are soon enough.
    #[must_use]
    pub fn is_busy(&self, now: Now) -> bool {
        !self.evictions.is_empty()
            || !self.events.is_idle()
            || !self.reports.is_idle(self.known_node(), now)
            || !self.topology.is_idle()
            || self.in_flight > 0
    }

    /// Figures for the metrics.
    #[must_use]
    pub fn figures(&self, now: Now) -> Figures {
        let unreported = self.evictions.values().filter(|it| !it.is_reported());
        let ages = unreported.map(|it| now.unix_ms.saturating_sub(it.intent.decided_unix_ms));
        let (count, oldest_ms) =
            ages.fold((0, 0), |(count, oldest), age| (count + 1, oldest.max(age)));
        Figures {
            unreported: count,
            oldest_unreported_ms: oldest_ms,
            unsettled: u64::try_from(self.evictions.len()).unwrap_or(u64::MAX),
            events_dropped: self.events.dropped,
            topology: self.topology.state(now),
            is_node_known: self.is_node_known,
            ..self.figures
        }
    }
}

/// What the agent hears of overused namespaces: none where the list is void.
fn overused(list: Option<&OverusedList>, now: Now) -> ToAgent {
    let valid_ms = list.map_or(0, |list| valid_ms(list.at_unix_ms, now.unix_ms));
    let list = list.filter(|_| valid_ms > 0);
    ToAgent::Overused {
        valid_ms,
        namespaces: list.map(|list| list.namespaces.clone()).unwrap_or_default(),
    }
}

/// Whether a success is one of the API server: something on the way answers 200 to everything, too.
fn is_readable(target: &Target, answer: &Answer) -> bool {
    let Answer::Done(body) = answer else {
        return true;
    };
    match target {
        Target::Eviction(_, Purpose::Read | Purpose::Report) => SeenPod::uid_of(body).is_some(),
        Target::Node(_) => SeenNode::read(body).is_some(),
        _ => serde_json::from_slice::<BTreeMap<String, serde::de::IgnoredAny>>(body).is_ok(),
    }
}

/// The word of an Event for a condition that has begun.
const fn condition_reason(
    report: &plimsoll_core::protocol::cluster_link::NodeConditionReport,
) -> &'static str {
    use plimsoll_core::protocol::cluster_link::PlimsollCondition;
    match report.condition {
        PlimsollCondition::MemoryPressure => "PlimsollMemoryPressure",
        PlimsollCondition::Stalled => "PlimsollStalled",
        PlimsollCondition::Degraded => "PlimsollDegraded",
    }
}

/// The Event of an eviction. Its annotations are the kubelet's (`eviction/helpers.go`), so that what reads those reads
/// these.
fn said_of(eviction: &Eviction, reason: &'static str) -> Said {
    let intent = &eviction.intent;
    let annotations = [
        ("offending_containers", &intent.offending_containers),
        (
            "offending_containers_usage",
            &intent.offending_containers_usage,
        ),
        ("starved_resource", &intent.starved_resource),
    ];
    let ending = if reason == NOT_SHOWN && eviction.is_let_go() {
        "The API server did not answer for too long: the pod runs again."
    } else if reason == NOT_SHOWN && eviction.is_never_taken() {
        "The API server answered for ten minutes that it could not take this: the pod runs again."
    } else if reason == NOT_SHOWN {
        "The API server or the kubelet did not keep this as the pod's status."
    } else if intent.is_held {
        "The pod is held: nothing can start in it until its end is shown here."
    } else {
        ""
    };
    Said {
        regarding: Regarding {
            kind: "Pod",
            namespace: intent.namespace.clone(),
            name: intent.name.clone(),
            uid: intent.uid.to_string(),
        },
        reason,
        action: "Evict",
        note: intent.message.clone(),
        ending,
        unix_ms: intent.decided_unix_ms,
        annotations: annotations
            .map(|(key, value)| (key.to_owned(), value.clone()))
            .into(),
    }
}

#[cfg(test)]
mod tests;
