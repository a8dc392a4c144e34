use std::sync::Mutex;
use std::time::Duration;

use plimsoll_core::kube::qos::QosClass;

use super::super::{ManifestChange, ManifestDir, SETTLE_MS};
use super::*;

const LIMITS: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: v1
kind: LimitRange
metadata: {name: limits, namespace: team}
spec:
  limits:
  - type: Container
    default: {cpu: 500m, memory: 256Mi}
    defaultRequest: {cpu: 100m}
";

fn quota(name: &str, hard: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: {name}, namespace: team}}\nspec:\n  hard: {{{hard}}}\n"
    )
}

fn pod_of(namespace: &str, name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{containers: [{{name: c{more}}}]}}\n"
    )
}

fn pod(name: &str) -> String {
    pod_of("team", name, "")
}

/// A directory and its agents, one after the other.
struct Node {
    dir: tempfile::TempDir,
    manifests: ManifestDir,
    now: Duration,
    /// The names of the pods with processes.
    runs: Arc<Mutex<Vec<&'static str>>>,
    change: ManifestChange,
}

impl Node {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for part in ["pods", "state"] {
            std::fs::create_dir(dir.path().join(part)).unwrap();
        }
        let mut node = Self {
            manifests: ManifestDir::new("/nonexistent"),
            dir,
            now: Duration::ZERO,
            runs: Arc::default(),
            change: ManifestChange::default(),
        };
        for (name, text) in files {
            node.write(name, text);
        }
        node.restart();
        node
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn file(&self) -> PathBuf {
        self.state().join(ADMITTED)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join("pods").join(name), text).unwrap();
    }

    fn remove(&mut self, name: &str) {
        std::fs::remove_file(self.dir.path().join("pods").join(name)).unwrap();
        self.look();
    }

    /// Another agent, which looks once.
    fn restart(&mut self) {
        let runs = Arc::clone(&self.runs);
        self.manifests =
            ManifestDir::new(self.dir.path().join("pods")).with_admission(AdmissionContext {
                state_dir: self.state(),
                is_running: Box::new(move |pod| {
                    runs.lock().unwrap().contains(&pod.metadata.name.as_str())
                }),
            });
        let (change, _) = self.manifests.look(self.now);
        self.change = change.unwrap_or_default();
    }

    /// Looks until nothing is unsettled; what has changed.
    fn look(&mut self) {
        let mut all = ManifestChange {
            refused: std::mem::take(&mut self.change.refused),
            quotas: std::mem::take(&mut self.change.quotas),
            errors: std::mem::take(&mut self.change.errors),
            ..ManifestChange::default()
        };
        for _ in 0..5 {
            let (change, is_settling) = self.manifests.look(self.now);
            if let Some(change) = change {
                all.added.extend(change.added);
                all.changed.extend(change.changed);
                all.removed.extend(change.removed);
                (all.refused, all.quotas) = (change.refused, change.quotas);
                all.errors = change.errors;
            }
            if !is_settling {
                self.change = all;
                return;
            }
            self.now += Duration::from_millis(SETTLE_MS);
        }
        panic!("does not settle");
    }

    fn update(&mut self, name: &str, text: &str) {
        self.write(name, text);
        self.look();
    }

    fn left(&mut self, name: &str) {
        self.manifests.note_left(&uid(name));
        self.look();
    }

    fn added(&self) -> Vec<&str> {
        let added = self.change.added.iter();
        added.map(|pod| pod.pod.metadata.name.as_str()).collect()
    }

    fn refused(&self) -> Vec<String> {
        let refused = self.change.refused.iter();
        refused
            .map(|pod| format!("{}: {}", pod.pod, pod.message))
            .collect()
    }

    fn errors(&self) -> Vec<String> {
        self.change.errors.iter().map(ToString::to_string).collect()
    }

    /// `pods=1,requests.cpu=100m`
    fn used(&self) -> Vec<String> {
        let used = |quota: &QuotaUse| {
            let used: Vec<String> = quota
                .used
                .iter()
                .map(|(name, amount)| format!("{name}={amount}"))
                .collect();
            used.join(",")
        };
        self.change.quotas.iter().map(used).collect()
    }

    fn exec(&self, text: &str) -> Result<Option<Arc<Pod>>, NotAdmitted> {
        let path = self.dir.path().join("exec.yaml");
        std::fs::write(&path, text).unwrap();
        let (pods, _) = super::super::read_file(&path);
        admitted(&self.state(), &pods[0].pod)
    }
}

