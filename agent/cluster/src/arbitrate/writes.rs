//! What is written: bodies of calls, and which write is next.

use std::collections::{BTreeMap, VecDeque};

use plimsoll_core::arbitration::deletion::GRACE_MAX_S;
use serde_json::{Value, json};

use super::seen::node::SeenNode;
use super::seen::pod::{EVICT_AFTER, ROOM_ON, SeenPod};
use super::status::{Difference, Status};
use super::{Arbiter, SEEN_AFTER_MS, Target};
use crate::call::{Call, Content, Verb};
use crate::clock::Now;
use crate::report::body::{escaped, pod_path};
use crate::report::pressure::{OVERUSED, OverusedList, RENEWED_EVERY_MS};

/// A write that is due.
type Due = (Target, Call);

const API: &str = "plimsoll.dev/v1alpha1";
const PATH: &str = "/apis/plimsoll.dev/v1alpha1";
/// A status that differs by little is written after this.
const LITTLE_MS: u64 = 60_000;
/// What is due is looked for so often where no cycle has changed it.
const QUEUE_EVERY_MS: u64 = 1_000;
/// The hole of a pod is written again so often at most.
const HOLE_EVERY_MS: u64 = 100;
/// Writes of a class that are due at once; the others are found the next time.
const OF_A_CLASS_MAX: usize = 200;
/// How long after its wait the failures of a write are remembered.
const FORGOTTEN_MS: u64 = 120_000;

/// Of this pod and no other, and only as it was seen unless `is_any_version`. `version`: group and version that the API
/// server takes.
pub(super) fn eviction(
    uid: &str,
    pod: &SeenPod,
    version: &str,
    is_any_version: bool,
    is_dry: bool,
) -> Call {
    let mut options = json!({"preconditions": {"uid": uid}});
    if pod.grace_s.max(pod.leaving_grace_s) > GRACE_MAX_S {
        options["gracePeriodSeconds"] = json!(GRACE_MAX_S);
    }
    if !is_any_version {
        options["preconditions"]["resourceVersion"] = json!(pod.resource_version);
    }
    if is_dry {
        options["dryRun"] = json!(["All"]);
    }
    let body = json!({
        "apiVersion": version,
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": options,
    });
    let path = format!("{}/eviction", pod_path(&pod.namespace, &pod.name));
    Call::write(
        Verb::Post,
        "pods/eviction",
        &path,
        Content::Json,
        &body,
        is_dry,
    )
}

/// The notice on a pod; none takes it away. The status subresource lets annotations through, so that no right to change
/// pods is needed.
fn notice(uid: &str, pod: &SeenPod, value: Option<String>) -> Call {
    let body = json!({"metadata": {"uid": uid, "annotations": {EVICT_AFTER: value}}});
    status_patch(pod, &body)
}

/// The hole that is kept for a pod. The scheduler gives room on the node that it names to no other pod whose priority
/// is not greater.
fn hole(uid: &str, pod: &SeenPod, node: &str) -> Call {
    let body = json!({
        "metadata": {"uid": uid, "annotations": {ROOM_ON: node}},
        "status": {"nominatedNodeName": node},
    });
    status_patch(pod, &body)
}

/// No hole any more. Only of the pod as it was seen: what another one has written since stays.
fn no_hole(uid: &str, pod: &SeenPod, is_ours: bool) -> Call {
    let mut body = json!({"metadata": {
        "uid": uid, "resourceVersion": pod.resource_version, "annotations": {ROOM_ON: null},
    }});
    if pod.node.is_none() && is_ours {
        body["status"] = json!({"nominatedNodeName": null});
    }
    status_patch(pod, &body)
}

fn status_patch(pod: &SeenPod, body: &Value) -> Call {
    let path = format!("{}/status", pod_path(&pod.namespace, &pod.name));
    Call::write(
        Verb::Patch,
        "pods/status",
        &path,
        Content::Merge,
        body,
        false,
    )
}

fn allocation_path(namespace: &str, name: &str) -> String {
    let (namespace, name) = (escaped(namespace), escaped(name));
    format!("{PATH}/namespaces/{namespace}/allocations/{name}")
}

fn apply(resource: &'static str, path: &str, body: &Value) -> Call {
    Call::write(Verb::Patch, resource, path, Content::Apply, body, false)
}

impl Arbiter {
    fn may_write(&self, target: &Target, ms: u64) -> bool {
        let until = self.not_before.get(target).map_or(0, |(until, _)| *until);
        !self.on_their_way.contains(target) && ms >= until
    }

