//! Whether a Consumer may be as it is wanted: what the webhook answers. Pure.
//!
//! Problem: a Consumer that is wrong is counted as something else and has a condition that says so, which its author
//! sees late or never. Approach: it is refused when it is written. Whatever is in doubt is allowed: the arbitrator
//! judges each Consumer again in each cycle, so that a webhook that does not answer costs nothing but the early word. A
//! reason that held before, in the same words, refuses nothing: what is wrong can be mended step by step.
//!
//! What is refused: `docs/reference/arbitrator.md`, "Refused when it is written".

pub mod waiting;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::arbitration::amounts::{AMOUNT_LIMIT, RESOURCES_MAX};
use plimsoll_core::arbitration::named::{LEVELS_MAX, Named};
use plimsoll_core::arbitration::units::quantity_of;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::seen::consumer::{ConsumerSpec, SeenConsumer};
use super::store::{Kind, Store, add};
use crate::call::cut;

/// Reasons, and warnings, that one answer has.
const REASONS_MAX: usize = 10;
/// Bytes of one of them: the API server cuts warnings off as well.
const REASON_BYTES_MAX: usize = 512;
/// What a Consumer is compared with.
const COMPARED: [Kind; 3] = [Kind::Consumers, Kind::Nodes, Kind::Quotas];

/// What comes of a review.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// Why it is refused; empty: it is allowed.
    pub refused: Vec<String>,
    /// What its author should know all the same.
    pub warnings: Vec<String>,
    /// It was compared with nothing, as not all is known now.
    pub is_uncompared: bool,
}

impl Verdict {
    /// A metric's label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match (self.refused.is_empty(), self.is_uncompared) {
            (false, _) => "refused",
            (true, true) => "uncompared",
            (true, false) => "allowed",
        }
    }
}

/// What the API server asks.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Of this request; goes back with the answer.
    uid: String,
    /// Name and Consumer, as it is to be. Nothing: it is to be deleted.
    wanted: Option<(String, SeenConsumer)>,
    /// As it was.
    before: Option<SeenConsumer>,
}

/// A Consumer, without its status: who asks need not be an API server that has checked it, and a question that waits
/// holds what it has.
fn bounded_consumer(text: &str) -> Result<(String, SeenConsumer), String> {
    let (name, mut consumer) = SeenConsumer::read(text.as_bytes())?;
    consumer.status = Value::Null;
    if let Ok(spec) = &consumer.spec
        && [&spec.hard, &spec.reserved]
            .iter()
            .any(|named| named.len() > RESOURCES_MAX)
    {
        return Err(format!("more than {RESOURCES_MAX} resources"));
    }
    Ok((name, consumer))
}

impl Question {
    /// Reads an `AdmissionReview` of `admission.k8s.io/v1` about a Consumer.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Review<'a> {
            #[serde(borrow)]
            request: Request<'a>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Request<'a> {
            uid: String,
            #[serde(borrow, default)]
            object: Option<&'a RawValue>,
            #[serde(borrow, default)]
            old_object: Option<&'a RawValue>,
        }
        let review: Review<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let consumer = |object: Option<&RawValue>| match object.map(RawValue::get) {
            None | Some("null") => Ok(None),
            Some(text) => bounded_consumer(text).map(Some),
        };
        Ok(Self {
            uid: review.request.uid,
            wanted: consumer(review.request.object)?,
            before: consumer(review.request.old_object)?.map(|(_, before)| before),
        })
    }

    /// The answer to it.
    #[must_use]
    pub fn answer(&self, verdict: &Verdict) -> Value {
        let is_allowed = verdict.refused.is_empty();
        let mut response = serde_json::json!({"uid": self.uid, "allowed": is_allowed});
        if !is_allowed {
            // With "Invalid" older versions of kubectl leave the message out.
            let message = verdict.refused.join("; ");
            response["status"] =
                serde_json::json!({"code": 403, "reason": "Forbidden", "message": message});
        }
        if !verdict.warnings.is_empty() {
            response["warnings"] = verdict.warnings.clone().into();
        }
        serde_json::json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }
}

