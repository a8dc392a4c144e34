//! `cargo xtask deploy-check`: whether the files of `deploy/` are what Kubernetes' own tools take, and say the same in
//! both forms.
//!
//! **Problem.** An operator installs with Kustomize or with Helm, and files that only people read drift apart.
//! **Approach.** The chart renders the files of `deploy/base`, and here `kubectl kustomize` and `helm template` build
//! every component with the values that mean the same ([`COMPONENTS`]): the objects must be equal. `helm lint` and
//! `promtool test rules` judge the rest. No cluster is needed.

mod tools;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

pub(crate) use self::tools::Tools;
use crate::interrupt::Folder;
use crate::paths;
use crate::process::output_of;
use crate::progress::say;

/// Each component of Kustomize, and the values of the chart that mean the same.
const COMPONENTS: [(&str, &str); 18] = [
    ("arbitrator", "arbitrator.enabled=true"),
    ("budgets", "budgets=true"),
    ("delete-evicted", "deleteEvicted.enabled=true"),
    ("eviction-api", "evictionAPI=true"),
    ("grafana", "grafana=true"),
    ("kubelet-dir", "kubeletDir=/var/lib/k0s/kubelet"),
    ("least-privilege", "leastPrivilege=true"),
    ("node-resource-topology", "nodeResourceTopology=true"),
    ("openshift", "openshift=true"),
    ("prometheus", "prometheus=true"),
    ("runtime", "runtime=true"),
    ("runtime-crio", "runtime=crio"),
    ("runtime-k3s", "runtime=k3s"),
    ("runtime-rke2", "runtime=rke2"),
    ("taint", "taintOnPressure=true"),
    ("uninstall", "uninstall=true"),
    ("without-bpf", "withoutBpf=true"),
    ("without-propagation", "withoutPropagation=true"),
];
/// Components in whose place there is another one among all together: a node has one runtime.
const ALTERNATIVES: [&str; 3] = ["runtime-crio", "runtime-k3s", "runtime-rke2"];
/// The component for API servers that are older than 1.30. The chart asks the server for its version.
const OLDER: &str = "before-1.30";
/// The newest of those.
const OLDER_VERSION: &str = "1.29.0";
/// Kinds and fields that they do not know.
const NEWER: [&str; 2] = ["ValidatingAdmissionPolicy", "appArmorProfile"];
/// Kinds of objects that are in no namespace.
const CLUSTER_WIDE: [&str; 7] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "Namespace",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];
/// The namespace of `deploy/base`.
const NAMESPACE: &str = "plimsoll";
/// What the name of Kustomize's ConfigMap begins with.
const HASHED: &str = "plimsoll-";
/// The annotation of the chart's pods.
const CHECKSUM: &str = "checksum/config";
/// A kustomization of a user with a configuration of his own, as docs/guide/cluster.md has it.
const CHANGED: &str = "\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../base]
configMapGenerator:
  - {name: plimsoll, namespace: plimsoll, behavior: merge, files: [config.yaml]}
";
/// A second installation, for some of the nodes, as docs/guide/cluster.md has it.
const SECOND: &str = "\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: plimsoll-two
namePrefix: two-
resources: [../base]
components: [../components/openshift]
";
/// What the head of components/prometheus says where a Prometheus selects by labels.
const LABELLED: &str = "\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../base]
components: [../components/prometheus]
patches:
  - target: {group: monitoring.coreos.com}
    patch: |-
      - {op: add, path: /metadata/labels/release, value: NAME}
";
/// The tests of the alerts take the groups of the rules from here.
const GROUPS: &str = "groups.yaml";

/// Objects by kind and name.
type Objects = BTreeMap<(String, String), Value>;

