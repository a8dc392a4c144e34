//! From a file and flags to what is in force: defaults, overrides, validation, [`Config`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_core::model::signal::{SIGNALS, Signal, Unit};
use plimsoll_core::model::threshold::{self, Threshold, ThresholdSettings};

use super::document::{Entry, Node, Origin, Value};
use super::flags::EvictionFlags;
use super::kubelet::{self, DEFAULT_EVICTION_HARD, FIELDS};
use super::plimsoll;
use super::problem::{Problem, Problems};
use super::rules;
use super::schema;
use super::settings::{Config, config};
use super::tree::Tree;
use super::{ConfigError, ConfigFile};
use crate::input::spelling::nearest;

/// Default of Plimsoll's own signal: enough for an eviction to finish before the kernel's OOM killer starts, also where
/// the kubelet's measure is far from its threshold. `0%` switches it off.
pub const DEFAULT_KERNEL_HARD: (&str, &str) = ("kernelMemory.available", "64Mi");

/// What is in force, with where each value comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// The file; `None` where there is none.
    pub path: Option<PathBuf>,
    /// All fields, with defaults.
    pub root: Node,
    /// The same, for the agent.
    pub config: Config,
}

impl Effective {
    /// Puts file and flags together and validates the result.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with everything that is wrong.
    pub fn new(file: ConfigFile, flags: &EvictionFlags) -> Result<Self, ConfigError> {
        let ConfigFile { path, mut root } = file;
        let mut problems = Vec::new();
        if let Err(problem) = kind(&root) {
            // What is in a file of another kind is no error of its own.
            return Err(Problems::new(path.as_deref(), vec![problem]).into());
        }
        schema::check(&mut root, FIELDS, &mut problems);
        default_thresholds(&mut root);
        override_with(&mut root, flags, &mut problems);
        kernel_threshold(&mut root);
        plimsoll::complete(&mut root, &mut problems);
        schema::add_defaults(&mut root, FIELDS);
        depending_defaults(&mut root);

        let tree = Tree(&root);
        rules::check(tree, &mut problems);
        plimsoll::check_namespace_shares(root.get("plimsoll"), &mut problems);
        let thresholds = thresholds(tree, &mut problems);
        let statements = statements(tree);
        if !problems.is_empty() {
            return Err(Problems::new(path.as_deref(), problems).into());
        }
        let config = config(tree, thresholds, statements);
        Ok(Self { path, root, config })
    }
}

/// Whether `apiVersion` and `kind` are a kubelet's or ours. Either may be left out.
fn kind(root: &Node) -> Result<(), Problem> {
    const KINDS: [(&str, &str); 2] = [
        (kubelet::API_VERSION, kubelet::KIND),
        (plimsoll::API_VERSION, plimsoll::KIND),
    ];
    let tree = Tree(root);
    let wanted = || {
        let kinds: Vec<String> = KINDS
            .iter()
            .map(|(version, kind)| format!("{kind} with apiVersion {version}"))
            .collect();
        format!("use {}", kinds.join(", or "))
    };
    let api_version = tree.text("apiVersion").filter(|text| !text.is_empty());
    let kind = tree.text("kind").filter(|text| !text.is_empty());
    if let Some(kind) = kind
        && !KINDS.iter().any(|(_, known)| *known == kind)
    {
        let reason = format!("{kind:?} is not a configuration of the node: {}", wanted());
        return Err(tree.problem("kind", reason));
    }
    if let Some(version) = api_version
        && !KINDS
            .iter()
            .any(|(known, of)| *known == version && kind.is_none_or(|kind| kind == *of))
    {
        let of = kind.map_or(String::new(), |kind| format!(" of a {kind}"));
        let reason = format!("{version:?} is not a known version{of}: {}", wanted());
        return Err(tree.problem("apiVersion", reason));
    }
    Ok(())
}

fn entries_mut<'a>(root: &'a mut Node, field: &str) -> Option<&'a mut Vec<Entry>> {
    let Value::Map(fields) = &mut root.value else {
        return None;
    };
    let entry = fields.iter_mut().find(|entry| entry.key == field)?;
    match &mut entry.node.value {
        Value::Map(entries) => Some(entries),
        _ => None,
    }
}

/// The kubelet's default thresholds: where the file has no `evictionHard`, and with `mergeDefaultEvictionSettings` for
/// each signal that it does not name. A flag, set afterwards, replaces them all (`loadConfigFile` in
/// `cmd/kubelet/app/server.go`).
fn default_thresholds(root: &mut Node) {
    let merge = Tree(root).bool("mergeDefaultEvictionSettings") == Some(true);
    let given = Tree(root).has("evictionHard");
    if given && !merge {
        return;
    }
    if !given && let Value::Map(fields) = &mut root.value {
        fields.push(Entry::default_of("evictionHard", Value::Map(Vec::new())));
    }
    let Some(hard) = entries_mut(root, "evictionHard") else {
        return;
    };
    for (signal, amount) in DEFAULT_EVICTION_HARD {
        if !hard.iter().any(|entry| entry.key == signal) {
            hard.push(Entry::default_of(signal, Value::Text(amount.to_owned())));
        }
    }
}

/// Our own default threshold, unless the signal is in `evictionHard` or `evictionSoft`.
fn kernel_threshold(root: &mut Node) {
    let (signal, amount) = DEFAULT_KERNEL_HARD;
    let named = ["evictionHard", "evictionSoft"].iter().any(|field| {
        root.get(field)
            .is_some_and(|node| node.get(signal).is_some())
    });
    if named {
        return;
    }
    if let Some(hard) = entries_mut(root, "evictionHard") {
        hard.push(Entry::default_of(signal, Value::Text(amount.to_owned())));
    }
}

