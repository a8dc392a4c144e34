//! `topology_merge`: the topology manager's merge of hints, and what it does not start with.

use std::collections::BTreeMap;

use plimsoll_core::placement::TopologyHint;
use plimsoll_core::placement::hints::{HintSet, ProviderHints};
use plimsoll_core::placement::merge::merge;
use plimsoll_core::placement::numa_mask::NumaMask;
use plimsoll_core::placement::topology_manager::{
    MAX_ALLOWABLE_NUMA_NODES, PREFER_CLOSEST_NUMA_NODES, TopologyManager, TopologyManagerError,
    TopologySettings,
};
use serde::Deserialize;
use serde_json::Value;

use super::{Verdict, read, same};

#[derive(Deserialize)]
struct Merge {
    policy: String,
    numa_nodes: Vec<u32>,
    distances: BTreeMap<u32, Vec<u32>>,
    options: Options,
    providers: Vec<Option<BTreeMap<String, Option<Vec<Hint>>>>>,
    expect: Expect,
}

#[derive(Deserialize)]
struct Options {
    prefer_closest_numa: bool,
    max_allowable_numa_nodes: i64,
}

/// Mask, preferred.
#[derive(Deserialize)]
struct Hint(Option<u64>, bool);

#[derive(Deserialize)]
struct Expect {
    mask: Option<u64>,
    preferred: bool,
    admit: bool,
}

#[derive(Deserialize)]
struct NewManager {
    policy: String,
    scope: String,
    numa_nodes: Vec<u32>,
    distances_known: bool,
    #[serde(default)]
    raw_options: BTreeMap<String, String>,
    expect_error: Option<ExpectError>,
}

#[derive(Deserialize)]
struct ExpectError {
    kind: String,
}

pub(super) fn check(vector: &Value) -> Verdict {
    Verdict::of(match vector["kind"].as_str() {
        Some("merge") => read(vector).and_then(merges),
        Some("new_manager") => read(vector).and_then(starts),
        _ => Err(format!("kind {} is not known", vector["kind"])),
    })
}

fn merges(vector: Merge) -> Result<(), String> {
    let options = [
        (
            PREFER_CLOSEST_NUMA_NODES,
            vector.options.prefer_closest_numa.to_string(),
        ),
        (
            MAX_ALLOWABLE_NUMA_NODES,
            vector.options.max_allowable_numa_nodes.to_string(),
        ),
    ];
    let settings = TopologySettings {
        policy: &vector.policy,
        scope: "container",
        options: &options.map(|(name, value)| (name.to_owned(), value)).into(),
    };
    let distance = |from: u32, to: u32| vector.distances.get(&from)?.get(to as usize).copied();
    let nodes = vector.numa_nodes.iter().copied().collect();
    let manager =
        TopologyManager::new(&settings, nodes, distance).map_err(|error| error.to_string())?;
    let providers: Vec<ProviderHints> = vector.providers.into_iter().map(provider).collect();
    let merged = merge(manager.policy(), manager.numa(), &providers);
    let expect = vector.expect;
    same("mask", &merged.hint.mask.map(|mask| mask.0), &expect.mask)?;
    same("preferred", &merged.hint.preferred, &expect.preferred)?;
    same("admit", &merged.admitted, &expect.admit)?;
    same("is_exact", &merged.is_exact, &true)
}

fn provider(hints: Option<BTreeMap<String, Option<Vec<Hint>>>>) -> ProviderHints {
    let hint = |Hint(mask, preferred)| TopologyHint {
        mask: mask.map(NumaMask),
        preferred,
    };
    let set = |hints: Vec<Hint>| HintSet::List(hints.into_iter().map(hint).collect());
    let resources = hints.unwrap_or_default().into_iter();
    resources
        .map(|(resource, hints)| (resource, hints.map(set)))
        .collect()
}

fn starts(vector: NewManager) -> Result<(), String> {
    let settings = TopologySettings {
        policy: &vector.policy,
        scope: &vector.scope,
        options: &vector.raw_options,
    };
    let distance = |from, to| {
        vector
            .distances_known
            .then_some(if from == to { 10 } else { 20 })
    };
    let nodes = vector.numa_nodes.iter().copied().collect();
    let manager = TopologyManager::new(&settings, nodes, distance);
    let expected = vector
        .expect_error
        .as_ref()
        .map(|error| error.kind.as_str());
    same("error", &manager.err().as_ref().map(kind), &expected)
}

fn kind(error: &TopologyManagerError) -> &'static str {
    match error {
        TopologyManagerError::UnknownOption { .. } => "unknown_option",
        TopologyManagerError::BadOptionValue { .. } => "bad_option_value",
        TopologyManagerError::MaxNumaBelowDefault { .. } => "max_numa_below_default",
        TopologyManagerError::TooManyNumaNodes { .. } => "too_many_numa_nodes",
        TopologyManagerError::NoDistances(_) => "no_distances",
        TopologyManagerError::UnknownPolicy { .. } => "unknown_policy",
        TopologyManagerError::UnknownScope { .. } => "unknown_scope",
    }
}