/// Checks everything; an error says what differs.
pub(crate) fn check(tools: &Tools) -> Result<()> {
    let deploy = paths::root().join("deploy");
    lists_all_components(&deploy.join("components"))?;
    let chart = deploy.join("helm/plimsoll");
    output_of(
        Command::new(&tools.helm)
            .args(["lint", "--strict"])
            .arg(&chart),
        "mend the chart",
    )?;
    let names = COMPONENTS.iter().map(|(name, _)| *name);
    let all: Vec<&str> = names.filter(|name| !ALTERNATIVES.contains(name)).collect();
    let each = COMPONENTS
        .iter()
        .map(|(name, _)| std::slice::from_ref(name));
    for components in [&all[..0], &all[..]].into_iter().chain(each) {
        is_the_same(tools, &deploy, &chart, components)?;
    }
    for components in [&all[..0], &["least-privilege"], &all[..]] {
        suits_older_servers(tools, &deploy, &chart, components)?;
    }
    a_change_rolls_out(tools, &deploy, &chart)?;
    the_arbitrator_has_places(tools, &chart)?;
    // Of a chart that has this one as a dependency: `global`, and the condition by which it takes it.
    let whole = ["global.anything=true", "enabled=true"];
    let whole = rendered_with(tools, &chart, &whole, None)?;
    are_equal(
        &rendered(tools, &chart, &[], None)?,
        &whole,
        &["of a dependency"],
    )?;
    an_operator_finds_its_objects(tools, &deploy, &chart)?;
    let second = Folder::inside(&deploy)?;
    fs::write(second.path().join("kustomization.yaml"), SECOND)?;
    build(tools, second.path())?;
    build(tools, &deploy.join("uninstall"))?;
    let uninstalled = kustomized(tools, &deploy, "uninstall", &[OLDER])?;
    knows_nothing_newer(&uninstalled, "deploy/uninstall")?;
    let rules = deploy.join("components/prometheus/rules.yaml");
    let dashboard = deploy.join("components/grafana/plimsoll.json");
    alerts_are_raised(tools, &rules)?;
    queries_are_right(tools, &rules, &dashboard)?;
    say(
        "deploy",
        format_args!(
            "the base, {} components and all of them together: Kustomize and Helm build the same objects; the alerts are raised as tested",
            COMPONENTS.len()
        ),
    );
    Ok(())
}

fn lists_all_components(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let name = entry?.file_name();
        ensure!(
            COMPONENTS
                .iter()
                .map(|(known, _)| *known)
                .chain([OLDER])
                .any(|known| OsStr::new(known) == name),
            "deploy/components/{} is not compared with the chart: add it to COMPONENTS in xtask/src/deploy.rs",
            name.display()
        );
    }
    Ok(())
}

/// Compares the base with these components in both forms.
fn is_the_same(tools: &Tools, deploy: &Path, chart: &Path, components: &[&str]) -> Result<()> {
    let mut kustomize = kustomized(tools, deploy, "base", components)?;
    let mut helm = rendered(tools, chart, components, None)?;
    take_hash(&mut kustomize)?;
    take_checksum(&mut helm)?;
    are_equal(&kustomize, &helm, components)
}

/// Gives Kustomize's ConfigMap of the agents the name that the chart's has, and returns the hash that it had in its
/// name; the pods have to ask for it by the whole of it.
fn take_hash(objects: &mut Objects) -> Result<String> {
    let is_ours = |(kind, name): &&(String, String)| {
        kind == "ConfigMap" && name.strip_prefix(HASHED).is_some_and(is_hash)
    };
    let key = objects.keys().find(is_ours).cloned();
    let key = key.context("no ConfigMap plimsoll-HASH: its change would roll no agent out")?;
    let mut object = objects.remove(&key).unwrap_or_default();
    let set = objects.get_mut(&("DaemonSet".to_owned(), NAMESPACE.to_owned()));
    let volumes = set.and_then(|set| set.pointer_mut("/spec/template/spec/volumes"));
    let volumes = volumes.and_then(Value::as_array_mut).into_iter().flatten();
    let mut names = volumes.filter_map(|volume| volume.pointer_mut("/configMap/name"));
    let name = names.find(|name| **name == key.1.as_str());
    let name = name.with_context(|| format!("the DaemonSet does not mount {}", key.1))?;
    *name = Value::from(NAMESPACE);
    object["metadata"]["name"] = Value::from(NAMESPACE);
    objects.insert((key.0, NAMESPACE.to_owned()), object);
    Ok(key.1[HASHED.len()..].to_owned())
}