/// Judges what is asked for, by what is known of the cluster.
#[must_use]
pub fn review(store: &Store, question: &Question) -> Verdict {
    let Some((name, wanted)) = &question.wanted else {
        return Verdict::default();
    };
    let mut verdict = Verdict::default();
    let spec = match &wanted.spec {
        Ok(spec) => spec,
        Err(why) => {
            let text = format!(
                "spec cannot be read: {why}: correct it; a field of a later version needs that version of the arbitrator"
            );
            verdict.refused.push(text);
            return verdict;
        }
    };
    let before = question.before.as_ref();
    let before = before.and_then(|before| before.spec.as_ref().ok());
    if before.is_some_and(|before| before == spec) {
        return verdict;
    }
    if let Some((kind, _)) = store.stale_of(&COMPARED) {
        let text = format!(
            "the arbitrator does not know all {} now, so this was compared with nothing: look at its condition Accepted later",
            kind.resource()
        );
        verdict.warnings.push(text);
        verdict.is_uncompared = true;
        return verdict;
    }
    let tree = Tree::new(store, name, spec);
    let (mut refused, mut warnings) = tree.reasons();
    tree.check_root(before, &mut refused);
    if let Some(before) = before {
        if !(refused.is_empty() && warnings.is_empty()) {
            let (known, known_warnings) = Tree::new(store, name, before).reasons();
            refused.retain(|reason| !known.contains(reason));
            warnings.retain(|reason| !known_warnings.contains(reason));
        }
        check_namespace(before, spec, &mut refused);
    }
    verdict.refused = bounded(refused);
    verdict.warnings = bounded(warnings);
    verdict
}

fn bounded(mut reasons: Vec<String>) -> Vec<String> {
    reasons.truncate(REASONS_MAX);
    let cut = |reason: String| cut(&reason, REASON_BYTES_MAX).to_owned();
    reasons.into_iter().map(cut).collect()
}

/// Kubernetes before 1.25 does not know the rule of the resource's schema that says so.
fn check_namespace(before: &ConsumerSpec, spec: &ConsumerSpec, refused: &mut Vec<String>) {
    if before.namespace != spec.namespace {
        let shown = |namespace: &Option<String>| namespace.clone().unwrap_or("none".to_owned());
        refused.push(format!(
            "spec.namespace: it cannot change from {} to {}: make another Consumer, and delete this one",
            shown(&before.namespace),
            shown(&spec.namespace)
        ));
    }
}

/// A Consumer's name and what it is to be.
type NamedSpec<'a> = (&'a String, &'a ConsumerSpec);

/// The Consumers with the one that is asked about as it is to be.
struct Tree<'a> {
    store: &'a Store,
    name: &'a String,
    spec: &'a ConsumerSpec,
    /// By their parent, as they name it; without one by nothing.
    children: BTreeMap<Option<&'a str>, Vec<NamedSpec<'a>>>,
}

impl<'a> Tree<'a> {
    fn new(store: &'a Store, name: &'a String, spec: &'a ConsumerSpec) -> Self {
        let mut tree = Self {
            store,
            name,
            spec,
            children: BTreeMap::new(),
        };
        for (name, spec) in tree.all() {
            let siblings = tree.children.entry(spec.parent.as_deref());
            siblings.or_default().push((name, spec));
        }
        tree
    }

    /// What is wrong, and what is to be known, whatever it was before.
    fn reasons(&self) -> (Vec<String>, Vec<String>) {
        let (mut refused, mut warnings) = (Vec::new(), Vec::new());
        self.check_amounts(&mut refused);
        self.check_quotas(&mut refused);
        self.check_namespace_taken(&mut refused);
        self.check_parent(&mut refused);
        self.check_group(&mut refused, &mut warnings);
        (refused, warnings)
    }