fn uid(name: &str) -> PodUid {
    PodUid::new(format!("team_{name}"))
}

#[test]
fn defaults_and_a_quota_decide_and_a_departure_makes_room() {
    let room = quota("compute", "pods: 1, requests.cpu: 1");
    let mut node = Node::new(&[
        ("a.yaml", &pod("web")),
        ("b.yaml", &pod("more")),
        ("limits.yaml", &format!("{LIMITS}---\n{room}")),
    ]);
    assert_eq!(node.errors(), Vec::<String>::new());
    // Both files were first seen together: by name.
    assert_eq!(node.added(), ["more"]);
    let admitted = &node.change.added[0].pod;
    assert_eq!(admitted.qos_class(), QosClass::Burstable);
    let resources = &admitted.spec.containers[0].resources;
    assert_eq!(resources.request("memory").to_string(), "256Mi");
    assert_eq!(resources.limits["cpu"].to_string(), "500m");
    assert!(
        admitted.metadata.annotations[ANNOTATION].contains("cpu, memory request for container c")
    );
    let sentence = "pods \"web\" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=1, limited: pods=1";
    assert_eq!(node.refused(), [format!("team/web: {sentence}")]);
    assert_eq!(node.used(), ["pods=1,requests.cpu=100m"]);
    let error = node.exec(&pod("web")).unwrap_err();
    assert_eq!(error.to_string(), sentence);
    let pod_of_exec = node.exec(&pod("more")).unwrap().unwrap();
    assert_eq!(&pod_of_exec, admitted);
    let error = node.exec(&pod("unseen")).unwrap_err().to_string();
    assert!(error.contains("no agent has admitted it yet"), "{error}");

    node.remove("b.yaml");
    assert_eq!(node.change.removed, [uid("more")]);
    assert_eq!(node.used(), ["pods=1,requests.cpu=100m"], "it has not left");
    assert!(
        node.exec(&pod("more"))
            .unwrap_err()
            .to_string()
            .contains("on its way out")
    );
    node.update("b.yaml", &pod("more"));
    let exists = "pods \"more\" already exists";
    assert!(
        node.refused().contains(&format!("team/more: {exists}")),
        "{:?}",
        node.refused()
    );
    node.left("more");
    assert_eq!(node.added(), ["web"], "it was seen before");
    assert_eq!(node.refused().len(), 1);
    assert_eq!(node.used(), ["pods=1,requests.cpu=100m"]);

    let (used, refused) = (node.used(), node.refused());
    *node.runs.lock().unwrap() = vec!["web"];
    node.restart();
    assert_eq!((node.used(), node.refused()), (used, refused));
    assert_eq!(node.added(), ["web"]);
}

