//! On which nodes a pending pod may start: `nodeSelector`, required node affinity, taints. What else binds it to nodes
//! (volumes, other pods, host ports, topology spread) is not known here: for such a pod no other is evicted, since it
//! might not start in the hole.
//!
//! Source: `k8s.io/component-helpers/scheduling/corev1/nodeaffinity` and `helpers.go` of 1.36.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::node::{SeenNode, Taint};

type Texts = BTreeMap<String, String>;

/// Bytes of what binds one pod to nodes; people write some hundred.
const BYTES_MAX: usize = 4096;
/// Why a pod with more has no room made for it.
pub const TOO_LARGE: &str = "rules for its node of more than 4 KiB";

/// The scheduler of pods that name none.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// A toleration of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(default)]
pub struct Toleration {
    key: Option<String>,
    operator: Option<String>,
    value: Option<String>,
    effect: Option<String>,
}

impl Toleration {
    fn tolerates(&self, taint: &Taint) -> bool {
        let is_empty = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
        let has_effect = is_empty(&self.effect) || self.effect.as_ref() == Some(&taint.effect);
        let has_key = is_empty(&self.key) || self.key.as_ref() == Some(&taint.key);
        let value = |text: &Option<String>| text.clone().unwrap_or_default();
        let has_value = match self.operator.as_deref() {
            Some("Exists") => true,
            None | Some("" | "Equal") => value(&self.value) == value(&taint.value),
            Some(_) => false,
        };
        has_effect && has_key && has_value
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Term {
    match_expressions: Vec<Expression>,
    match_fields: Vec<Expression>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(default)]
struct Expression {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl Expression {
    fn holds(&self, value: Option<&str>) -> bool {
        let is_listed = |value: &str| self.values.iter().any(|it| it == value);
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
        let than = number(self.values.first().map(String::as_str));
        match self.operator.as_str() {
            "In" => value.is_some_and(is_listed),
            "NotIn" => !value.is_some_and(is_listed),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => number(value)
                .zip(than)
                .is_some_and(|(value, than)| value > than),
            "Lt" => number(value)
                .zip(than)
                .is_some_and(|(value, than)| value < than),
            _ => false,
        }
    }
}

/// Keys of taints by which Kubernetes says how a node is, not for whom it is, begin so.
pub const OF_NODE_STATE: &str = "node.kubernetes.io/";

/// Where a pod may start; of one on a node its tolerations are kept and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Placement {
    selector: Texts,
    /// One of these has to hold; none: there is no such rule.
    terms: Option<Vec<Term>>,
    tolerations: Vec<Toleration>,
    /// What else binds it to nodes, in words.
    pub unknown: Option<&'static str>,
}

/// `spec.tolerations`.
#[derive(Deserialize, Default)]
#[serde(transparent)]
pub struct Tolerations(Vec<Toleration>);

/// The fields of a pod's `spec`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiPlacement {
    node_selector: Option<Texts>,
    affinity: Option<Affinity>,
    tolerations: Option<Vec<Toleration>>,
    topology_spread_constraints: Option<Vec<Spread>>,
    volumes: Option<Vec<Volume>>,
    resource_claims: Option<Vec<IgnoredAny>>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
    scheduler_name: Option<String>,
    /// Which pods are placed together or not at all: as 1.35 has it, and later versions.
    workload_ref: Option<IgnoredAny>,
    scheduling_group: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    node_affinity: Option<NodeAffinity>,
    pod_affinity: Option<PodAffinity>,
    pod_anti_affinity: Option<PodAffinity>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<NodeSelector>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct NodeSelector {
    node_selector_terms: Vec<Term>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spread {
    when_unsatisfiable: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    persistent_volume_claim: Option<IgnoredAny>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    ports: Option<Vec<Port>>,
    restart_policy: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    host_port: Option<u32>,
}

impl ApiPlacement {
    /// Another scheduler than this one places the pod.
    #[must_use]
    pub fn has_other_scheduler(&self, scheduler: &str) -> bool {
        let named = self.scheduler_name.as_deref().filter(|it| !it.is_empty());
        named.unwrap_or(DEFAULT_SCHEDULER) != scheduler
    }

    /// What binds the pod to nodes and is not computed with here.
    fn unknown(&self, scheduler: &str) -> Option<&'static str> {
        let is_required = |affinity: &Option<PodAffinity>| {
            let required = affinity.as_ref().and_then(|it| it.required.as_ref());
            required.is_some_and(|terms| !terms.is_empty())
        };
        let affinity = self.affinity.as_ref();
        let needs_pods = affinity.is_some_and(|affinity| {
            is_required(&affinity.pod_affinity) || is_required(&affinity.pod_anti_affinity)
        });
        let mut spreads = self.topology_spread_constraints.iter().flatten();
        let mut volumes = self.volumes.iter().flatten();
        // Of init containers, those that go on running.
        let sidecars = self.init_containers.iter().flatten();
        let sidecars = sidecars.filter(|it| it.restart_policy.as_deref() == Some("Always"));
        let containers = self.containers.iter().flatten().chain(sidecars);
        let mut ports = containers.flat_map(|it| it.ports.iter().flatten());
        if needs_pods {
            Some("required affinity to pods")
        } else if spreads.any(|it| it.when_unsatisfiable != "ScheduleAnyway") {
            Some("a required topology spread")
        } else if volumes.any(|it| it.persistent_volume_claim.is_some() || it.ephemeral.is_some()) {
            Some("a persistent volume")
        } else if self
            .resource_claims
            .as_ref()
            .is_some_and(|it| !it.is_empty())
        {
            Some("a resource claim")
        } else if ports.any(|port| port.host_port.is_some_and(|port| port > 0)) {
            Some("a host port")
        } else if self.workload_ref.is_some() || self.scheduling_group.is_some() {
            Some("a group that is placed as a whole")
        } else if self.has_other_scheduler(scheduler) {
            Some("a scheduler of its own")
        } else {
            None
        }
    }
}

impl Placement {
    /// Of a pod's `spec`. `scheduler`: whose pods have room made for them.
    #[must_use]
    pub fn of(spec: ApiPlacement, scheduler: &str) -> Self {
        let unknown = spec.unknown(scheduler);
        let required = spec
            .affinity
            .and_then(|affinity| affinity.node_affinity?.required);
        let placement = Self {
            selector: spec.node_selector.unwrap_or_default(),
            terms: required.map(|required| required.node_selector_terms),
            tolerations: spec.tolerations.unwrap_or_default(),
            unknown,
        };
        if placement.bytes() > BYTES_MAX {
            return Self {
                unknown: Some(TOO_LARGE),
                ..Self::default()
            };
        }
        placement
    }

    /// Of a pod that is on a node: the taints that it tolerates. Not those of a node's state, which nearly every pod
    /// tolerates for some minutes.
    #[must_use]
    pub fn of_bound(tolerations: Tolerations) -> Self {
        let tolerations = tolerations.0.into_iter();
        let of_state = |it: &Toleration| {
            let key = it.key.as_deref();
            key.is_some_and(|key| key.starts_with(OF_NODE_STATE))
        };
        let placement = Self {
            tolerations: tolerations.filter(|it| !of_state(it)).collect(),
            ..Self::default()
        };
        if placement.bytes() > BYTES_MAX {
            return Self::default();
        }
        placement
    }

    /// What it tolerates.
    #[must_use]
    pub fn tolerations(&self) -> &[Toleration] {
        &self.tolerations
    }

    /// Whether none of these taints keeps the pod away.
    #[must_use]
    pub fn tolerates<'taint>(&self, taints: impl IntoIterator<Item = &'taint Taint>) -> bool {
        let is_tolerated = |taint: &Taint| self.tolerations.iter().any(|it| it.tolerates(taint));
        taints.into_iter().all(is_tolerated)
    }

    /// The bytes that it is kept in, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let (entries, bytes) = self.size();
        bytes + 16 * entries
    }