    /// The write that matters most: notices, then by turns the greatest difference of a status, lists for nodes, and
    /// notices that are over.
    pub(super) fn next_write(&mut self, now: Now) -> Option<(Target, Call)> {
        if now.mono_ms >= self.next_queue_ms {
            self.next_queue_ms = now.mono_ms + QUEUE_EVERY_MS;
            // What is over is forgotten.
            let ms = now.mono_ms;
            self.not_before
                .retain(|_, (until, _)| ms < until.saturating_add(FORGOTTEN_MS));
            let (notices, over) = self.due_notices(ms);
            let ended = self.ended_holes(ms);
            let classes = [self.due_statuses(now), self.due_overused(now), over, ended];
            let mut classes = classes.map(|class| {
                class
                    .into_iter()
                    .take(OF_A_CLASS_MAX)
                    .collect::<VecDeque<_>>()
            });
            self.queue = notices.into();
            while classes.iter().any(|class| !class.is_empty()) {
                let first = classes.iter_mut().filter_map(VecDeque::pop_front);
                self.queue.extend(first);
            }
        }
        loop {
            let (target, call) = self.queue.pop_front()?;
            if self.may_write(&target, now.mono_ms) && !self.is_wanted_again(&target, now.mono_ms) {
                return Some((target, call));
            }
        }
    }

    /// Notices that are not shown as they are, and those on pods that have none: of an earlier leader, or an earlier
    /// plan.
    fn due_notices(&self, ms: u64) -> (Vec<Due>, Vec<Due>) {
        let is_dry = self.settings.is_dry;
        let due = |uid: &String, pod: &SeenPod, value: Option<String>| {
            let target = Target::Notice(uid.clone());
            self.may_write(&target, ms)
                .then(|| (target, notice(uid, pod, value)))
        };
        let notices = self.reclaims.notices.iter().filter(|_| !is_dry);
        let notices = notices.filter_map(|(uid, notice)| {
            let pod = self.store.pods.get(uid)?;
            let value = Some(notice.value());
            (pod.evict_after != value).then(|| due(uid, pod, value))?
        });
        let over = self.store.pods.iter().filter(|(uid, pod)| {
            let has_none = is_dry || !self.reclaims.is_noticed(uid);
            pod.evict_after.is_some() && !pod.is_leaving && has_none
        });
        let over = over.filter_map(|(uid, pod)| due(uid, pod, None));
        (notices.collect(), over.take(OF_A_CLASS_MAX).collect())
    }

    fn holes(&self, ms: u64) -> BTreeMap<&str, &str> {
        if self.settings.is_dry {
            return BTreeMap::new();
        }
        let may_evict = self.held_back.is_none() && self.eviction_version.is_some();
        let begins = may_evict.then(|| self.begins(ms));
        self.reclaims.holes(ms, begins)
    }

    /// A hole that the API does not show as kept. The scheduler takes it back when it has tried the pod in vain, and
    /// other pods are faster from then on: it is written before all else, as soon as that is seen.
    pub(super) fn next_hole(&mut self, ms: u64) -> Option<Due> {
        if !self.hole_writes.allows(ms) {
            return None;
        }
        let (uid, node) = self.holes(ms).into_iter().find(|(uid, node)| {
            let Some(pod) = self.store.pods.get(*uid) else {
                return false;
            };
            let is_kept = self.is_kept(uid, pod, node);
            // What was written and is not shown yet, or was written just now: scheduler and arbitrator must not write
            // by turns without end.
            let is_written = self.holes_at.get(*uid).is_some_and(|(version, at)| {
                let is_seen = *version != pod.resource_version;
                ms < at
                    + if is_seen {
                        HOLE_EVERY_MS
                    } else {
                        SEEN_AFTER_MS
                    }
            });
            let is_pending = pod.node.is_none() && !pod.is_leaving;
            // The scheduler makes room elsewhere by a preemption of its own.
            let nominated = pod.nominated.as_deref();
            let is_served =
                nominated.is_some_and(|nominated| nominated != *node) && !pod.has_kept_hole();
            let target = Target::Hole((*uid).to_owned());
            is_pending && !is_served && !is_kept && !is_written && self.may_write(&target, ms)
        })?;
        let pod = self.store.pods.get(uid)?;
        let (target, call) = (Target::Hole(uid.to_owned()), hole(uid, pod, node));
        let written = (uid.to_owned(), (pod.resource_version.clone(), ms));
        self.holes_at
            .retain(|_, (_, at)| ms < at.saturating_add(SEEN_AFTER_MS));
        self.holes_at.extend([written]);
        self.hole_writes.count(ms);
        Some((target, call))
    }