    fn spec(&self, name: &str) -> Option<&'a ConsumerSpec> {
        if name == self.name {
            return Some(self.spec);
        }
        self.store.consumers.get(name)?.spec.as_ref().ok()
    }

    /// The others, and this one as it is to be.
    fn all(&self) -> impl Iterator<Item = NamedSpec<'a>> + use<'a> {
        let (asked, spec) = (self.name, self.spec);
        let others = self.store.consumers.iter();
        let others = others.filter_map(|(name, known)| Some((name, known.spec.as_ref().ok()?)));
        let others = others.filter(move |(name, _)| *name != asked);
        others.chain([(asked, spec)])
    }

    fn children(&self, parent: &'a str) -> &[NamedSpec<'a>] {
        self.children.get(&Some(parent)).map_or(&[], |all| all)
    }

    /// What the children have reserved together.
    fn reserved_by_children(&self, parent: &'a str) -> Named {
        let mut total = Named::new();
        for child in self.children(parent) {
            self.add_reserved(*child, LEVELS_MAX, &mut total);
        }
        total
    }

    /// Adds what a Consumer has for sure: what is reserved for it, or for those in it where that is more.
    fn add_reserved(&self, (name, spec): NamedSpec<'a>, levels: usize, total: &mut Named) {
        let children = self.children(name);
        if children.is_empty() || levels == 0 {
            return add(total, &spec.reserved);
        }
        let mut reserved = Named::new();
        for child in children {
            self.add_reserved(*child, levels - 1, &mut reserved);
        }
        for (resource, amount) in &spec.reserved {
            let most = reserved.entry(resource.clone()).or_default();
            *most = (*most).max(*amount);
        }
        add(total, &reserved);
    }

    /// Amounts that can be counted, and `reserved` within `hard`.
    fn check_amounts(&self, refused: &mut Vec<String>) {
        let fields = [("hard", &self.spec.hard), ("reserved", &self.spec.reserved)];
        for (field, amounts) in fields {
            for (resource, _) in amounts.iter().filter(|(_, it)| **it >= AMOUNT_LIMIT) {
                refused.push(format!(
                    "spec.{field}.{resource}: more than can be counted, which is below 2^60 bytes, pieces or thousandths of a CPU: give less, or leave it out"
                ));
            }
        }
        for (resource, amount) in &self.spec.reserved {
            if let Some(hard) = self.spec.hard.get(resource).filter(|hard| *hard < amount) {
                refused.push(format!(
                    "spec.reserved.{resource}: {} is more than spec.hard.{resource}, {}, which this Consumer never passes: reserve less, or raise hard",
                    quantity_of(resource, *amount),
                    quantity_of(resource, *hard)
                ));
            }
        }
    }

    /// `hard` within the namespace's quotas.
    fn check_quotas(&self, refused: &mut Vec<String>) {
        let Some(namespace) = &self.spec.namespace else {
            return;
        };
        let quotas = self.store.quotas.from((namespace.clone(), String::new()));
        for ((_, quota), known) in quotas.take_while(|((of, _), _)| of == namespace) {
            for (resource, least) in &known.hard {
                if let Some(hard) = self.spec.hard.get(resource).filter(|hard| *hard > least) {
                    refused.push(format!(
                        "spec.hard.{resource}: {} is more than ResourceQuota {namespace}/{quota} lets through, {}: lower hard, or raise the quota first",
                        quantity_of(resource, *hard),
                        quantity_of(resource, *least)
                    ));
                }
            }
        }
    }

    /// It alone is for its namespace, and no group.
    fn check_namespace_taken(&self, refused: &mut Vec<String>) {
        let Some(namespace) = &self.spec.namespace else {
            return;
        };
        let same = |(name, spec): &NamedSpec<'_>| {
            *name != self.name && spec.namespace.as_ref() == Some(namespace)
        };
        if let Some((other, _)) = self.all().find(same) {
            refused.push(format!(
                "spec.namespace: Consumer {other} is for {namespace} already, and a namespace has one: change that one, or delete it first"
            ));
        }
        if let Some((child, _)) = self.children(self.name).first() {
            refused.push(format!(
                "spec.namespace: Consumer {child} names this one as its parent, and a parent is a group: leave namespace out, or change the parent of {child} first"
            ));
        }
    }

    /// Its place in the tree.
    fn check_parent(&self, refused: &mut Vec<String>) {
        if self.spec.unlimited && (self.spec.parent.is_some() || self.spec.namespace.is_none()) {
            refused.push("spec.unlimited: only for the Consumer of a namespace without a parent, for it is served before all groups: leave unlimited out, or parent".to_owned());
        }
        let Some(parent) = &self.spec.parent else {
            return;
        };
        match self.spec(parent) {
            None => refused.push(format!(
                "spec.parent: there is no Consumer {parent} that can be read: create the group first, or leave parent out"
            )),
            Some(group) if group.namespace.is_some() => refused.push(format!(
                "spec.parent: Consumer {parent} is for a namespace, and a parent is a group: name a Consumer without spec.namespace"
            )),
            Some(_) => match self.levels_above() {
                None => refused.push(format!(
                    "spec.parent: a cycle: {parent} is this Consumer, or below it: name a group that is not"
                )),
                Some(above) if above + self.levels_below(self.name, LEVELS_MAX) >= LEVELS_MAX => {
                    refused.push(format!(
                        "spec.parent: more than {LEVELS_MAX} levels of Consumers: name a group that is higher up"
                    ));
                }
                Some(_) => {}
            },
        }
    }

    /// Nothing where it is above itself; at most [`LEVELS_MAX`].
    fn levels_above(&self) -> Option<usize> {
        let mut above = self.spec.parent.as_deref();
        for level in 0..=LEVELS_MAX {
            match above {
                None => return Some(level),
                Some(name) if name == self.name => return None,
                Some(name) => above = self.spec(name).and_then(|spec| spec.parent.as_deref()),
            }
        }
        Some(LEVELS_MAX)
    }

    fn levels_below(&self, name: &'a str, most: usize) -> usize {
        if most == 0 {
            return 0;
        }
        let below = self.children(name).iter();
        let below = below.map(|(child, _)| 1 + self.levels_below(child, most - 1));
        below.max().unwrap_or(0)
    }

    /// What is reserved within a group is within its `hard`: of its parent, and of itself.
    fn check_group(&self, refused: &mut Vec<String>, warnings: &mut Vec<String>) {
        let groups = [self.spec.parent.as_deref(), Some(self.name.as_str())];
        let groups: BTreeSet<&str> = groups.into_iter().flatten().collect();
        for group in groups {
            let Some(spec) = self.spec(group) else {
                continue;
            };
            for (resource, amount) in &self.reserved_by_children(group) {
                let shown = quantity_of(resource, *amount);
                let passes =
                    |bounds: &Named| bounds.get(resource).copied().filter(|it| it < amount);
                if let Some(hard) = passes(&spec.hard) {
                    let field = if group == self.name {
                        "hard"
                    } else {
                        "reserved"
                    };
                    refused.push(format!(
                        "spec.{field}.{resource}: the Consumers in group {group} have {shown} reserved together, and its hard is {}: reserve less in it, or raise its hard",
                        quantity_of(resource, hard)
                    ));
                } else if let Some(reserved) = passes(&spec.reserved) {
                    warnings.push(format!(
                        "the Consumers in group {group} have {shown} of {resource} reserved together, and the group {}: the greater counts",
                        quantity_of(resource, reserved)
                    ));
                }
            }
        }
    }

    /// All that is reserved is within the cluster. A cluster may shrink: what does not raise the sum is not refused for
    /// it.
    fn check_root(&self, before: Option<&ConsumerSpec>, refused: &mut Vec<String>) {
        if self.spec.reserved.is_empty() && before.is_none() {
            return;
        }
        let capacity = self.store.allocatable();
        let none = ConsumerSpec::default();
        let was = Tree::new(self.store, self.name, before.unwrap_or(&none)).reserved_at_the_root();
        for (resource, amount) in self.reserved_at_the_root() {
            let had = was.get(&resource).copied().unwrap_or(0);
            let there_is = capacity.get(&resource).copied();
            if amount <= there_is.unwrap_or(0) || amount <= had {
                continue;
            }
            let shown = quantity_of(&resource, amount);
            refused.push(match there_is {
                Some(there_is) => format!(
                    "spec.reserved.{resource}: {shown} would be reserved by all Consumers together, and the nodes have {}: reserve less, here or elsewhere",
                    quantity_of(&resource, there_is)
                ),
                None => format!(
                    "spec.reserved.{resource}: no node has such a resource: correct its name, or wait until a node has it"
                ),
            });
        }
    }

    fn reserved_at_the_root(&self) -> Named {
        let mut total = Named::new();
        for child in self.children.get(&None).into_iter().flatten() {
            self.add_reserved(*child, LEVELS_MAX, &mut total);
        }
        total
    }
}

#[cfg(test)]
mod tests;
