//! Which evicted pods are deleted after a while: thousands of them stay in etcd otherwise (k/k#55051).

use std::collections::BTreeMap;

use plimsoll_core::kube::pod::Phase;

use crate::pod::SeenPod;
use crate::report::policy::EvictedPods;

/// The evicted pods that are beyond what is kept, the oldest first. Only pods that carry our annotation or label, have
/// ended, and of which `is_settled` says that nothing more is to be reported. A pod without an owner stands for itself:
/// it goes when its time is over.
pub fn surplus<'a>(
    pods: impl Iterator<Item = &'a SeenPod>,
    is_settled: impl Fn(&SeenPod) -> bool,
    kept: EvictedPods,
    unix_ms: u64,
) -> Vec<&'a SeenPod> {
    let EvictedPods::KeepSome { per_owner, for_ms } = kept else {
        return Vec::new();
    };
    let mut by_owner: BTreeMap<(&str, &str), Vec<(u64, &SeenPod)>> = BTreeMap::new();
    for pod in pods {
        if pod.phase != Phase::Failed || pod.is_deleting || !is_settled(pod) {
            continue;
        }
        let Some(evicted_unix_ms) = pod.evicted_unix_ms() else {
            continue;
        };
        let owner = pod.owner.as_deref().unwrap_or(pod.uid.as_str());
        let same = by_owner.entry((&pod.namespace, owner)).or_default();
        same.push((evicted_unix_ms, pod));
    }
    let mut beyond = Vec::new();
    for mut same in by_owner.into_values() {
        same.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.uid.cmp(&b.1.uid)));
        let count = usize::try_from(per_owner).unwrap_or(usize::MAX);
        let old = |(at, (evicted_unix_ms, _)): &(usize, &(u64, &SeenPod))| {
            *at >= count || unix_ms.saturating_sub(*evicted_unix_ms) >= for_ms
        };
        beyond.extend(same.iter().enumerate().filter(old).map(|(_, pod)| *pod));
    }
    beyond.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.uid.cmp(&b.1.uid)));
    beyond.into_iter().map(|(_, pod)| pod).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::rfc3339_ms;
    use crate::pod::tests::api_pod;

    const HOUR_MS: u64 = 3_600_000;
    const NOW_MS: u64 = 1_795_341_600_000;

    fn pod(uid: &str, owner: Option<&str>, age_ms: u64, phase: &str, ours: bool) -> SeenPod {
        let mut pod = api_pod(uid, "1");
        pod["status"]["phase"] = json!(phase);
        pod["metadata"]["ownerReferences"] = match owner {
            Some(owner) => json!([{"uid": owner, "controller": true}]),
            None => json!(null),
        };
        if ours {
            pod["metadata"]["annotations"]["plimsoll.dev/evicted"] =
                json!(format!("{} x", rfc3339_ms(NOW_MS - age_ms)));
        }
        SeenPod::read(pod.to_string().as_bytes(), "node-1", false).unwrap()
    }

    #[test]
    fn the_newest_of_each_owner_stay_for_a_while() {
        let mut told_by_label = pod("e1", Some("e"), 0, "Failed", false);
        told_by_label.evicted[1] = Some(rfc3339_ms(NOW_MS - 2 * HOUR_MS).into());
        let pods = [
            pod("a1", Some("a"), 5_000, "Failed", true),
            pod("a2", Some("a"), 4_000, "Failed", true),
            pod("a3", Some("a"), 3_000, "Failed", true),
            pod("a4", Some("a"), 2_000, "Failed", true),
            pod("b1", Some("b"), 2 * HOUR_MS, "Failed", true),
            pod("c1", None, 9_000, "Failed", true),
            pod("c2", None, 9_000, "Failed", true),
            // Another reason, alive again, or still to be reported: not ours to delete.
            pod("d1", Some("d"), 2 * HOUR_MS, "Failed", false),
            pod("d2", Some("d"), 2 * HOUR_MS, "Running", true),
            pod("unsettled", Some("d"), 2 * HOUR_MS, "Failed", true),
            told_by_label,
        ];
        let names = |kept| -> Vec<String> {
            let settled = |pod: &SeenPod| pod.uid.as_str() != "unsettled";
            surplus(pods.iter(), settled, kept, NOW_MS)
                .iter()
                .map(|pod| pod.uid.to_string())
                .collect()
        };
        assert!(names(EvictedPods::Keep).is_empty());
        assert_eq!(
            names(EvictedPods::KeepSome {
                per_owner: 2,
                for_ms: HOUR_MS
            }),
            ["b1", "e1", "a1", "a2"]
        );
        let all = names(EvictedPods::KeepSome {
            per_owner: 0,
            for_ms: HOUR_MS,
        });
        assert_eq!(all, ["b1", "e1", "c1", "c2", "a1", "a2", "a3", "a4"]);
    }
}
