//! What `deploy/` has, given to a real API server, which judges every object and stores none.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

/// Needs resources of the Prometheus Operator, which is not installed here.
const FOREIGN: &str = "prometheus";
/// In the place of `runtime`: a node has one.
const ALTERNATIVES: [&str; 3] = ["runtime-crio", "runtime-k3s", "runtime-rke2"];

/// What `cargo xtask deploy-check` fetches, by its name.
pub(super) fn tool(name: &str) -> Option<PathBuf> {
    let folders = std::fs::read_dir(server::cache()?.join("kubernetes")).ok()?;
    let programs = folders.filter_map(|folder| Some(folder.ok()?.path().join(name).join(name)));
    programs.filter(|program| program.is_file()).max()
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Scenario 14.
#[test]
fn every_component_is_taken_by_the_api_server() {
    run(async {
        let Some(kubectl) = tool("kubectl") else {
            return support::notes::left_out("needs kubectl: cargo xtask deploy-check fetches it");
        };
        let Some(server) = server::shared().await else {
            return;
        };
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        let namespace = json!({"metadata": {"name": "plimsoll"}});
        server.create("/api/v1/namespaces", &namespace).await;
        let mut components: Vec<String> = std::fs::read_dir(deploy.join("components"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != FOREIGN && name != "before-1.30")
            .collect();
        components.sort();
        let groups = server
            .get("/apis/admissionregistration.k8s.io")
            .await
            .unwrap();
        let is_older = !server
            .get("/apis/admissionregistration.k8s.io/v1")
            .await
            .is_some_and(|served| served.to_string().contains("validatingadmissionpolicies"));
        assert!(groups["versions"].is_array(), "{groups}");
        // Each alone, and all together; Kustomize takes relative paths alone.
        let is_one = |name: &&String| !ALTERNATIVES.contains(&name.as_str());
        let all = components.iter().filter(is_one).cloned().collect();
        let sets = std::iter::once(Vec::new())
            .chain(components.into_iter().map(|one| vec![one]))
            .chain([all]);
        let (mut sets_taken, mut objects) = (0, BTreeSet::new());
        for mut set in sets {
            if is_older {
                set.push("before-1.30".to_owned());
            }
            let folder = tempfile::tempdir_in(&deploy).unwrap();
            let list: String = set
                .iter()
                .map(|name| format!("- ../components/{name}\n"))
                .collect();
            let text = format!(
                "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../base]\ncomponents:\n{list}"
            );
            std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
            let built = output(Command::new(&kubectl).arg("kustomize").arg(folder.path()));
            let file = folder.path().join("objects.yaml");
            std::fs::write(&file, &built).unwrap();
            let taken = output(
                Command::new(&kubectl)
                    .arg("--kubeconfig")
                    .arg(server.path("admin.conf"))
                    .args([
                        "apply",
                        "--dry-run=server",
                        "--validate=false",
                        "--output=name",
                    ])
                    .arg("--filename")
                    .arg(&file),
            );
            let wanted = built.matches("\nkind: ").count();
            let names: Vec<&str> = taken.lines().collect();
            assert!(names.len() + 1 >= wanted && wanted > 5, "{set:?}: {taken}");
            objects.extend(names.into_iter().map(str::to_owned));
            sets_taken += 1;
        }
        support::notes::note(format_args!(
            "the API server took {} objects of deploy/ in {sets_taken} sets of components",
            objects.len()
        ));
    });
}