    /// Entries, and the bytes of their texts.
    fn size(&self) -> (usize, usize) {
        let selector = self
            .selector
            .iter()
            .map(|(key, value)| key.len() + value.len());
        let terms = self.terms.iter().flatten();
        let expressions = terms.clone().flat_map(|term| {
            let all = term.match_expressions.iter().chain(&term.match_fields);
            all.flat_map(|it| {
                let values = it.values.iter().map(String::len);
                values.chain([it.key.len() + it.operator.len()])
            })
        });
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let tolerations = self.tolerations.iter().map(|it| {
            let texts = [&it.key, &it.operator, &it.value, &it.effect];
            texts.into_iter().map(length).sum()
        });
        let all = selector
            .chain(expressions)
            .chain(tolerations)
            .chain(terms.map(|_| 0));
        all.fold((0, 0), |(entries, bytes), of_it: usize| {
            (entries + 1, bytes + of_it)
        })
    }

    /// How many comparisons one node costs, at most and about.
    #[must_use]
    pub fn work(&self) -> usize {
        self.size().0 + 1
    }

    /// Whether the pod may start on this node.
    #[must_use]
    pub fn allows(&self, name: &str, node: &SeenNode) -> bool {
        let label = |key: &str| node.labels.get(key).map(String::as_str);
        let field = |key: &str| (key == "metadata.name").then_some(name);
        // An empty term selects nothing.
        let holds = |term: &Term| {
            !(term.match_expressions.is_empty() && term.match_fields.is_empty())
                && term
                    .match_expressions
                    .iter()
                    .all(|it| it.holds(label(&it.key)))
                && term.match_fields.iter().all(|it| it.holds(field(&it.key)))
        };
        self.selector
            .iter()
            .all(|(key, value)| label(key) == Some(value))
            && self
                .terms
                .as_ref()
                .is_none_or(|terms| terms.iter().any(holds))
            && self.tolerates(&node.taints)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn placement(spec: Value) -> Placement {
        Placement::of(serde_json::from_value(spec).unwrap(), DEFAULT_SCHEDULER)
    }

    fn node(labels: Value, taints: Value) -> SeenNode {
        let taints: Vec<Taint> = serde_json::from_value(taints).unwrap();
        SeenNode {
            labels: serde_json::from_value(labels).unwrap(),
            taints: taints.into_iter().filter(Taint::keeps_away).collect(),
            ..SeenNode::default()
        }
    }

    #[test]
    fn selectors_affinity_and_taints() {
        let required = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        let ssd = node(json!({"disk": "ssd", "cores": "8"}), json!([]));
        let taints = json!([{"key": "team", "value": "a", "effect": "NoSchedule"}, {"key": "soft", "effect": "PreferNoSchedule"}]);
        let tainted = node(json!({}), taints);
        let in_disk = |operator: &str, values: Value| {
            required(
                json!([{"matchExpressions": [{"key": "disk", "operator": operator, "values": values}]}]),
            )
        };
        let cases = [
            (json!({}), &ssd, true),
            (json!({"nodeSelector": {"disk": "ssd"}}), &ssd, true),
            (json!({"nodeSelector": {"disk": "hdd"}}), &ssd, false),
            (in_disk("In", json!(["ssd", "nvme"])), &ssd, true),
            (in_disk("NotIn", json!(["ssd"])), &ssd, false),
            (in_disk("NotIn", json!(["ssd"])), &tainted, false),
            (
                required(
                    json!([{"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["4"]}]}]),
                ),
                &ssd,
                true,
            ),
            (
                required(
                    json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]),
                ),
                &ssd,
                true,
            ),
            (required(json!([{}])), &ssd, false),
            (json!({}), &tainted, false),
            (
                json!({"tolerations": [{"key": "team", "value": "a"}]}),
                &tainted,
                true,
            ),
            (
                json!({"tolerations": [{"key": "team", "value": "b"}]}),
                &tainted,
                false,
            ),
            (
                json!({"tolerations": [{"operator": "Exists"}]}),
                &tainted,
                true,
            ),
            (
                json!({"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoExecute"}]}),
                &tainted,
                false,
            ),
        ];
        for (spec, node, allowed) in cases {
            assert_eq!(placement(spec.clone()).allows("n", node), allowed, "{spec}");
        }
    }