#[test]
fn without_anything_that_decides_nothing_is_refused_or_written() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {priority: 5, priorityClassName: none, containers: [{name: c}]}\n";
    let mut node = Node::new(&[("a.yaml", text)]);
    assert_eq!(node.added(), ["web"]);
    assert_eq!(node.change.added[0].pod.spec.priority, Some(5));
    node.update(
        "namespace.yaml",
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: default}\n",
    );
    assert_eq!((node.errors(), node.refused()), (Vec::new(), Vec::new()));
    assert!(!node.file().exists());
    assert_eq!(node.exec(text).unwrap(), None);
    // Nor where something decides about another namespace.
    node.update("limits.yaml", LIMITS);
    assert!(node.file().exists());
    assert_eq!(
        (node.exec(text).unwrap(), node.refused()),
        (None, Vec::new())
    );
    // A class decides about all; what was admitted before stays.
    let class =
        "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 7\n";
    node.update("class.yaml", class);
    node.update("b.yaml", &text.replace("web", "late"));
    assert_eq!(
        node.refused(),
        ["default/late: pods \"late\" is forbidden: no PriorityClass with name none was found"]
    );
    assert_eq!(node.change.removed, []);
    for file in ["class.yaml", "limits.yaml"] {
        node.remove(file);
    }
    assert_eq!(node.refused(), Vec::<String>::new());
    assert!(!node.file().exists(), "nothing decides any more");
}

#[test]
fn files_keep_their_order_over_restarts() {
    let mut node = Node::new(&[("quota.yaml", &quota("none", "pods: 0"))]);
    node.update("z.yaml", &pod("z"));
    node.update("a.yaml", &pod("a"));
    let order = |node: &Node| -> Vec<PodUid> {
        node.change
            .refused
            .iter()
            .map(|it| it.uid.clone())
            .collect()
    };
    assert_eq!(order(&node), [uid("z"), uid("a")]);
    node.restart();
    assert_eq!(order(&node), [uid("z"), uid("a")]);
    node.update("quota.yaml", &quota("none", "pods: 1"));
    assert_eq!((node.added(), order(&node)), (vec!["z"], vec![uid("a")]));
}

#[test]
fn a_quota_below_its_use_ends_nothing() {
    let mut node = Node::new(&[
        ("a.yaml", &format!("{}---\n{}", pod("a"), pod("b"))),
        ("quota.yaml", &quota("q", "pods: 2")),
    ]);
    assert_eq!(node.added(), ["a", "b"]);
    node.update("quota.yaml", &quota("q", "pods: 1"));
    node.update("c.yaml", &pod("c"));
    assert_eq!(
        (node.change.removed.len(), node.used()),
        (0, vec!["pods=2".to_owned()])
    );
    assert!(
        node.refused()[0].contains("used: pods=2, limited: pods=1"),
        "{:?}",
        node.refused()
    );
    // An object that comes later counts what is there.
    node.update("quota.yaml", &quota("q", "pods: 9, requests.cpu: 1"));
    assert_eq!(
        node.refused(),
        ["team/c: pods \"c\" is forbidden: failed quota: q: must specify requests.cpu for: c"]
    );
    assert_eq!(node.used(), ["pods=2,requests.cpu=0"]);
    node.remove("quota.yaml");
    assert_eq!((node.added(), node.refused().len()), (vec!["c"], 0));
}

#[test]
fn a_limit_range_that_changes_leaves_the_pods_that_are_there() {
    let mut node = Node::new(&[("limits.yaml", LIMITS), ("a.yaml", &pod("a"))]);
    let before = node.change.added[0].pod.clone();
    node.update("limits.yaml", &LIMITS.replace("256Mi", "64Mi"));
    node.update("b.yaml", &pod("b"));
    assert_eq!(
        (node.change.changed.len(), node.change.removed.len()),
        (0, 0)
    );
    let limit = |pod: &Pod| pod.spec.containers[0].resources.limits["memory"].to_string();
    assert_eq!(
        (limit(&before), limit(&node.change.added[0].pod)),
        ("256Mi".into(), "64Mi".into())
    );
    node.remove("limits.yaml");
    *node.runs.lock().unwrap() = vec!["a", "b"];
    node.restart();
    let kept: Vec<String> = node
        .change
        .added
        .iter()
        .map(|pod| limit(&pod.pod))
        .collect();
    assert_eq!(kept, ["256Mi", "64Mi"], "they run on as they were admitted");
}