/// Kustomize's are ten letters and digits.
fn is_hash(text: &str) -> bool {
    text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Takes the checksum of the configuration off the chart's pods, and returns it.
fn take_checksum(objects: &mut Objects) -> Result<String> {
    let set = objects.get_mut(&("DaemonSet".to_owned(), NAMESPACE.to_owned()));
    let metadata = set.and_then(|set| set.pointer_mut("/spec/template/metadata"));
    let metadata = metadata.and_then(Value::as_object_mut);
    let metadata = metadata.context("the chart has no DaemonSet")?;
    let annotations = metadata.get_mut("annotations");
    let annotations = annotations.and_then(Value::as_object_mut);
    let annotations = annotations.context("the chart's pods have no annotations")?;
    let checksum = annotations.remove(CHECKSUM);
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    let checksum = checksum.as_ref().and_then(Value::as_str);
    let checksum = checksum.with_context(|| format!("the chart's pods have no {CHECKSUM}"))?;
    Ok(checksum.to_owned())
}

/// Another threshold, of the configuration that a user gives, changes the pods in both forms, so that a rollout starts
/// their agents anew.
fn a_change_rolls_out(tools: &Tools, deploy: &Path, chart: &Path) -> Result<()> {
    let folder = Folder::inside(deploy)?;
    fs::write(folder.path().join("kustomization.yaml"), CHANGED)?;
    let other = read(&deploy.join("base/config.yaml"))?.replace("500Mi", "600Mi");
    fs::write(folder.path().join("config.yaml"), other)?;
    let mut changed = build(tools, folder.path())?;
    let mut base = kustomized(tools, deploy, "base", &[])?;
    ensure!(
        take_hash(&mut changed)? != take_hash(&mut base)?,
        "a changed config.yaml leaves the name of its ConfigMap as it was"
    );
    let checksum = |arguments: &[&str]| -> Result<String> {
        let mut helm = Command::new(&tools.helm);
        helm.args(["template", "plimsoll", "--namespace", NAMESPACE])
            .arg(chart)
            .args(arguments);
        take_checksum(&mut objects(&output_of(&mut helm, "mend the chart")?)?)
    };
    let other = ["--set", r"config.evictionHard.memory\.available=600Mi"];
    ensure!(
        checksum(&other)? != checksum(&[])?,
        "a changed `config` leaves {CHECKSUM} as it was"
    );
    Ok(())
}

/// Nodes for the arbitrator alone, beside what its Deployment says itself.
fn the_arbitrator_has_places(tools: &Tools, chart: &Path) -> Result<()> {
    let values = [
        "arbitrator.enabled=true",
        "arbitrator.nodeSelector.pool=system",
        "arbitrator.tolerations[0].key=pool",
    ];
    let objects = rendered_with(tools, chart, &values, None)?;
    let pod_of = |kind: &str, name: &str| {
        let object = objects.get(&(kind.to_owned(), name.to_owned()));
        let pod = object.and_then(|object| object.pointer("/spec/template/spec"));
        pod.cloned().unwrap_or_default()
    };
    let pod = pod_of("Deployment", "plimsoll-arbitrator");
    let selector = serde_json::json!({"kubernetes.io/os": "linux", "pool": "system"});
    ensure!(
        pod["nodeSelector"] == selector && pod["tolerations"][0]["key"] == "pool",
        "the arbitrator's pods have other nodes than the values say: {pod}"
    );
    let pod = pod_of("DaemonSet", NAMESPACE);
    ensure!(
        pod["nodeSelector"]["pool"].is_null(),
        "nodes of the arbitrator are none of the agents' business: {pod}"
    );
    Ok(())
}

/// With a label by which a Prometheus selects them, in both forms.
fn an_operator_finds_its_objects(tools: &Tools, deploy: &Path, chart: &Path) -> Result<()> {
    let folder = Folder::inside(deploy)?;
    fs::write(folder.path().join("kustomization.yaml"), LABELLED)?;
    let mut kustomize = build(tools, folder.path())?;
    let labels = ["prometheus=true", "prometheusLabels.release=NAME"];
    let mut helm = rendered_with(tools, chart, &labels, None)?;
    take_hash(&mut kustomize)?;
    take_checksum(&mut helm)?;
    are_equal(&kustomize, &helm, &["prometheus", "with a label"])?;
    let mut found = 0;
    for ((kind, name), object) in &helm {
        let is_labelled = object["metadata"]["labels"]["release"] == "NAME";
        let is_for_it = ["PodMonitor", "PrometheusRule"].contains(&kind.as_str());
        ensure!(
            is_labelled == is_for_it,
            "{kind} {name}: the labels of a Prometheus are for what it reads, and for all of that"
        );
        found += usize::from(is_labelled);
    }
    ensure!(
        found == 3,
        "{found} objects for the Prometheus Operator, not 3"
    );
    Ok(())
}

/// The same for Kubernetes before 1.30, and that nothing is there that it does not know.
fn suits_older_servers(
    tools: &Tools,
    deploy: &Path,
    chart: &Path,
    components: &[&str],
) -> Result<()> {
    // The last one, as it says itself.
    let older = [components, &[OLDER]].concat();
    let mut kustomize = kustomized(tools, deploy, "base", &older)?;
    let mut helm = rendered(tools, chart, components, Some(OLDER_VERSION))?;
    take_hash(&mut kustomize)?;
    take_checksum(&mut helm)?;
    are_equal(&kustomize, &helm, &older)?;
    knows_nothing_newer(&kustomize, &format!("{older:?}"))?;
    let key =
        "/spec/template/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1agent";
    let set = kustomize.get(&("DaemonSet".to_owned(), NAMESPACE.to_owned()));
    ensure!(
        set.and_then(|set| set.pointer(key)) == Some(&Value::from("unconfined")),
        "the DaemonSet for Kubernetes {OLDER_VERSION} has no annotation for AppArmor with components {older:?}"
    );
    Ok(())
}

fn knows_nothing_newer(objects: &Objects, what: &str) -> Result<()> {
    for ((kind, name), object) in objects {
        let text = object.to_string();
        let found = NEWER
            .iter()
            .find(|newer| kind.starts_with(**newer) || text.contains(&format!("\"{newer}\":")));
        ensure!(
            found.is_none(),
            "{what}: {kind} {name} has {found:?}, which Kubernetes {OLDER_VERSION} does not know"
        );
    }
    Ok(())
}

/// A folder of `deploy/` with these components, as a user takes them.
fn kustomized(tools: &Tools, deploy: &Path, name: &str, components: &[&str]) -> Result<Objects> {
    // Kustomize takes relative paths alone.
    let folder = Folder::inside(deploy)?;
    let mut text = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../{name}]\ncomponents:\n"
    );
    for component in components {
        writeln!(text, "- ../components/{component}")?;
    }
    fs::write(folder.path().join("kustomization.yaml"), text)?;
    build(tools, folder.path())
}

