use super::super::DOCUMENTS_PER_FILE_MAX;
use super::*;

fn parse_text(text: &str) -> Parsed {
    parse(&Arc::from(Path::new("pods.yaml")), text, Bounds::MANIFEST)
}

const GOOD: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  priorityClassName: system-cluster-critical
  containers:
  - name: app
    image: nginx
    livenessProbe: {httpGet: {path: /, port: 80}}
    resources:
      limits: {cpu: 1, memory: 1Gi}
      requests:
        cpu: 0.5
";

#[test]
fn defaults_are_those_of_the_api_server() {
    let parsed = parse_text(GOOD);
    assert!(parsed.errors.is_empty(), "{:?}", parsed.errors);
    let pod = &parsed.pods[0].pod;
    assert_eq!(
        (pod.uid().as_str(), pod.metadata.namespace.as_deref()),
        ("default_web", Some("default"))
    );
    assert_eq!(
        (pod.priority(), pod.spec.termination_grace_period_seconds),
        (2_000_000_000, Some(30))
    );
    let resources = &pod.spec.containers[0].resources;
    assert_eq!(
        (
            resources.request("cpu").to_string(),
            resources.request("memory").to_string()
        ),
        ("500m".into(), "1Gi".into())
    );
}

#[test]
fn every_error_names_file_line_and_field() {
    // What is replaced in GOOD, by what, and what the error has to say.
    let cases = [
        (
            "resources:",
            "resorces:",
            "pods.yaml:11: spec.containers[0].resorces: unknown field; did you mean resources?",
        ),
        (
            "memory: 1Gi",
            "memory: 12Qi",
            "pods.yaml:12: spec.containers[0].resources.limits.memory: \"12Qi\" is not a quantity",
        ),
        (
            "memory: 1Gi",
            "memory: -1",
            "pods.yaml:12: spec.containers[0].resources.limits.memory: -1 must be greater",
        ),
        (
            "memory: 1Gi",
            "memory: [1]",
            "pods.yaml:12: spec.containers[0].resources.limits.memory: expected a quantity",
        ),
        (
            "memory: 1Gi",
            "memroy: 1Gi",
            "pods.yaml:12: spec.containers[0].resources.limits.memroy: unknown resource",
        ),
        (
            "memory: 1Gi",
            "a/b/c: 1",
            "pods.yaml:12: spec.containers[0].resources.limits.a/b/c: unknown resource",
        ),
        (
            "cpu: 0.5",
            "cpu: 2",
            "pods.yaml:14: spec.containers[0].resources.requests.cpu: 2 must be less than or equal to cpu limit of 1",
        ),
        (
            "cpu: 0.5",
            "hugepages-2Mi: 4Mi",
            "pods.yaml:14: spec.containers[0].resources.requests.hugepages-2Mi: limits.hugepages-2Mi must be set",
        ),
        (
            "memory: 1Gi",
            "example.com/gpu: 0.5",
            "pods.yaml:12: spec.containers[0].resources.limits.example.com/gpu: 0.5 must be a whole",
        ),
        (
            "kind: Pod",
            "kind: Deployment",
            "pods.yaml:2: kind: a controller makes the pods of a Deployment, and one machine has no",
        ),
        (
            "kind: Pod",
            "kind: Secret",
            "pods.yaml:2: kind: the text \"Secret\" is not accepted here; accepted are kind: Pod",
        ),
        (
            "apiVersion: v1",
            "apiVersion: v2",
            "pods.yaml:1: apiVersion: the text \"v2\" is unknown",
        ),
        ("apiVersion: v1\n", "", "apiVersion: missing"),
        (
            "name: web",
            "name: Web",
            "pods.yaml:4: metadata.name: \"Web\" is not a name",
        ),
        ("name: web", "namespace: n", "metadata.name: missing"),
        (
            "name: web",
            "name: web\n  uid: ../x",
            "pods.yaml:5: metadata.uid: \"../x\" cannot name a cgroup",
        ),
        (
            "name: web",
            "name: 7",
            "pods.yaml:4: metadata.name: expected text (put it in quotes), found the number 7",
        ),
        (
            "name: app",
            "name: app\n  - name: app",
            "pods.yaml:9: spec.containers[1].name: \"app\" is already the container of line 8",
        ),
        (
            "  priorityClassName: system-cluster-critical",
            "  priority: 2000000000",
            "pods.yaml:6: spec.priority: 2000000000 is out of range",
        ),
        (
            "critical\n",
            "critical\n  priority: 5\n",
            "pods.yaml:7: spec.priority: 5 differs from 2000000000",
        ),
        (
            "critical\n",
            "critical\n  terminationGracePeriodSeconds: -1\n",
            "pods.yaml:7: spec.terminationGracePeriodSeconds: must not",
        ),
        ("image: nginx", "image: nginx\n   bad", "pods.yaml:"),
        (
            "  containers:",
            "  volumes: [{name: ../etc, emptyDir: {}}]\n  containers:",
            "pods.yaml:7: spec.volumes[0].name: \"../etc\" is not a volume's name",
        ),
        (
            "  containers:",
            "  volumes: [{name: a}, {emptyDir: {}}, {name: a}]\n  containers:",
            "pods.yaml:7: spec.volumes[2].name: \"a\" is already the volume of line 7",
        ),
        (
            "  containers:",
            "  volumes: [{emptyDir: {}}]\n  containers:",
            "pods.yaml:7: spec.volumes[0].name: missing",
        ),
        (
            "  containers:",
            "  volumes: [{name: a, emptyDir: {sizeLimit: -1Gi}}]\n  containers:",
            "pods.yaml:7: spec.volumes[0].emptyDir.sizeLimit: -1Gi must be greater",
        ),
        (
            "    image: nginx",
            "    volumeMounts: [{name: a, mountPath: /a}]",
            "pods.yaml:9: spec.containers[0].volumeMounts[0].name: \"a\" is no volume of this pod",
        ),
        (
            "    image: nginx",
            "    volumeMounts: [{name: a}]",
            "pods.yaml:9: spec.containers[0].volumeMounts[0].mountPath: missing",
        ),
    ];
    for (old, new, wanted) in cases {
        assert!(GOOD.contains(old), "{old}");
        let parsed = parse_text(&GOOD.replacen(old, new, 1));
        assert!(parsed.pods.is_empty(), "{new}");
        let errors: Vec<_> = parsed.errors.iter().map(ToString::to_string).collect();
        assert!(
            errors.iter().any(|error| error.contains(wanted)),
            "{new}: {errors:#?}"
        );
    }
}