    #[test]
    fn what_is_not_computed_with_is_said() {
        let cases = [
            (
                json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}),
                "required affinity to pods",
            ),
            (
                json!({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}),
                "a required topology spread",
            ),
            (
                json!({"volumes": [{"persistentVolumeClaim": {"claimName": "x"}}]}),
                "a persistent volume",
            ),
            (
                json!({"containers": [{"ports": [{"hostPort": 80}]}]}),
                "a host port",
            ),
            (
                json!({"initContainers": [{"restartPolicy": "Always", "ports": [{"hostPort": 80}]}]}),
                "a host port",
            ),
            (
                json!({"workloadRef": {"name": "training", "podGroup": "workers"}}),
                "a group that is placed as a whole",
            ),
            (
                json!({"schedulingGroup": {"podGroupName": "workers"}}),
                "a group that is placed as a whole",
            ),
            (
                json!({"schedulerName": "volcano"}),
                "a scheduler of its own",
            ),
        ];
        for (spec, unknown) in cases {
            assert_eq!(placement(spec).unknown, Some(unknown));
        }
        let many: Vec<String> = (0..20_000).map(|at| format!("v{at}")).collect();
        let large = placement(
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": many}]}]}}}}),
        );
        assert_eq!((large.unknown, large.work()), (Some(TOO_LARGE), 1));
        let tolerations: Vec<Value> = (0..500).map(|_| json!({"operator": "Exists"})).collect();
        let large = placement(json!({"tolerations": tolerations}));
        assert_eq!((large.unknown, large.work()), (Some(TOO_LARGE), 1));
        let plain = json!({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}], "volumes": [{"emptyDir": {}}],
            "containers": [{"ports": [{"containerPort": 80}]}], "schedulerName": "default-scheduler"});
        assert_eq!(placement(plain).unknown, None);
    }

    #[test]
    fn the_scheduler_can_have_another_name() {
        let unknown = |name: &str, scheduler: &str| {
            let spec = serde_json::from_value(json!({"schedulerName": name})).unwrap();
            Placement::of(spec, scheduler).unknown
        };
        let profile = "gke.io/optimize-utilization-scheduler";
        assert_eq!(unknown(profile, profile), None);
        let other = Some("a scheduler of its own");
        for name in ["", DEFAULT_SCHEDULER, "volcano"] {
            assert_eq!(unknown(name, profile), other, "{name}");
        }
        assert_eq!(unknown("", DEFAULT_SCHEDULER), None);
    }
}