#[test]
fn a_change_that_the_api_server_refuses_leaves_the_pod() {
    let more = ", resources: {requests: {cpu: 100m}, limits: {memory: 64Mi}}";
    let text = pod_of("team", "a", more);
    let mut node = Node::new(&[("limits.yaml", LIMITS), ("a.yaml", &text)]);
    let before = node.change.added[0].pod.clone();
    node.update("a.yaml", &text.replace("100m", "200m"));
    assert_eq!(
        (node.change.changed.len(), node.change.removed.len()),
        (0, 0)
    );
    let errors = node.errors();
    let sentence = "a.yaml:1: Pod \"a\" is invalid: spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`";
    assert!(
        errors.len() == 1 && errors[0].contains(sentence),
        "{errors:?}"
    );
    assert_eq!(node.exec(&text).unwrap().unwrap(), before);
    // The same in other words is no change, and labels may change.
    node.update(
        "a.yaml",
        &text
            .replace("100m", "0.1")
            .replace("{name: a,", "{name: a, labels: {app: a},"),
    );
    assert_eq!(node.errors(), Vec::<String>::new());
    let changed = &node.change.changed[0].pod;
    assert_eq!(changed.metadata.labels["app"], "a");
    assert_eq!(changed.spec, before.spec, "with what it was admitted with");
    node.restart();
    assert_eq!(node.errors(), Vec::<String>::new());
}

#[test]
fn an_error_names_file_line_and_field_and_admits_nothing() {
    let range = |limits: &str| {
        format!(
            "apiVersion: v1\nkind: LimitRange\nmetadata: {{name: l, namespace: team}}\nspec:\n  limits:\n  - type: Container\n    {limits}\n"
        )
    };
    let selector = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q, namespace: team}\nspec:\n  hard: {pods: 1}\n  scopeSelector:\n    matchExpressions:\n    - {scopeName: PriorityClass, operator: In}\n";
    let cases = [
        (
            range("max: {cpu: 1}\n    min: {cpu: 2}"),
            "limits.yaml:8: spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
        ),
        (
            range("max: {cpu: 1Zi}"),
            "limits.yaml:7: spec.limits[0].max[cpu]: quantity \"1Zi\"",
        ),
        (
            range("maximum: {cpu: 1}"),
            "limits.yaml:7: spec.limits[0].maximum: unknown field",
        ),
        (
            quota("q", "pods: lots"),
            "limits.yaml:5: spec.hard[pods]: quantity \"lots\"",
        ),
        (
            quota("q", "pods: 1.5"),
            "limits.yaml:5: spec.hard[pods]: Invalid value",
        ),
        (
            quota("q", "pods: -1"),
            "limits.yaml:5: spec.hard[pods]: Invalid value",
        ),
        (
            quota("q", "podz: 1"),
            "limits.yaml:5: spec.hard[podz]: Invalid value",
        ),
        (
            selector.to_owned(),
            "limits.yaml:7: spec.scopeSelector.matchExpressions.values: Required value",
        ),
        (
            quota("q", "pods: 1").replace("v1", "v2"),
            "limits.yaml:1: apiVersion: \"v2\" is not a version of ResourceQuota",
        ),
        (
            quota("Q", "pods: 1"),
            "limits.yaml:3: metadata.name: Invalid value",
        ),
        (
            quota("q", "pods: 1").replace("name: q, ", ""),
            "limits.yaml:3: metadata.name: missing",
        ),
    ];
    for (text, wanted) in cases {
        let node = Node::new(&[("a.yaml", &pod("a")), ("limits.yaml", &text)]);
        let errors = node.errors();
        assert!(
            errors.iter().any(|error| error.contains(wanted)),
            "{text}: {errors:#?}"
        );
        assert_eq!(node.added(), Vec::<&str>::new(), "{text}");
        assert!(
            node.refused()[0].contains("has errors and was never in force"),
            "{:?}",
            node.refused()
        );
    }
    for kind in ["apps/v1\nkind: Deployment", "batch/v1\nkind: Job"] {
        let node = Node::new(&[(
            "d.yaml",
            &format!("apiVersion: {kind}\nmetadata: {{name: d}}\n"),
        )]);
        assert!(
            node.errors()[0].contains("d.yaml:2: kind: a controller makes the pods of a "),
            "{:?}",
            node.errors()
        );
    }
}