/// The chart with the values that mean the same, for an API server of this version.
fn rendered(
    tools: &Tools,
    chart: &Path,
    components: &[&str],
    version: Option<&str>,
) -> Result<Objects> {
    let chosen = COMPONENTS
        .iter()
        .filter(|(name, _)| components.contains(name));
    let values: Vec<&str> = chosen.map(|(_, value)| *value).collect();
    rendered_with(tools, chart, &values, version)
}

/// The chart with these values.
fn rendered_with(
    tools: &Tools,
    chart: &Path,
    values: &[&str],
    version: Option<&str>,
) -> Result<Objects> {
    let mut helm = Command::new(&tools.helm);
    helm.args(["template", "plimsoll", "--namespace", NAMESPACE])
        .arg(chart);
    if let Some(version) = version {
        helm.args(["--kube-version", version]);
    }
    for value in values {
        helm.args(["--set", value]);
    }
    objects(&output_of(&mut helm, "mend the chart")?)
}

fn are_equal(kustomize: &Objects, helm: &Objects, components: &[&str]) -> Result<()> {
    for key in kustomize.keys().chain(helm.keys()) {
        let (kind, name) = key;
        let [one, other] = [kustomize, helm].map(|objects| objects.get(key));
        ensure!(
            one == other,
            "{kind} {name} differs with components {components:?}\nKustomize: {}\nHelm:      {}",
            shown(one),
            shown(other)
        );
    }
    Ok(())
}