    /// Holes that are kept for no reason any more: the pod has started, or waits for nothing there.
    fn ended_holes(&self, ms: u64) -> Vec<Due> {
        let holes = self.holes(ms);
        let ended = self.store.pods.iter().filter(|(uid, pod)| {
            let is_wanted = pod.node.is_none() && holes.contains_key(uid.as_str());
            let is_shown = pod.room_on.is_some() || self.has_nominated(uid, pod);
            is_shown && !pod.is_leaving && !is_wanted
        });
        let due = ended.filter_map(|(uid, pod)| {
            let target = Target::Hole(uid.clone());
            let is_ours = pod.has_kept_hole() || self.has_nominated(uid, pod);
            self.may_write(&target, ms)
                .then(|| (target, no_hole(uid, pod, is_ours)))
        });
        due.take(OF_A_CLASS_MAX).collect()
    }

    /// Whether the pod's nominated node is a word of this process, whatever became of the annotation beside it, which
    /// its owner can take off.
    fn has_nominated(&self, uid: &str, pod: &SeenPod) -> bool {
        let ours = self.nominated.get(uid);
        pod.node.is_none() && ours.is_some() && ours == pod.nominated.as_ref()
    }

    /// Whether the API has it that the hole on this node is kept for this pod.
    pub(super) fn is_kept(&self, uid: &str, pod: &SeenPod, node: &str) -> bool {
        let is_ours = pod.has_kept_hole() || self.has_nominated(uid, pod);
        is_ours && pod.nominated.as_deref() == Some(node)
    }

    /// Whether a hole that had ended when the queue was made is kept by now.
    pub(super) fn is_wanted_again(&self, target: &Target, ms: u64) -> bool {
        let Target::Hole(uid) = target else {
            return false;
        };
        let pod = self.store.pods.get(uid);
        pod.is_some_and(|pod| pod.node.is_none()) && self.holes(ms).contains_key(uid.as_str())
    }

    /// Pods of each namespace that have notice, in words.
    fn noticed(&self) -> BTreeMap<&str, Vec<String>> {
        let mut noticed: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (uid, notice) in &self.reclaims.notices {
            if let Some(pod) = self.store.pods.get(uid) {
                let words = format!("{} for {}", pod.name, self.shown(&notice.pod));
                noticed.entry(&pod.namespace).or_default().push(words);
            }
        }
        noticed
    }

    fn due_statuses(&mut self, now: Now) -> Vec<Due> {
        let ms = now.mono_ms;
        let mut due: Vec<(Difference, Target, Status)> = Vec::new();
        let known = std::mem::take(&mut self.little_since);
        let mut little = BTreeMap::new();
        let noticed = self.noticed();
        let none = Vec::new();
        for (name, consumer) in self.store.consumers.iter() {
            let Some(row) = self.rows.get(name) else {
                continue;
            };
            let counted = row.namespace.as_deref();
            let asked_for = counted.and_then(|it| noticed.get(it)).unwrap_or(&none);
            let held_back = self.held_back.as_deref();
            let status = Status::of(row, consumer.generation, asked_for, held_back);
            let mut places = vec![(Target::Consumer(name.clone()), Some(&consumer.status))];
            // A Consumer whose namespace another Consumer has taken may have an Allocation from before.
            let spec = consumer.spec.as_ref().ok();
            let namespace = counted.or_else(|| spec?.namespace.as_deref());
            if let Some(namespace) = namespace.filter(|it| self.lives(it)) {
                let key = (namespace.to_owned(), name.clone());
                let seen = self.store.allocations.get(&key);
                match seen {
                    // None is made where the Consumer does not count.
                    None if counted.is_none() => {}
                    // It may be among those that are not kept, as it should be.
                    None if self.store.allocations.left_out_of(namespace) > 0 => {}
                    None => places.push((Target::Allocation(key.0, key.1), None)),
                    Some(seen) => {
                        let target = Target::AllocationStatus(key.0, key.1);
                        places.push((target, Some(&seen.status)));
                    }
                }
            }
            for (target, there) in places {
                let difference = there.map_or(Difference::Much(1000), |there| {
                    status.difference(there, &self.judgement.capacity)
                });
                let is_due = match difference {
                    Difference::None => false,
                    Difference::Little => {
                        let since = known.get(&target).copied().unwrap_or(ms);
                        little.insert(target.clone(), since);
                        ms >= since + LITTLE_MS
                    }
                    Difference::Much(_) => true,
                };
                if is_due && self.may_write(&target, ms) {
                    due.push((difference, target, status.clone()));
                }
            }
        }
        self.little_since = little;
        due.sort_by(|(one, ..), (other, ..)| other.cmp(one));
        due.truncate(OF_A_CLASS_MAX);
        let calls = due.into_iter().filter_map(|(_, target, status)| {
            let call = self.status_call(&target, &status, now)?;
            Some((target, call))
        });
        calls.collect()
    }