#[test]
fn a_broken_object_leaves_its_last_good_version_in_force() {
    let good = quota("q", "pods: 1");
    let mut node = Node::new(&[("q.yaml", &good), ("a.yaml", &pod("a"))]);
    for broken in [
        good.replace("pods: 1", "pods: lots"),
        good.replace("pods: 1", "pods: -1"),
        good.replace("spec:", "spec: {"),
        good.clone() + "  scopes: [BestEffort]\n",
    ] {
        node.update("q.yaml", &broken);
        node.update("b.yaml", &pod("b"));
        assert!(!node.errors().is_empty(), "{broken}");
        assert!(node.errors()[0].contains("q.yaml:"), "{:?}", node.errors());
        assert!(
            node.refused()[0].contains("exceeded quota: q"),
            "{broken}: {:?}",
            node.refused()
        );
    }
    node.update("q.yaml", &good.replace("pods: 1", "pods: 2"));
    assert_eq!((node.errors().len(), node.refused().len()), (0, 0));
}

#[test]
fn an_emptied_file_takes_no_quota_away_and_a_quota_is_no_emptied_file() {
    let good = quota("q", "pods: 1");
    let mut node = Node::new(&[("q.yaml", &format!("{good}---\n{}", pod("a")))]);
    node.update("b.yaml", &pod("b"));
    node.update("q.yaml", "");
    assert!(
        node.errors()[0].contains("q.yaml: has no documents any more"),
        "{:?}",
        node.errors()
    );
    assert_eq!(
        (node.refused().len(), node.used()),
        (1, vec!["pods=1".to_owned()])
    );
    // Only the pod is gone.
    node.update("q.yaml", &good);
    assert_eq!(
        (node.errors().len(), node.change.removed.clone()),
        (0, vec![uid("a")])
    );
    node.left("a");
    assert_eq!((node.added(), node.refused().len()), (vec!["b"], 0));
}

#[test]
fn a_file_that_keeps_only_a_budget_gives_up_its_pods() {
    let budget = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: web}\nspec: {minAvailable: 1, selector: {}}\n";
    let both = format!("{budget}---\n{}", pod("a"));
    let mut node = Node::new(&[("q.yaml", &quota("q", "pods: 1")), ("a.yaml", &both)]);
    // It has a document, so no editor has cut it off.
    node.update("a.yaml", budget);
    assert_eq!(
        (node.errors(), node.change.removed.clone()),
        (Vec::<String>::new(), vec![uid("a")])
    );
    // Nor does it keep a pod of an earlier agent for longer than one look.
    let mut node = Node::new(&[("q.yaml", &quota("q", "pods: 1")), ("a.yaml", &both)]);
    node.runs.lock().unwrap().push("a");
    node.write("a.yaml", budget);
    node.restart();
    assert_eq!(node.added(), vec!["a"]);
    node.look();
    assert_eq!(
        (node.errors(), node.change.removed.clone()),
        (Vec::<String>::new(), vec![uid("a")])
    );
    // One without any document keeps what it had.
    let mut node = Node::new(&[("a.yaml", budget)]);
    node.update("a.yaml", "");
    assert!(
        node.errors()[0].contains("a.yaml: has no documents any more"),
        "{:?}",
        node.errors()
    );
    assert_eq!(node.change.budgets_removed, []);
}