fn shown(object: Option<&Value>) -> String {
    object.map_or_else(|| "has none".to_owned(), Value::to_string)
}

/// The objects of a kustomization.
fn build(tools: &Tools, folder: &Path) -> Result<Objects> {
    let mut kubectl = Command::new(&tools.kubectl);
    kubectl.arg("kustomize").arg(folder);
    let text = output_of(&mut kubectl, "mend the kustomization")?;
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).context("what was rendered is no YAML")?;
    have_namespaces(&documents).with_context(|| folder.display().to_string())?;
    have_accounts(&documents).with_context(|| folder.display().to_string())?;
    objects(&text)
}

/// A binding for an account that is not there gives the pods no right, and the API server takes it.
fn have_accounts(documents: &[Value]) -> Result<()> {
    let accounts = documents
        .iter()
        .filter(|object| object["kind"] == "ServiceAccount");
    let accounts: Vec<[&Value; 2]> = accounts
        .map(|account| ["namespace", "name"].map(|key| &account["metadata"][key]))
        .collect();
    for object in documents {
        let subjects = object["subjects"].as_array().into_iter().flatten();
        for subject in subjects.filter(|subject| subject["kind"] == "ServiceAccount") {
            let account = ["namespace", "name"].map(|key| &subject[key]);
            ensure!(
                accounts.contains(&account),
                "{} {} is for the account {account:?}, and the accounts are {accounts:?}: leave the namespace of a subject to Kustomize where its account names none",
                object["kind"],
                object["metadata"]["name"]
            );
        }
    }
    Ok(())
}

/// What names no namespace is made in the one that `kubectl` happens to use. A namespace of the base does not reach
/// components.
fn have_namespaces(documents: &[Value]) -> Result<()> {
    for object in documents {
        let kind = object["kind"].as_str().unwrap_or_default();
        ensure!(
            kind.is_empty()
                || CLUSTER_WIDE.contains(&kind)
                || object["metadata"]["namespace"].is_string(),
            "{kind} {} names no namespace: add it to the object",
            object["metadata"]["name"]
        );
    }
    Ok(())
}

/// Without what the forms cannot share: Helm makes no Namespace, and names the one of its release when it installs.
fn objects(text: &str) -> Result<Objects> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).context("what was rendered is no YAML")?;
    let mut objects = Objects::new();
    for mut object in documents {
        let text_of = |path: &str| {
            object
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (kind, name) = (text_of("/kind"), text_of("/metadata/name"));
        if kind.is_empty() || kind == "Namespace" {
            continue;
        }
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("namespace");
        }
        // A document in a document: its order and layout mean nothing.
        if kind == "ConfigMap"
            && let Some(data) = object.get_mut("data").and_then(Value::as_object_mut)
        {
            for value in data.values_mut() {
                if let Value::String(text) = value {
                    *value = serde_saphyr::from_str(text).context("a ConfigMap holds no YAML")?;
                }
            }
        }
        let twice = objects.insert((kind.clone(), name.clone()), object);
        ensure!(twice.is_none(), "{kind} {name} is rendered twice");
    }
    Ok(objects)
}