    fn lives(&self, namespace: &str) -> bool {
        let namespace = self.store.namespaces.get(namespace);
        namespace.is_some_and(|namespace| !namespace.is_terminating)
    }

    fn status_call(&self, target: &Target, status: &Status, now: Now) -> Option<Call> {
        let unix_ms = now.unix_ms;
        match target {
            Target::Consumer(name) => {
                let there = &self.store.consumers.get(name)?.status;
                let body = json!({"apiVersion": API, "kind": "Consumer", "metadata": {"name": name}, "status": status.body(there, unix_ms)});
                let path = format!("{PATH}/consumers/{}/status", escaped(name));
                Some(apply("consumers/status", &path, &body))
            }
            Target::Allocation(namespace, name) => {
                // It goes with its Consumer.
                let uid = &self.store.consumers.get(name)?.uid;
                let owner =
                    json!([{"apiVersion": API, "kind": "Consumer", "name": name, "uid": uid}]);
                let body = json!({"apiVersion": API, "kind": "Allocation",
                    "metadata": {"name": name, "namespace": namespace, "ownerReferences": owner}});
                Some(apply(
                    "allocations",
                    &allocation_path(namespace, name),
                    &body,
                ))
            }
            Target::AllocationStatus(namespace, name) => {
                let there = &self
                    .store
                    .allocations
                    .get(&(namespace.clone(), name.clone()))?
                    .status;
                let body = json!({"apiVersion": API, "kind": "Allocation",
                    "metadata": {"name": name, "namespace": namespace}, "status": status.body(there, unix_ms)});
                let path = format!("{}/status", allocation_path(namespace, name));
                Some(apply("allocations/status", &path, &body))
            }
            Target::Evict(_)
            | Target::Try(_)
            | Target::Notice(_)
            | Target::Hole(_)
            | Target::Overused(_)
            | Target::Event(_) => None,
        }
    }

    /// Nodes under pressure hear which namespaces are overused, again and again, as the list is void after a minute. A
    /// dry run sends no list: nodes would evict other pods for it.
    fn due_overused(&mut self, now: Now) -> Vec<Due> {
        let ms = now.mono_ms;
        let nodes = &self.store.nodes;
        self.overused_at.retain(|node, _| {
            let node = nodes.get(node.as_str());
            node.is_some_and(|node| node.has_pressure(now))
        });
        let mut due = Vec::new();
        // What was judged before is not stamped as if it were new.
        if self.store.stale().is_none() && self.broken.is_none() && !self.settings.is_dry {
            let lists = self.judgement.overused_on.iter();
            for (name, namespaces) in lists.filter(|(_, namespaces)| !namespaces.is_empty()) {
                let target = Target::Overused(name.clone());
                let last = self.overused_at.get(name);
                let is_due = last.is_none_or(|last| ms >= last + RENEWED_EVERY_MS);
                if is_due && self.may_write(&target, ms) {
                    let value = OverusedList::value(namespaces, now.unix_ms);
                    due.push((target, overused(name, Some(&value))));
                }
            }
        }
        // No pressure any more, or nobody on the list: no list.
        let is_empty = |name: &str| {
            let list = self.judgement.overused_on.get(name);
            list.is_some_and(BTreeMap::is_empty)
        };
        let nodes = self.store.nodes.iter();
        let is_over = |(name, node): &(&String, &SeenNode)| {
            node.overused.is_some() && (!node.has_pressure(now) || is_empty(name))
        };
        for (name, _) in nodes.filter(is_over) {
            due.push((Target::Overused(name.clone()), overused(name, None)));
        }
        due
    }
}

fn overused(node: &str, value: Option<&str>) -> Call {
    let body = json!({"metadata": {"annotations": {OVERUSED: value}}});
    let path = format!("/api/v1/nodes/{}/status", escaped(node));
    Call::write(
        Verb::Patch,
        "nodes/status",
        &path,
        Content::Merge,
        &body,
        false,
    )
}