#[test]
fn of_two_default_classes_the_one_in_force_stays() {
    let class = |name: &str, value: u32| {
        format!(
            "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: {name}}}\nvalue: {value}\nglobalDefault: true\n"
        )
    };
    let mut node = Node::new(&[("z.yaml", &class("z", 7))]);
    node.update("a.yaml", &class("a", 9));
    let errors = node.errors();
    assert!(errors[0].contains("a.yaml:5: globalDefault: priorityclasses.scheduling.k8s.io \"a\" is forbidden: PriorityClass z is already marked as default"), "{errors:?}");
    node.update("pod.yaml", &pod("p"));
    assert_eq!(node.change.added[0].pod.spec.priority, Some(7));
    // A class keeps its value, as in the API server.
    node.update("z.yaml", &class("z", 8));
    let errors = node.errors();
    assert!(
        errors
            .iter()
            .any(|it| it.contains("z.yaml:4: value: Forbidden: may not be changed in an update.")),
        "{errors:?}"
    );
    // Gone, it makes room for the other. The pod keeps its priority.
    node.remove("z.yaml");
    node.update("q.yaml", &pod("q"));
    assert_eq!(
        (node.errors().len(), node.change.added[0].pod.spec.priority),
        (0, Some(9))
    );
    assert_eq!(node.change.changed, []);
}

#[test]
fn two_objects_of_one_name_and_a_status_that_is_not_believed() {
    let second = quota("q", "pods: 5") + "status: {hard: {pods: 9}, used: {pods: 9}}\n";
    let node = Node::new(&[
        ("a.yaml", &second),
        ("b.yaml", &quota("q", "pods: 0")),
        ("p.yaml", &pod("p")),
    ]);
    assert!(
        node.errors()[0]
            .contains("b.yaml:3: metadata.name: ResourceQuota team/q is already defined at"),
        "{:?}",
        node.errors()
    );
    assert_eq!(
        (node.added(), node.used()),
        (vec!["p"], vec!["pods=1".to_owned()])
    );
}

#[test]
fn quantities_beyond_64_bits_are_what_the_api_makes_of_them() {
    let node = Node::new(&[
        (
            "q.yaml",
            &quota("q", "requests.memory: 9999999999999999999Ei"),
        ),
        (
            "p.yaml",
            &pod_of("team", "p", ", resources: {requests: {memory: 9Ei}}"),
        ),
        (
            "r.yaml",
            &pod_of("team", "r", ", resources: {requests: {memory: 8Ei}}"),
        ),
    ]);
    // What is beyond is the largest that there is, so that both fit, or the second is refused in words; nothing wraps
    // around.
    let used = node.used().concat();
    assert!(!used.contains('-'), "{used}");
    assert_eq!(
        node.added().len() + node.refused().len(),
        2,
        "{:?}",
        node.errors()
    );
}

#[test]
fn a_thousand_quotas_of_one_namespace() {
    let all: Vec<String> = (0..1000)
        .map(|at| quota(&format!("q{at:03}"), "pods: 3"))
        .collect();
    let mut files: Vec<(String, String)> = all
        .chunks(200)
        .enumerate()
        .map(|(at, some)| (format!("q{at}.yaml"), some.join("---\n")))
        .collect();
    files.push((
        "p.yaml".into(),
        [pod("a"), pod("b"), pod("c"), pod("d")].join("---\n"),
    ));
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .collect();
    let node = Node::new(&files);
    assert_eq!(node.errors(), Vec::<String>::new());
    assert_eq!(node.added(), ["a", "b", "c"]);
    assert!(node.used().iter().all(|used| used == "pods=3"));
    assert!(
        node.refused()[0].contains("exceeded quota: q000"),
        "{:?}",
        node.refused()
    );
}

