//! The program by itself: its help, its exit statuses, its end.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll-cluster"));
    let outside = [
        "NODE_NAME",
        "KUBERNETES_SERVICE_HOST",
        "KUBERNETES_SERVICE_PORT",
    ];
    for name in outside {
        command.env_remove(name);
    }
    command
}

#[test]
fn statuses_and_what_to_do() {
    let cases: [(&[&str], i32, &str); 10] = [
        (
            &["--node", "n", "--clean-up", "--clean-up-on-exit"],
            2,
            "--clean-up-on-exit",
        ),
        (&["arbitrate", "--cycle", "0s"], 2, "100ms"),
        (&["arbitrate", "--node", "n"], 2, "--node"),
        (
            &["arbitrate", "--once", "--kubeconfig", "/nowhere"],
            1,
            "/nowhere",
        ),
        (&[], 2, "--node"),
        (
            &["--node", "n", "--evicted-pods", "keepPerOwner=3"],
            2,
            "keepFor=1h",
        ),
        (&["--node", "n", "--metrics", "0.0.0.0:9100"], 2, "loopback"),
        (&["--node", "n"], 1, "--kubeconfig"),
        (&["--node", "n", "--kubeconfig", "/nowhere"], 1, "/nowhere"),
        (
            &["--node", "n", "--kubeconfig", "/nowhere", "--clean-up"],
            1,
            "/nowhere",
        ),
    ];
    for (arguments, status, word) in cases {
        let output = program().args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
    let help = program().arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout);
    assert!(
        help.contains("Examples:") && help.contains("Exit status: 0"),
        "{help}"
    );
}

/// A file in the folder for `--kubeconfig`: the API server is at a port of this machine.
fn kubeconfig(folder: &Path, port: u16) -> PathBuf {
    let config = folder.join("config");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters:\n- name: x\n  cluster: {{server: \"http://127.0.0.1:{port}\"}}\nusers:\n- name: x\n\
         contexts:\n- name: x\n  context: {{cluster: x, user: x}}\n"
    );
    std::fs::write(&config, text).unwrap();
    config
}

/// An API server in which there is nothing: a list has no items, and a watch goes on without an answer.
fn answer_nothing(client: &mut TcpStream) {
    let list = r#"{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}"#;
    let heads = BufReader::new(client.try_clone().unwrap()).lines();
    let mut is_watch = false;
    for line in heads.map_while(Result::ok) {
        is_watch |= line.contains("watch=true") || line.contains("watch=1");
        if line.is_empty() && !is_watch {
            let length = list.len();
            write!(client, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{list}").unwrap();
        }
    }
}

#[test]
fn a_reader_that_has_read_enough_is_no_failure() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in server.incoming() {
            std::thread::spawn(move || answer_nothing(&mut client.unwrap()));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = program()
        .args(["arbitrate", "--once", "--kubeconfig"])
        .arg(kubeconfig(folder.path(), port))
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn an_api_server_that_does_not_answer_is_not_said_to_want_rights() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: \"http://127.0.0.1:1\"}}]\n\
                users: [{name: x, user: {}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n";
    std::fs::write(&config, text).unwrap();
    let mut asked = program();
    asked
        .args(["arbitrate", "--once", "--kubeconfig"])
        .arg(&config);
    let output = asked.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(
        last.contains("the address") && !last.contains("rights"),
        "{said}"
    );
}

/// A parser shows the lines around an error, and whoever reads a pod's log would have the token.
#[test]
fn of_a_kubeconfig_that_is_none_no_token_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config");
    for (text, line) in [
        (
            "apiVersion: v1\nusers:\n- name: x\n  user: {token: very-secret}\n clusters: []\n",
            "line 5",
        ),
        (
            "apiVersion: v1\nusers:\n- name: x\n  user: very-secret\n",
            "line 4",
        ),
    ] {
        std::fs::write(&config, text).unwrap();
        let mut asked = program();
        asked.args(["--node", "n", "--kubeconfig"]).arg(&config);
        let output = asked.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(line) && !said.contains("secret"), "{said}");
    }
}

#[test]
fn without_anybody_there_it_waits_and_ends_when_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig(folder.path(), 1);
    let mut child = program()
        .args(["--node", "n", "--kubeconfig"])
        .arg(&config)
        .arg("--socket")
        .arg(folder.path().join("nobody.sock"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It says both, and goes on.
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let (mut agent, mut api) = (false, false);
    while !(agent && api) {
        let line = said.next().unwrap().unwrap();
        agent |= line.contains("nobody.sock");
        api |= line.contains("pods: ") || line.contains("nodes: ");
    }
    assert!(child.try_wait().unwrap().is_none());
    let ended = Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    assert!(ended.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// All arguments are read before `--help` is answered, and one that is wrong is told instead.
#[test]
fn the_arguments_in_deploy_are_its_own() {
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/");
    let read = |path: &str| {
        let path = format!("{deploy}{path}");
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let daemonset = read("base/daemonset.yaml");
    let container = daemonset
        .split("- name: cluster")
        .nth(1)
        .unwrap_or_default();
    let lines = container.lines().map(str::trim);
    let mut arguments: Vec<String> = lines
        .filter_map(|line| line.strip_prefix("- --"))
        .map(|argument| format!("--{argument}"))
        .collect();
    assert!(!arguments.is_empty());
    let changed = [
        "components/budgets",
        "components/delete-evicted",
        "components/eviction-api",
        "components/taint",
        "components/uninstall",
    ];
    for component in changed {
        let text = read(&format!("{component}/kustomization.yaml"));
        let added = text.split("containers/1/args/-, value: ").nth(1);
        let added = added.unwrap_or_default();
        let added = added.lines().next().unwrap_or_default();
        let added = added.trim_end_matches('}').trim_matches('"');
        assert!(added.starts_with("--"), "{component}: {added}");
        arguments.push(added.to_owned());
    }
    let mut accepted = program();
    accepted
        .env("NODE_NAME", "n")
        .args(&arguments)
        .arg("--help");
    let output = accepted.output().expect("it is built");
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    let deployment = read("components/arbitrator/deployment.yaml");
    let lines = deployment.lines().map(str::trim);
    let arguments = lines.filter_map(|line| line.strip_prefix("- --"));
    let arguments: Vec<String> = arguments.map(|argument| format!("--{argument}")).collect();
    assert!(!arguments.is_empty());
    let mut accepted = program();
    accepted.arg("arbitrate").args(&arguments).arg("--help");
    let output = accepted.output().expect("it is built");
    let help = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    assert!(
        help.contains("Examples:") && help.contains("Exit status: 0"),
        "{help}"
    );
}
