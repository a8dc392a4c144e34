//! Chooses the committed samples of the golden vectors: `sample_vectors SOURCE_DIR TARGET_DIR`.
//!
//! Problem: the full files are large; a sample has to have every kind, tag and shape of line. Approach: a line has
//! *features*: which fields it has and of what type, the values of fields that take few values in the file, and the
//! shape of its input text (`-9.9Gi`). Going from the shortest line to the longest, a line is taken if it brings a
//! feature that no taken line has; then lines evenly spread over the shorter half of the file fill up, as far as the
//! sample stays small. Taken lines are written unchanged, in their order. The same files always give the same samples.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tests::conformance::FILES;

/// Lines of a sample, unless covering all features takes more.
const LINES: usize = 250;

/// Bytes of a sample: longer lines than fit are not taken, whatever their features.
const BYTES: usize = 720_000;

/// Bytes of a sample of the arbitrator's vectors: long lines, of which a few are enough.
const ARBITRATION_BYTES: usize = 100_000;

/// Bytes of the samples of admission: their lines are many and alike.
const ADMISSION_BYTES: usize = 95_000;

/// The files of admission.
const ADMISSION: [&str; 6] = [
    "limit_range",
    "resource_quota",
    "admission_limit_range",
    "admission_resource_quota",
    "priority",
    "resource_names",
];

/// A field with at most this many values in a file contributes its values as features.
const FEW_VALUES: usize = 32;

fn main() -> Result<()> {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [source, target] = arguments.as_slice() else {
        bail!("usage: sample_vectors SOURCE_DIR TARGET_DIR")
    };
    for (stem, _) in FILES {
        let name = format!("{stem}.jsonl");
        let path = source.join(&name);
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let lines: Vec<&str> = text.lines().collect();
        let bytes_max = match *stem {
            "drf_deserved" | "arbitration_plan" => ARBITRATION_BYTES,
            stem if ADMISSION.contains(&stem) => ADMISSION_BYTES,
            _ => BYTES,
        };
        let taken = sample(&lines, bytes_max, ADMISSION.contains(stem))
            .with_context(|| format!("sampling {}", path.display()))?;
        let sampled: String = taken.iter().flat_map(|at| [lines[*at], "\n"]).collect();
        let path = target.join(&name);
        fs::write(&path, sampled).with_context(|| format!("writing {}", path.display()))?;
        println!("{name}: {} of {} lines", taken.len(), lines.len());
    }
    // The machines that vectors name; all of them, as they are small.
    let machines = "topologies.jsonl";
    fs::copy(source.join(machines), target.join(machines))
        .with_context(|| format!("copying {machines}"))?;
    Ok(())
}

/// The indexes of the lines taken, ascending, with so many bytes at most; of those of admission first what they are
/// about.
fn sample(lines: &[&str], bytes_max: usize, is_admission: bool) -> Result<BTreeSet<usize>> {
    let parsed = lines
        .iter()
        .map(|line| serde_json::from_str(line))
        .collect::<Result<Vec<Value>, _>>()?;
    let mut values: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let walk = if is_admission { walk_admission } else { walk };
    for line in &parsed {
        walk(line, "", &mut |path, leaf| {
            let seen = values.entry(path.to_owned()).or_default();
            if seen.len() <= FEW_VALUES {
                seen.insert(leaf.to_string());
            }
        });
    }
    let mut by_length: Vec<usize> = (0..lines.len()).collect();
    by_length.sort_by_key(|at| lines[*at].len());

    let mut taken = BTreeSet::new();
    let mut covered = BTreeSet::new();
    let mut bytes = 0;
    // What a line is about comes first, where not every shape of it fits.
    let about =
        |feature: &String| feature.starts_with(".tags[] =") || feature.matches('.').count() <= 2;
    let rounds = if is_admission {
        [true, false]
    } else {
        [false, false]
    };
    for (&at, is_first) in rounds
        .iter()
        .flat_map(|first| by_length.iter().map(move |at| (at, *first)))
    {
        let mut features = features(&parsed[at], &values, walk);
        features.retain(|feature| !is_first || about(feature));
        if !features.is_subset(&covered) && bytes + lines[at].len() <= bytes_max {
            bytes += lines[at].len();
            taken.insert(at);
            covered.extend(features);
        }
    }
    let shorter_half = &by_length[..lines.len().div_ceil(2)];
    let missing = LINES.saturating_sub(taken.len()).min(shorter_half.len());
    for step in 0..missing {
        let at = shorter_half[step * shorter_half.len() / missing];
        if bytes + lines[at].len() <= bytes_max && taken.insert(at) {
            bytes += lines[at].len();
        }
    }
    Ok(taken)
}

/// Calls back with every leaf and its path.
type Walk = fn(&Value, &str, &mut dyn FnMut(&str, &Value));

fn features(
    line: &Value,
    values: &BTreeMap<String, BTreeSet<String>>,
    walk: Walk,
) -> BTreeSet<String> {
    let mut features = BTreeSet::new();
    walk(line, "", &mut |path, leaf| {
        let kind = match leaf {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "text",
            Value::Array(_) => "empty array",
            Value::Object(_) => "empty object",
        };
        features.insert(format!("{path}: {kind}"));
        let has_few = values.get(path).is_some_and(|all| all.len() <= FEW_VALUES);
        if has_few || path == ".tags[]" {
            features.insert(format!("{path} = {leaf}"));
        }
        if let Value::String(text) = leaf
            && path == ".input"
        {
            features.insert(format!("{path} like {}", shape(text)));
        }
    });
    features
}

/// Calls `visit` with every leaf and its path; array elements share a path.
fn walk(value: &Value, path: &str, visit: &mut dyn FnMut(&str, &Value)) {
    match value {
        Value::Array(items) if !items.is_empty() => {
            items
                .iter()
                .for_each(|item| walk(item, &format!("{path}[]"), visit));
        }
        Value::Object(fields) if !fields.is_empty() => {
            fields
                .iter()
                .for_each(|(name, field)| walk(field, &format!("{path}.{name}"), visit));
        }
        leaf => visit(path, leaf),
    }
}

/// Fields whose keys are names of resources or quotas: which ones says nothing.
const BY_NAME: [&str; 16] = [
    "max",
    "min",
    "default",
    "defaultRequest",
    "maxLimitRequestRatio",
    "requests",
    "limits",
    "overhead",
    "hard",
    "used",
    "used_milli",
    "usage",
    "pod_usage",
    "delta",
    "matches",
    "new_used[]",
];

/// As [`walk`], with the keys of [`BY_NAME`] left out.
fn walk_admission(value: &Value, path: &str, visit: &mut dyn FnMut(&str, &Value)) {
    walk(value, path, &mut |path, leaf| {
        let mut kept: Vec<&str> = Vec::new();
        for part in path.split('.') {
            kept.push(part);
            if BY_NAME.contains(&part) {
                break;
            }
        }
        visit(&kept.join("."), leaf);
    });
}

/// The text with every run of digits replaced by one: `9` for a short run, `99` for one that may not fit 64 bits.
fn shape(text: &str) -> String {
    let mut shape = String::new();
    let mut digits = 0;
    for c in text.chars().chain([' ']) {
        if c.is_ascii_digit() {
            digits += 1;
            continue;
        }
        shape.push_str(match digits {
            0 => "",
            1..=17 => "9",
            _ => "99",
        });
        digits = 0;
        shape.push(c);
    }
    shape
}