#[test]
fn an_agent_that_is_killed_counts_nothing_twice_and_loses_nothing() {
    let mut node = Node::new(&[("q.yaml", &quota("q", "pods: 2")), ("a.yaml", &pod("a"))]);
    let before = std::fs::read(node.file()).unwrap();
    node.update("b.yaml", &pod("b"));
    node.update("c.yaml", &pod("c"));
    let (used, refused) = (node.used(), node.refused());
    assert_eq!(
        (used.clone(), refused.len()),
        (vec!["pods=2".to_owned()], 1)
    );
    // Killed after it has written, and before the loop knew.
    node.restart();
    assert_eq!(
        (node.added(), node.used(), node.refused()),
        (vec!["a", "b"], used.clone(), refused.clone())
    );
    // Killed before it has written: nothing that it admitted has started.
    std::fs::write(node.file(), before).unwrap();
    node.restart();
    assert_eq!(
        (node.added(), node.used(), node.refused()),
        (vec!["a", "b"], used.clone(), refused.clone())
    );
    // The file is gone, or damaged: what runs stays.
    *node.runs.lock().unwrap() = vec!["a", "b", "c"];
    std::fs::remove_file(node.file()).unwrap();
    node.restart();
    assert_eq!(
        (node.added().len(), node.used()),
        (3, vec!["pods=3".to_owned()])
    );
    std::fs::write(node.file(), "{").unwrap();
    let error = node.exec(&pod("a")).unwrap_err().to_string();
    assert!(error.contains("not a file of admitted pods"), "{error}");
    node.restart();
    assert_eq!(
        (node.added().len(), node.used()),
        (3, vec!["pods=3".to_owned()])
    );
    assert!(
        node.errors()[0].contains("admitted.json"),
        "{:?}",
        node.errors()
    );
    assert!(node.state().join("admitted.json.damaged-1").exists());
}

#[test]
fn manifests_that_went_while_no_agent_ran() {
    let mut node = Node::new(&[
        ("q.yaml", &quota("q", "pods: 2")),
        ("a.yaml", &pod("a")),
        ("b.yaml", &pod("b")),
    ]);
    let delete = |node: &Node, name: &str| {
        std::fs::remove_file(node.dir.path().join("pods").join(name)).unwrap()
    };
    // It does not run: it has left.
    delete(&node, "a.yaml");
    node.restart();
    assert_eq!(
        (node.added(), node.used()),
        (vec!["b"], vec!["pods=1".to_owned()])
    );
    // A file that is wrong ends nothing.
    node.write("b.yaml", "kind: [");
    node.restart();
    assert_eq!(
        (node.added(), node.used()),
        (vec!["b"], vec!["pods=1".to_owned()])
    );
    assert_eq!(node.change.removed, []);
    // It runs: it is ended, and counted until it has left.
    *node.runs.lock().unwrap() = vec!["b"];
    delete(&node, "b.yaml");
    node.restart();
    assert_eq!(
        (node.added(), node.used()),
        (vec!["b"], vec!["pods=1".to_owned()])
    );
    // The file may have been away for a moment.
    assert_eq!(node.change.removed, []);
    assert!(node.manifests.is_undecided());
    node.look();
    assert_eq!(node.change.removed, [uid("b")]);
    assert_eq!(node.used(), ["pods=1"]);
    node.left("b");
    assert_eq!(node.used(), ["pods=0"]);
}

#[test]
fn what_cannot_be_written_down_is_not_admitted() {
    let mut node = Node::new(&[("q.yaml", &quota("q", "pods: 2"))]);
    let state = node.state();
    std::fs::rename(&state, node.dir.path().join("away")).unwrap();
    node.update("a.yaml", &pod("a"));
    assert_eq!(node.added(), Vec::<&str>::new());
    assert!(
        node.refused()[0].contains("cannot be written down"),
        "{:?}",
        node.refused()
    );
    assert!(node.manifests.is_undecided());
    std::fs::rename(node.dir.path().join("away"), &state).unwrap();
    node.look();
    assert_eq!(
        (node.added(), node.refused(), node.errors()),
        (vec!["a"], Vec::new(), Vec::new())
    );
    assert!(!node.manifests.is_undecided());
}

