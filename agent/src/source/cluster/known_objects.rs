//! What the client has said of pods and budgets, as far as a change has to be compared with it; and the bounds on all
//! of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_core::kube::budget::DisruptionBudget;
use plimsoll_core::kube::pod::{CONFIG_HASH_ANNOTATION, Pod, UNNAMED_ANNOTATION};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::Overused;
use plimsoll_core::protocol::cluster_link::{
    BUDGETS_MAX, EXCESS_MAX, NAME_BYTES_MAX, OVERUSED_FOR_MS, OVERUSED_MAX, OverusedNamespace,
    PODS_BYTES_MAX, PODS_MAX, ToAgent,
};

use super::{ClusterChange, ClusterPod};

/// Things by a key, with the bytes of their frames.
#[derive(Debug)]
struct Shelf<K> {
    sizes: BTreeMap<K, usize>,
    bytes: usize,
}

impl<K> Default for Shelf<K> {
    fn default() -> Self {
        Self {
            sizes: BTreeMap::new(),
            bytes: 0,
        }
    }
}

impl<K: Ord> Shelf<K> {
    fn put(&mut self, key: K, bytes: usize, count_max: usize) -> Result<(), String> {
        let before = self.sizes.get(&key).copied();
        let total = self.bytes - before.unwrap_or(0) + bytes;
        if before.is_none() && self.sizes.len() >= count_max {
            return Err(format!("more than {count_max} of a kind"));
        }
        if total > PODS_BYTES_MAX {
            return Err(format!("more than {PODS_BYTES_MAX} bytes of a kind"));
        }
        self.bytes = total;
        self.sizes.insert(key, bytes);
        Ok(())
    }

    fn take(&mut self, key: &K) -> bool {
        let bytes = self.sizes.remove(key);
        self.bytes -= bytes.unwrap_or(0);
        bytes.is_some()
    }
}

/// The pods, by the UIDs of their cgroups.
#[derive(Debug, Default)]
struct Pods {
    shelf: Shelf<PodUid>,
    /// The UIDs of cgroups by those of the API, of static pods: as many as there are pods, at most.
    mirrors: BTreeMap<PodUid, PodUid>,
}

impl Pods {
    /// Gives a pod the UID of its cgroup, which it keeps: of the image of a static pod, the hash of that. The first
    /// image stays until it is gone. A pod that only says that it is one is nobody's image, and keeps its own UID.
    fn name(&self, pod: &mut Pod, of_api: &PodUid) -> PodUid {
        let is_known = |uid: &PodUid| self.shelf.sizes.contains_key(uid);
        let hash = pod.metadata.annotations.get(CONFIG_HASH_ANNOTATION);
        let hash = hash.filter(|_| pod.is_mirror() && !is_known(of_api));
        let hash = hash.map(|hash| PodUid::from(hash.as_str()));
        let new = hash.filter(|uid| uid.is_static() && !is_known(uid));
        let Some(uid) = self.mirrors.get(of_api).cloned().or(new) else {
            pod.clear_static();
            return of_api.clone();
        };
        pod.metadata.uid = Some(uid.clone());
        uid
    }

