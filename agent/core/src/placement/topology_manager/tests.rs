use std::collections::BTreeMap;

use super::*;
use crate::placement::hints::{HintRule, HintSet, Need, Preference};

fn settings<'a>(
    policy: &'a str,
    scope: &'a str,
    options: &'a BTreeMap<String, String>,
) -> TopologySettings<'a> {
    TopologySettings {
        policy,
        scope,
        options,
    }
}

fn options(options: &[(&str, &str)]) -> BTreeMap<String, String> {
    let options = options.iter();
    options
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect()
}

fn manager(policy: &str, scope: &str) -> TopologyManager {
    let none = BTreeMap::new();
    TopologyManager::new(&settings(policy, scope, &none), NumaMask(0b11), |_, _| None).unwrap()
}

/// Two nodes of 4 CPUs and 4 devices; a container asks for both.
#[derive(Default)]
struct Node {
    asks: Vec<(u64, u64)>,
    allocated: Vec<TopologyHint>,
    fails: bool,
}

fn rule(demand: u64) -> Option<HintSet> {
    let needs = vec![Need::per_node(demand, [(0, 4), (1, 4)])];
    let preference = Preference::Nodes(if demand > 4 { 2 } else { 1 });
    Some(HintSet::Rule(HintRule::new(
        NumaMask(0b11),
        needs,
        preference,
    )))
}

impl HintProviders for Node {
    type Error = String;

    fn containers(&self) -> usize {
        self.asks.len()
    }

    fn hints(&self, asking: Asking) -> Vec<ProvidedHints> {
        let (cpus, devices) = match asking {
            Asking::Container(at) => self.asks[at],
            Asking::Pod => self.asks.iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1)),
        };
        let provided = |provider, resource: &str, demand| ProvidedHints {
            provider,
            hints: [(resource.to_owned(), rule(demand))].into(),
        };
        vec![
            provided("cpu", "cpu", cpus),
            provided("devices", "example.com/nic", devices),
        ]
    }

    fn allocate(&mut self, _container: usize, hint: TopologyHint) -> Result<(), String> {
        self.allocated.push(hint);
        if self.fails {
            Err("no CPU is left".into())
        } else {
            Ok(())
        }
    }
}

#[test]
fn scopes_ask_for_containers_or_for_the_pod() {
    let mut node = Node {
        asks: vec![(2, 1), (3, 1)],
        ..Node::default()
    };
    let by_container = manager("best-effort", "container")
        .admit(&mut node)
        .unwrap();
    let asked: Vec<Asking> = by_container
        .iter()
        .map(|alignment| alignment.asking)
        .collect();
    assert_eq!(asked, [Asking::Container(0), Asking::Container(1)]);
    assert_eq!(node.allocated.len(), 2);

    node.allocated.clear();
    let whole = manager("best-effort", "pod").admit(&mut node).unwrap();
    assert_eq!(whole.len(), 1);
    // 5 CPUs take both nodes, 2 devices one: not preferred.
    let hint = TopologyHint {
        mask: Some(NumaMask(0b11)),
        preferred: false,
    };
    assert_eq!(node.allocated, [hint, hint]);
}

#[test]
fn without_a_policy_all_is_allocated_and_nothing_asked() {
    let mut node = Node {
        asks: vec![(9, 9)],
        ..Node::default()
    };
    assert_eq!(manager("none", "pod").admit(&mut node).unwrap(), []);
    assert_eq!(node.allocated.len(), 1);
    assert_eq!(node.allocated[0].mask, None);
}

#[test]
fn a_refusal_names_what_does_not_go_together() {
    let mut node = Node {
        asks: vec![(2, 2), (5, 1)],
        ..Node::default()
    };
    let refusal = manager("restricted", "container")
        .admit(&mut node)
        .unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "container 2 cannot be aligned as policy restricted demands: \
         cpu prefers nodes 0-1; devices (example.com/nic) prefers node 0; \
         free what one of them lacks, or ask for less"
    );
    assert_eq!(node.allocated.len(), 1, "the first container was served");

    node.asks = vec![(2, 9)];
    let refusal = manager("single-numa-node", "pod")
        .admit(&mut node)
        .unwrap_err();
    assert!(
        refusal
            .to_string()
            .contains("devices (example.com/nic) has not enough on any nodes")
    );
}

#[test]
fn a_provider_that_cannot_allocate_is_heard() {
    let mut node = Node {
        asks: vec![(1, 1)],
        fails: true,
        ..Node::default()
    };
    let refusal = manager("restricted", "pod").admit(&mut node).unwrap_err();
    assert_eq!(refusal.to_string(), "container 1: no CPU is left");
}

#[test]
fn alternatives_say_why_they_lost() {
    let manager = manager("best-effort", "container");
    let node = Node {
        asks: vec![(5, 2)],
        ..Node::default()
    };
    let asking = Asking::Container(0);
    let explained = explain(&manager.align(asking, node.hints(asking)), manager.numa());
    let not_offered = |mask| Alternative {
        mask: NumaMask(mask),
        loss: Loss::NotOfferedBy(vec!["cpu/cpu".into()]),
    };
    assert_eq!(
        explained.alternatives,
        [not_offered(0b01), not_offered(0b10)]
    );

    let node = Node {
        asks: vec![(2, 2)],
        ..Node::default()
    };
    let explained = explain(&manager.align(asking, node.hints(asking)), manager.numa());
    let lost = Alternative {
        mask: NumaMask(0b10),
        loss: Loss::HigherNumber,
    };
    assert_eq!(explained.alternatives, [lost]);
}

#[test]
fn what_the_kubelet_would_not_start_with_is_refused_in_its_order() {
    let refused = |policy, scope, given: &[(&str, &str)], nodes: u32| {
        let options = options(given);
        let settings = settings(policy, scope, &options);
        let manager = TopologyManager::new(&settings, (0..nodes).collect(), |_, _| None);
        manager.unwrap_err().to_string()
    };
    let too_many = refused("bogus", "bogus", &[], 9);
    assert!(
        too_many.contains("max-allowable-numa-nodes to 9 or more"),
        "{too_many}"
    );
    let closest = (PREFER_CLOSEST_NUMA_NODES, "T");
    let distances = refused("bogus", "bogus", &[closest], 9);
    assert!(
        distances.contains("from NUMA node 0 to NUMA node 0"),
        "{distances}"
    );
    assert!(refused("bogus", "bogus", &[], 8).contains("topologyManagerPolicy: \"bogus\""));
    assert!(refused("restricted", "bogus", &[], 8).contains("topologyManagerScope: \"bogus\""));
    let low = refused("restricted", "pod", &[(MAX_ALLOWABLE_NUMA_NODES, "-1")], 8);
    assert!(low.contains("-1 is less than 8"), "{low}");
    let maybe = refused(
        "restricted",
        "pod",
        &[(PREFER_CLOSEST_NUMA_NODES, "maybe")],
        8,
    );
    assert!(maybe.contains("\"maybe\" is not true or false"), "{maybe}");
}
