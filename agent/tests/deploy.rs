//! The arguments in deploy/ are the program's own: a manifest with an option that is gone would start nothing.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn yaml(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy")
        .join(path);
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// All arguments are read before `--help` is answered, and one that is wrong is told instead.
fn is_accepted(args: &[String]) {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll-agent"))
        .args(args)
        .arg("--help")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
}

#[test]
fn the_agent_takes_the_arguments_of_the_daemonset_and_of_the_components() {
    let daemonset = yaml("base/daemonset.yaml");
    let agent = &daemonset["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(agent["command"], serde_json::json!(["/plimsoll-agent"]));
    let mut args: Vec<String> = agent["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap().to_owned())
        .collect();
    assert!(args.iter().any(|arg| arg == "--kubernetes"), "{args:?}");
    is_accepted(&args);
    for component in ["budgets", "prometheus"] {
        let component = yaml(&format!("components/{component}/kustomization.yaml"));
        let patch = component["patches"][0]["patch"].as_str().unwrap();
        let patch: Value = serde_saphyr::from_str(patch).unwrap();
        let added = patch.as_array().unwrap().iter();
        let added = added.filter(|it| {
            let path = it["path"].as_str().unwrap();
            path.ends_with("/containers/0/args/-")
        });
        for arg in added {
            let arg = arg["value"].as_str().unwrap();
            args.push(arg.replace("$(HOST_IP)", "192.0.2.1"));
        }
    }
    assert!(args.iter().any(|arg| arg == "--respect-disruption-budgets"));
    assert!(args.iter().any(|arg| arg.starts_with("--listen=")));
    is_accepted(&args);
}

#[test]
fn an_unknown_argument_is_refused_before_help() {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll-agent"))
        .args(["--no-such-option", "--help"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}