    fn put(&mut self, of_api: PodUid, uid: &PodUid, bytes: usize) -> Result<(), String> {
        self.shelf.put(uid.clone(), bytes, PODS_MAX)?;
        if of_api != *uid {
            self.mirrors.insert(of_api, uid.clone());
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Listing {
    pods: Pods,
    budgets: Shelf<Arc<str>>,
    found: ClusterChange,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct KnownObjects {
    pods: Pods,
    budgets: Shelf<Arc<str>>,
    /// A list that is not complete.
    listing: Option<Box<Listing>>,
}

impl KnownObjects {
    /// The UID of the cgroup.
    pub(super) fn uid(&self, of_api: &PodUid) -> PodUid {
        self.pods.mirrors.get(of_api).unwrap_or(of_api).clone()
    }

    /// The connection is gone: its list will never be complete.
    pub(super) fn forget_list(&mut self) {
        self.listing = None;
    }

    /// Takes in a message about pods or budgets of so many bytes. Returns what follows for the loop.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn take(
        &mut self,
        message: ToAgent,
        bytes: usize,
    ) -> Result<Option<ClusterChange>, String> {
        match message {
            ToAgent::List => {
                self.listing = Some(Box::default());
                Ok(None)
            }
            ToAgent::Listed => self.listed().map(Some),
            ToAgent::Pod { pod, is_leaving } => self.pod(*pod, is_leaving, bytes),
            ToAgent::Budget { budget } => self.budget(*budget, bytes),
            ToAgent::PodGone { uid } => {
                let uid = self.pods.mirrors.remove(&uid).unwrap_or(uid);
                if !self.pods.shelf.take(&uid) {
                    return Err("PodGone for a pod that is not known".to_owned());
                }
                Ok(Some(ClusterChange {
                    gone: vec![uid],
                    ..ClusterChange::default()
                }))
            }
            ToAgent::BudgetGone { namespace, name } => {
                let key: Arc<str> = format!("{namespace}/{name}").into();
                if !self.budgets.take(&key) {
                    return Err("BudgetGone for a budget that is not known".to_owned());
                }
                Ok(Some(ClusterChange {
                    budgets_gone: vec![key],
                    ..ClusterChange::default()
                }))
            }
            _ => Err("not about pods or budgets".to_owned()),
        }
    }

    fn pod(
        &mut self,
        mut pod: Pod,
        is_leaving: bool,
        bytes: usize,
    ) -> Result<Option<ClusterChange>, String> {
        let of_api = pod.metadata.uid.clone().ok_or("a pod without a UID")?;
        let namespace = pod.namespace();
        for name in [of_api.as_str(), &pod.metadata.name, namespace] {
            check(name)?;
        }
        pod.metadata.annotations.remove(UNNAMED_ANNOTATION);
        let pods = match &mut self.listing {
            Some(listing) => &mut listing.pods,
            None => &mut self.pods,
        };
        let uid = pods.name(&mut pod, &of_api);
        pods.put(of_api, &uid, bytes)?;
        let pod = Arc::new(pod.with_defaults());
        Ok(self.found(|change| change.pods.push(ClusterPod { pod, is_leaving })))
    }

    fn budget(
        &mut self,
        budget: DisruptionBudget,
        bytes: usize,
    ) -> Result<Option<ClusterChange>, String> {
        check(&budget.metadata.name)?;
        let key = budget.key();
        let budgets = match &mut self.listing {
            Some(listing) => &mut listing.budgets,
            None => &mut self.budgets,
        };
        budgets.put(key, bytes, BUDGETS_MAX)?;
        Ok(self.found(|change| change.budgets.push(Arc::new(budget))))
    }

    /// Into the list, or to the loop at once.
    fn found(&mut self, add: impl FnOnce(&mut ClusterChange)) -> Option<ClusterChange> {
        match &mut self.listing {
            Some(listing) => {
                add(&mut listing.found);
                None
            }
            None => {
                let mut change = ClusterChange::default();
                add(&mut change);
                Some(change)
            }
        }
    }

    fn listed(&mut self) -> Result<ClusterChange, String> {
        let listing = self.listing.take().ok_or("Listed without List")?;
        let Listing {
            pods,
            budgets,
            mut found,
        } = *listing;
        let gone = |uid: &&PodUid| !pods.shelf.sizes.contains_key(*uid);
        found.gone = self.pods.shelf.sizes.keys().filter(gone).cloned().collect();
        let gone = |key: &&Arc<str>| !budgets.sizes.contains_key(*key);
        found.budgets_gone = self.budgets.sizes.keys().filter(gone).cloned().collect();
        found.is_list = true;
        (self.pods, self.budgets) = (pods, budgets);
        Ok(found)
    }
}

/// A list of overused namespaces, as the engine takes it.
///
/// # Errors
/// Why it is refused: it is longer than any that is right, holds for longer, or has a namespace twice.
pub(super) fn overused(
    mut namespaces: Vec<OverusedNamespace>,
    valid_ms: u64,
    now_ns: u64,
) -> Result<Overused, String> {
    if namespaces.len() > OVERUSED_MAX {
        return Err(format!("more than {OVERUSED_MAX} overused namespaces"));
    }
    if valid_ms > OVERUSED_FOR_MS {
        return Err(format!(
            "a list of overused namespaces that holds for more than {OVERUSED_FOR_MS} ms"
        ));
    }
    for one in &namespaces {
        check(&one.namespace)?;
        if one.excess > EXCESS_MAX {
            return Err(format!("an excess of more than {EXCESS_MAX} thousandths"));
        }
    }
    namespaces.sort_unstable();
    if namespaces
        .windows(2)
        .any(|pair| pair[0].namespace == pair[1].namespace)
    {
        return Err("an overused namespace twice".to_owned());
    }
    Ok(Overused {
        until_ns: now_ns.saturating_add(valid_ms.saturating_mul(1_000_000)),
        namespaces,
    })
}

/// A name of the API, which may also name a directory.
fn check(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_right = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.starts_with('.')
        && name.bytes().all(is_plain);
    is_right
        .then_some(())
        .ok_or_else(|| "a UID or name that the API server would not give".to_owned())
}