/// The groups of the object for the Prometheus Operator.
fn groups_of(rules: &Path) -> Result<Value> {
    let mut rules: Value = serde_saphyr::from_str(&read(rules)?)
        .with_context(|| format!("{} is no YAML", rules.display()))?;
    let groups = rules.pointer_mut("/spec/groups").map(Value::take);
    groups.context("rules.yaml has no spec.groups")
}

/// The unit tests of the alerts, beside the rules.
fn alerts_are_raised(tools: &Tools, rules: &Path) -> Result<()> {
    let groups = groups_of(rules)?;
    let tests = read(&rules.with_file_name("rules_test.yaml"))?;
    let alerts = groups.as_array().into_iter().flatten();
    let alerts = alerts
        .filter_map(|group| group["rules"].as_array())
        .flatten();
    for alert in alerts.filter_map(|rule| rule["alert"].as_str()) {
        ensure!(
            tests.contains(&format!("alertname: {alert}\n")),
            "rules_test.yaml has no test for the alert {alert}"
        );
    }
    promtool(tools, "test", &groups, Some(&tests))
}

/// Prometheus reads every query, and each metric in it is one that docs/reference/metrics.md has.
fn queries_are_right(tools: &Tools, rules: &Path, dashboard: &Path) -> Result<()> {
    let dashboard: Value =
        serde_json::from_str(&read(dashboard)?).context("the dashboard is no JSON")?;
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    let targets = panels
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let queries: Vec<String> = targets
        .filter_map(|target| target["expr"].as_str())
        // What Grafana puts in its place.
        .map(|query| {
            query
                .replace("$__rate_interval", "1m")
                .replace("$node", ".*")
        })
        .collect();
    ensure!(!queries.is_empty(), "the dashboard has no query");
    let rows: Vec<Value> = queries
        .iter()
        .enumerate()
        .map(
            |(index, query)| serde_json::json!({"record": format!("panel:{index}"), "expr": query}),
        )
        .collect();
    let group = serde_json::json!([{"name": "panels", "rules": rows}]);
    promtool(tools, "check", &group, None)?;
    let rules_text = groups_of(rules)?.to_string();
    for query in queries.iter().chain([&rules_text]) {
        ensure!(
            !query.contains(r#"job=~".+/plimsoll"#) && !query.contains(r#"job=~\".+/plimsoll"#),
            "a query leaves the jobs of an installation with a namePrefix out: write (.+-)? before the name in {query}"
        );
    }
    let known = read(&paths::root().join("docs/reference/metrics.md"))?;
    let texts = queries.into_iter().chain([groups_of(rules)?.to_string()]);
    for name in texts.flat_map(|text| metrics_in(&text)) {
        let family = ["_bucket", "_count", "_sum"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix));
        ensure!(
            [Some(name.as_str()), family]
                .into_iter()
                .flatten()
                .any(|name| known.contains(&format!("`{name}`"))),
            "deploy/ asks for the metric {name}, which docs/reference/metrics.md does not have"
        );
    }
    Ok(())
}

/// The names in a text that begin as ours do.
fn metrics_in(text: &str) -> Vec<String> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with("plimsoll_") || word.starts_with("process_"))
        .map(str::to_owned)
        .collect()
}

/// `promtool check rules` of these groups, or `promtool test rules` of these tests for them.
fn promtool(tools: &Tools, what: &str, groups: &Value, tests: Option<&str>) -> Result<()> {
    let folder = Folder::new()?;
    let path = folder.path().join(GROUPS);
    // JSON is YAML.
    fs::write(&path, serde_json::json!({ "groups": groups }).to_string())?;
    let file = match tests {
        Some(tests) => {
            let path = folder.path().join("rules_test.yaml");
            fs::write(&path, tests)?;
            path
        }
        None => path,
    };
    let mut promtool = Command::new(&tools.promtool);
    promtool.args([what, "rules"]).arg(file);
    output_of(&mut promtool, "mend deploy/components")?;
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}