#[test]
fn what_is_missing_for_a_moment_ends_no_pod_of_an_earlier_agent() {
    let mut node = Node::new(&[("q.yaml", &quota("q", "pods: 2")), ("a.yaml", &pod("a"))]);
    *node.runs.lock().unwrap() = vec!["a"];
    let pods = node.dir.path().join("pods");
    // Cut off, as by an editor.
    node.write("a.yaml", "");
    node.restart();
    node.look();
    assert_eq!((node.added(), node.change.removed.len()), (vec![], 0));
    // Away, and there again.
    std::fs::remove_file(pods.join("a.yaml")).unwrap();
    node.restart();
    assert_eq!((node.added(), node.change.removed.len()), (vec!["a"], 0));
    node.update("a.yaml", &pod("a"));
    assert_eq!(node.change.removed, []);
    // The directory cannot be read.
    std::fs::rename(&pods, node.dir.path().join("away")).unwrap();
    node.restart();
    node.look();
    assert_eq!(node.change.removed, []);
    assert_eq!(node.refused(), Vec::<String>::new());
    assert!(node.manifests.is_undecided());
    std::fs::rename(node.dir.path().join("away"), &pods).unwrap();
    node.look();
    assert_eq!(
        (node.change.removed.len(), node.used()),
        (0, vec!["pods=1".to_owned()])
    );
}

/// Each look is then a first one, at which nothing of an earlier agent is ended.
#[test]
fn a_manifest_that_is_removed_ends_its_pod_with_more_files_than_are_read() {
    let mut node = Node::new(&[("q.yaml", &quota("q", "pods: 9")), ("a.yaml", &pod("a"))]);
    *node.runs.lock().unwrap() = vec!["a"];
    for at in 0..=super::super::FILES_MAX {
        node.write(&format!("z{at}.yaml"), "");
    }
    node.restart();
    node.look();
    assert!(node.manifests.is_undecided());
    assert_eq!(node.change.removed, []);
    node.remove("a.yaml");
    assert_eq!(node.change.removed, [uid("a")]);
}

#[test]
fn a_pod_whose_manifest_comes_back_while_no_agent_runs_is_not_leaving_for_ever() {
    for runs in [false, true] {
        let mut node = Node::new(&[("q.yaml", &quota("q", "pods: 1")), ("a.yaml", &pod("a"))]);
        node.remove("a.yaml");
        assert_eq!(node.used(), ["pods=1"], "it has not left yet");
        node.write("a.yaml", &pod("a"));
        if runs {
            *node.runs.lock().unwrap() = vec!["a"];
        }
        node.restart();
        assert_eq!(
            (node.added(), node.used()),
            (vec!["a"], vec!["pods=1".to_owned()]),
            "{runs}"
        );
        assert_eq!(node.refused(), Vec::<String>::new());
    }
}

#[test]
fn a_quota_that_an_earlier_agent_had_is_not_forgotten_while_its_file_is_wrong() {
    let mut node = Node::new(&[("q.yaml", &quota("q", "pods: 1")), ("a.yaml", &pod("a"))]);
    node.update("b.yaml", &pod("b"));
    assert_eq!(node.refused().len(), 1);
    node.write("q.yaml", "kind: [");
    node.restart();
    assert_eq!(node.added(), ["a"]);
    assert!(node.change.refused[0].message.contains("mend the file"));
    node.update("q.yaml", &quota("q", "pods: 2"));
    assert_eq!(
        (node.added(), node.used()),
        (vec!["b"], vec!["pods=2".to_owned()])
    );
    // One whose file was removed is; and a file without pods is no error.
    node.update("c.yaml", &pod("c"));
    assert_eq!(node.refused().len(), 1);
    node.write("empty.yaml", "");
    std::fs::remove_file(node.dir.path().join("pods/q.yaml")).unwrap();
    node.restart();
    assert_eq!((node.added().len(), node.refused().len()), (3, 0));
}
