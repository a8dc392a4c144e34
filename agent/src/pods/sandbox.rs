//! Which of a pod's cgroups is its sandbox's.
//!
//! **Problem.** Beside a kubelet an eviction kills the containers and not the sandbox: without it the kubelet makes a
//! new one, and containerd keeps a process for each that was killed. Only the runtime knows which cgroup it is, and a
//! container that was just made looks the same. **Approach.** It keeps the id that it was once found to have, while
//! containers come and go. It is found in two ways:
//! 1. The API lists the ids of containers, never the sandbox's. While all containers of a pod run and have their
//!    cgroups, the one cgroup more is the sandbox's.
//! 2. Before the API lists them: containerd and Docker make the sandbox's cgroup before any other of the pod, and the
//!    kernel numbers cgroups as they come (`kernfs_new_node`: an inode number that wraps after 2^31 counts up a
//!    generation, which is the upper half of the id). So it is the oldest of two or more. The kubelet ends all
//!    containers of a sandbox that has died; until it does (a second) the oldest can be a container, which then
//!    outlives an eviction until the API lists it. CRI-O makes no sandbox by default, so that the oldest may be a
//!    container for good: there this is not believed.

use plimsoll_core::kube::pod::Pod;

use crate::pods::names::{CRIO, container_id};

/// Of the cgroups in a pod's cgroup, by name and id, the sandbox's. `known`: which it was before.
pub fn sandbox<'names>(
    pod: &Pod,
    cgroups: &[(&'names str, u64)],
    known: Option<&str>,
) -> Option<&'names str> {
    let is_listed = |name: &str| {
        let mut statuses = pod.status.containers();
        statuses.any(|status| status.id().is_some() && status.id() == container_id(name))
    };
    let with_id = cgroups
        .iter()
        .filter(|(name, _)| container_id(name).is_some());
    let unlisted = with_id.clone().filter(|(name, _)| !is_listed(name));
    let mut unlisted = unlisted.map(|(name, _)| *name);
    if let Some(known) = known
        && let Some(name) = unlisted.clone().find(|name| *name == known)
    {
        return Some(name);
    }
    let (first, second) = (unlisted.next(), unlisted.next());
    if let Some(first) = first
        && second.is_none()
        && is_steady(pod, cgroups)
    {
        return Some(first);
    }
    let is_several = with_id.clone().nth(1).is_some();
    let is_crio = with_id.clone().any(|(name, _)| name.starts_with(CRIO));
    let (oldest, _) = with_id.min_by_key(|(_, id)| *id)?;
    (is_several && !is_crio && !is_listed(oldest)).then_some(*oldest)
}

/// Whether every container that is to run does, so that none is about to come.
fn is_steady(pod: &Pod, cgroups: &[(&str, u64)]) -> bool {
    let runs = |name: &str| {
        let status = pod.status.containers().find(|status| status.name == name);
        let id = status
            .filter(|status| status.state.running.is_some())
            .and_then(|status| status.id());
        let is_there = |id| {
            cgroups
                .iter()
                .any(|(name, _)| container_id(name) == Some(id))
        };
        id.is_some_and(is_there)
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
        // Cgroups that are there with the oldest first, what was known, the answer.
        let cases: [(&Pod, &str, Option<char>, Option<char>); 15] = [
            (&both, "0123", None, Some('0')),
            (&both, "0123", Some('0'), Some('0')),
            // Older than the sandbox: its containers are not ended yet.
            (&both, "1023", None, Some('0')),
            // Without a sandbox.
            (&both, "123", None, None),
            // A container that is not listed yet.
            (&both, "01234", None, Some('0')),
            (&both, "10234", None, None),
            (&both, "01234", Some('0'), Some('0')),
            // One was started again: its old id is listed.
            (&both, "0134", None, Some('0')),
            (&both, "134", None, None),
            (&both, "0134", Some('0'), Some('0')),
            // One is about to be started again.
            (&b_waits, "0134", None, Some('0')),
            (&no_sidecar, "012", None, Some('0')),
            // The API lists nothing yet.
            (&no_status, "01", None, Some('0')),
            (&no_status, "10", None, Some('1')),
            (&no_status, "0", None, None),
        ];
        let answer = |pod: &Pod, names: &[String], known: Option<&str>| {
            let cgroups: Vec<(&str, u64)> = names.iter().map(String::as_str).zip(7..).collect();
            sandbox(pod, &cgroups, known).map(str::to_owned)
        };
        for (pod, there, known, expected) in cases {
            let known = known.map(name);
            let found = answer(pod, &digits(there), known.as_deref());
            assert_eq!(found, expected.map(name), "{there} {known:?}");
        }
        // What is listed is no sandbox, whatever was believed.
        assert_eq!(answer(&both, &digits("123"), Some(&name('1'))), None);
        // CRI-O: the oldest may be a container.
        let crio = |text: &str| -> Vec<String> {
            let names = digits(text).into_iter();
            names
                .map(|name| name.replace("cri-containerd-", "crio-"))
                .collect()
        };
        assert_eq!(answer(&no_status, &crio("01"), None), None);
        assert_eq!(
            answer(&both, &crio("0123"), None),
            crio("0").into_iter().next()
        );
    }
}
