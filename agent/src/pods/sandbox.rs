//! Which of a pod's cgroups is its sandbox's.
//!
//! **Problem.** Beside a kubelet an eviction kills the containers and not the sandbox: without it the kubelet makes a new one, and containerd
//! keeps a process for each that was killed. Only the runtime knows which cgroup it is, and a container that was just made looks the same.
//! **Approach.** The API lists the ids of containers, never the sandbox's. While all containers of a pod run and have their cgroups, the one
//! cgroup more is the sandbox's; it keeps that id while containers come and go. Otherwise it is not known.

use plimsoll_core::kube::pod::Pod;

use crate::pods::names::container_id;

/// Of the directories in a pod's cgroup, the sandbox's. `known`: which it was before.
pub fn sandbox<'names>(
    pod: &Pod,
    names: &[&'names str],
    known: Option<&str>,
) -> Option<&'names str> {
    let is_listed = |id: &str| {
        pod.status
            .containers()
            .any(|status| status.id() == Some(id))
    };
    let is_unlisted = |name: &&&str| container_id(name).is_some_and(|id| !is_listed(id));
    let mut unlisted = names.iter().filter(is_unlisted).copied();
    if let Some(known) = known
        && let Some(name) = unlisted.clone().find(|name| *name == known)
    {
        return Some(name);
    }
    let (first, second) = (unlisted.next(), unlisted.next());
    first.filter(|_| second.is_none() && is_steady(pod, names))
}

/// Whether every container that is to run does, so that none is about to come.
fn is_steady(pod: &Pod, names: &[&str]) -> bool {
    let runs = |name: &str| {
        let status = pod.status.containers().find(|status| status.name == name);
        let id = status
            .filter(|status| status.state.running.is_some())
            .and_then(|status| status.id());
        id.is_some_and(|id| names.iter().any(|name| container_id(name) == Some(id)))
    };
    let init = &pod.spec.init_containers;
    let is_over = |name: &str| {
        let status = pod.status.containers().find(|status| status.name == name);
        status.is_some_and(|status| status.state.running.is_none())
    };
    !pod.spec.containers.is_empty()
        && pod.spec.containers.iter().all(|one| runs(&one.name))
        && init.iter().all(|one| match one.is_sidecar() {
            true => runs(&one.name),
            false => is_over(&one.name),
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn name(digit: char) -> String {
        let id: String = std::iter::repeat_n(digit, 64).collect();
        format!("cri-containerd-{id}.scope")
    }

    fn status(container: &str, digit: char, is_running: bool) -> Value {
        let id: String = std::iter::repeat_n(digit, 64).collect();
        let state = if is_running {
            json!({"running": {"startedAt": "2026-11-23T00:00:00Z"}})
        } else {
            json!({"waiting": {"reason": "CrashLoopBackOff"}})
        };
        json!({"name": container, "containerID": format!("containerd://{id}"), "state": state})
    }

    fn pod(statuses: &[Value], init: &[Value]) -> Pod {
        let pod = json!({
            "spec": {
                "containers": [{"name": "a"}, {"name": "b"}],
                "initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
            },
            "status": {"containerStatuses": statuses, "initContainerStatuses": init},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn the_sandbox_is_the_one_that_is_not_listed_while_all_run() {
        let init = [status("setup", '8', false), status("proxy", '3', true)];
        let both = pod(&[status("a", '1', true), status("b", '2', true)], &init);
        let b_waits = pod(&[status("a", '1', true), status("b", '2', false)], &init);
        let no_sidecar = pod(
            &[status("a", '1', true), status("b", '2', true)],
            &[status("setup", '8', false), status("proxy", '3', false)],
        );
        let no_status = pod(&[], &[]);
        let digits = |text: &str| text.chars().map(name).collect::<Vec<_>>();
        // Cgroups that are there, what was known, the answer.
        let cases: [(&Pod, &str, Option<char>, Option<char>); 11] = [
            (&both, "0123", None, Some('0')),
            (&both, "0123", Some('0'), Some('0')),
            // Without a sandbox (CRI-O without an infra container).
            (&both, "123", None, None),
            // A container that is not listed yet.
            (&both, "01234", None, None),
            (&both, "01234", Some('0'), Some('0')),
            // One was started again: its old id is listed.
            (&both, "0134", None, None),
            (&both, "134", None, None),
            (&both, "0134", Some('0'), Some('0')),
            // One is about to be started again.
            (&b_waits, "0134", None, None),
            (&no_sidecar, "012", None, None),
            (&no_status, "0", None, None),
        ];
        for (pod, there, known, expected) in cases {
            let names = digits(there);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let known = known.map(name);
            let found = sandbox(pod, &names, known.as_deref());
            assert_eq!(found, expected.map(name).as_deref(), "{there} {known:?}");
        }
        // What is listed is no sandbox, whatever was believed.
        let names = digits("123");
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(sandbox(&both, &names, Some(&name('1'))), None);
    }
}