#[test]
fn one_bad_document_does_not_take_the_others() {
    let bad = GOOD
        .replace("name: web", "name: bad")
        .replace("1Gi", "12Qi");
    let third = GOOD.replace("name: web", "name: third");
    let parsed = parse_text(&format!("{GOOD}---\n{bad}---\n# nothing\n---\n{third}"));
    let names: Vec<_> = parsed
        .pods
        .iter()
        .map(|pod| pod.pod.metadata.name.as_str())
        .collect();
    assert_eq!(
        (names, parsed.errors.len()),
        (vec!["web", "third"], 1),
        "{:?}",
        parsed.errors
    );
}

#[test]
fn lists_and_json() {
    let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME"},"spec":{"containers":[{"name":"c"}]},"status":{"qosClass":"Guaranteed"}}"#;
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"List","metadata":{{}},"items":[{},{},{{"apiVersion":"apps/v1","kind":"Job"}}]}}"#,
        pod.replace("NAME", "a"),
        pod.replace("NAME", "b")
    );
    let parsed = parse_text(&text);
    assert_eq!(parsed.pods.len(), 2, "{:?}", parsed.errors);
    assert!(
        parsed.pods[0].pod.status.qos_class.is_none(),
        "a manifest's status is not believed"
    );
    assert!(
        parsed.errors[0].to_string().contains("items[2].kind"),
        "{}",
        parsed.errors[0]
    );
}

#[test]
fn too_many_documents_are_one_error() {
    let text = GOOD.to_owned() + "---\n";
    let parsed = parse_text(&text.repeat(DOCUMENTS_PER_FILE_MAX + 5));
    assert_eq!(
        (parsed.pods.len(), parsed.errors.len()),
        (DOCUMENTS_PER_FILE_MAX - 1, 1)
    );
}