/// Puts what flags say in the place of what the file says, checked in the same way.
fn override_with(root: &mut Node, flags: &EvictionFlags, problems: &mut Vec<Problem>) {
    let mut given = Node::default_of(Value::Map(flags.fields(problems)));
    schema::check(&mut given, FIELDS, problems);
    let (Value::Map(fields), Value::Map(given)) = (&mut root.value, given.value) else {
        return;
    };
    for entry in given {
        fields.retain(|field| field.key != entry.key);
        fields.push(entry);
    }
}

/// Defaults that depend on other fields (`SetDefaults_KubeletConfiguration`).
fn depending_defaults(root: &mut Node) {
    let tree = Tree(root);
    let report = tree
        .given("nodeStatusReportFrequency")
        .is_none()
        .then(|| tree.given("nodeStatusUpdateFrequency"))
        .flatten()
        .and_then(|_| tree.text("nodeStatusUpdateFrequency"))
        .map(str::to_owned);
    let parallel = tree
        .integer("maxParallelImagePulls")
        .is_some_and(|pulls| pulls > 1);
    let serialize = !tree.has("serializeImagePulls");
    let unlimited = tree.integer("podPidsLimit").is_some_and(|limit| limit < 0);
    let Value::Map(fields) = &mut root.value else {
        return;
    };
    let mut set = |name: &str, value: Value| {
        fields.retain(|field| field.key != name);
        fields.push(Entry::default_of(name, value));
    };
    if let Some(frequency) = report {
        set("nodeStatusReportFrequency", Value::Text(frequency));
    }
    if serialize {
        set("serializeImagePulls", Value::Bool(!parallel));
    }
    if unlimited {
        set("podPidsLimit", Value::Integer(-1));
    }
}

const GRACE: &str = "evictionSoftGracePeriod";

/// What is said about thresholds.
fn statements(tree: Tree<'_>) -> ThresholdSettings {
    let map = |field: &str| -> BTreeMap<String, String> {
        tree.labels(field)
            .map(|(signal, text, _)| (signal.to_owned(), text.to_owned()))
            .collect()
    };
    ThresholdSettings {
        hard: map("evictionHard"),
        soft: map("evictionSoft"),
        soft_grace_period: map(GRACE),
        minimum_reclaim: map("evictionMinimumReclaim"),
        enforce_pods: tree
            .texts("enforceNodeAllocatable")
            .any(|(item, _)| item == "pods"),
    }
}

/// The thresholds, or all that is wrong with them.
fn thresholds(tree: Tree<'_>, problems: &mut Vec<Problem>) -> Vec<Threshold> {
    for field in [
        "evictionHard",
        "evictionSoft",
        GRACE,
        "evictionMinimumReclaim",
    ] {
        for (name, text, origin) in tree.labels(field) {
            let Some(signal) = Signal::from_name(name) else {
                let known = SIGNALS.iter().map(|row| row.name);
                let hint = match nearest(name, known.clone()) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("use one of {}", known.collect::<Vec<_>>().join(", ")),
                };
                let reason = format!("unsupported eviction signal: {hint}");
                problems.push(Problem::new(origin, format!("{field}: {name}"), reason));
                continue;
            };
            let one = BTreeMap::from([(name.to_owned(), text.to_owned())]);
            let mut settings = ThresholdSettings::default();
            match field {
                "evictionHard" => settings.hard = one,
                "evictionSoft" => {
                    settings.soft = one;
                    settings.soft_grace_period = BTreeMap::from([(name.to_owned(), "1s".into())]);
                }
                GRACE => settings.soft_grace_period = one,
                _ => settings.minimum_reclaim = one,
            }
            let path = format!("{field}: {signal}");
            if signal.row().unit == Unit::Share && field != GRACE && !text.ends_with('%') {
                let reason =
                    format!("{text:?} is no share of time: write a percentage such as 20%");
                problems.push(Problem::new(origin, path, reason));
                continue;
            }
            if let Err(error) = threshold::parse(&settings) {
                let message = error.to_string();
                let reason = message
                    .strip_prefix(&format!("{path}: "))
                    .unwrap_or(&message);
                problems.push(Problem::new(origin, path, reason));
            } else if field == "evictionSoft"
                // Switched off: no threshold, so no grace period is needed.
                && !["0%", "100%"].contains(&text)
                && tree.object(GRACE).is_none_or(|grace| !grace.has(name))
            {
                let reason = format!("it has no entry in {GRACE}: add one, for example \"30s\"");
                problems.push(Problem::new(origin, path, reason));
            }
        }
    }
    if !problems.is_empty() {
        return Vec::new();
    }
    threshold::parse(&statements(tree)).unwrap_or_else(|error| {
        problems.push(Problem::new(Origin::Default, "", error.to_string()));
        Vec::new()
    })
}

impl Config {
    /// Puts file and flags together and validates the result.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with everything that is wrong.
    pub fn new(file: ConfigFile, flags: &EvictionFlags) -> Result<Self, ConfigError> {
        Ok(Effective::new(file, flags)?.config)
    }
}

impl ConfigFile {
    /// Reads a text that came from `path`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if it is no document.
    pub fn parse(text: &str, path: Option<&Path>) -> Result<Self, ConfigError> {
        let root = super::document::parse(text).map_err(|malformed| {
            let origin = malformed
                .line
                .map_or(Origin::Default, |line| Origin::File { line });
            Problems::new(path, vec![Problem::new(origin, "", malformed.reason)])
        })?;
        Ok(Self {
            path: path.map(Path::to_owned),
            root,
        })
    }
}
