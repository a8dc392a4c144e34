//! Which container that has ended, or which image that no container uses, goes next when a disk is short.
//!
//! Rules: `detectImages` and `freeSpace` in pkg/kubelet/images/image_gc_manager.go, `evictContainers` in
//! pkg/kubelet/kuberuntime/kuberuntime_gc.go of Kubernetes 1.36. The image that was used last the longest ago goes
//! first, of images never used the one that was seen first. Pinned images stay, and images that came less than
//! [`IMAGE_AGE_MIN_NS`] ago: a container is about to be made of them. What was there at the first look counts as old.
//!
//! An image that a container has as a volume is in use (`handleImageVolumes`). The kubelet does not collect images
//! while it cannot read a container's mounts; nor is one removed here.
//!
//! Differences, on purpose: the kubelet removes *all* unused images, here it is one at a time, and the file system is
//! read between them ([`Targets`](super::freeing::Targets)). When an image was used last is also taken from the
//! times of its containers, so that the order outlives a restart of the agent. The newest container of each name stays
//! while its sandbox runs: the kubelet counts restarts by it, and knows by it that an init container is done.
//!
//! **A second remover.** The kubelet removes images and containers too, and no lock is shared with it. Everything is
//! listed anew before each removal; what is gone meanwhile is gone, which is no failure, and what the kubelet has freed
//! shows in the file system before the next one is chosen.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::decision::FreeSource;
use crate::protocol::runtime_link::{
    ContainerState, Inventory, Removal, RuntimeContainer, RuntimeImage,
};

/// An image that came more recently stays, nanoseconds (`imageMinimumGCAge`: 2 min).
pub const IMAGE_AGE_MIN_NS: u64 = 120_000_000_000;
/// A container that ended more recently stays, nanoseconds: the kubelet looks every second, and reports how it ended.
pub const CONTAINER_AGE_MIN_NS: u64 = 60_000_000_000;

/// What is known of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    /// 0: it was there at the first look.
    first_ns: u64,
    last_used_ns: Option<u64>,
}

/// When each image came, and when it was used last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageBook {
    images: BTreeMap<String, Seen>,
    has_looked: bool,
}

impl ImageBook {
    /// Takes note of a list. `now_ns`: CLOCK_MONOTONIC, nanoseconds.
    pub fn observe(&mut self, inventory: &Inventory, now_ns: u64) {
        let first_ns = if self.has_looked { now_ns } else { 0 };
        self.has_looked = true;
        let mut images = BTreeMap::new();
        for image in &inventory.images {
            let mut seen = self.images.get(&image.id).copied().unwrap_or(Seen {
                first_ns,
                last_used_ns: None,
            });
            let used_ns = users(inventory, image)
                .map(|container| used_ns(container, inventory.unix_ns, now_ns))
                .max();
            let mounted_ns = image.is_mounted.then_some(now_ns);
            seen.last_used_ns = seen.last_used_ns.max(used_ns).max(mounted_ns);
            images.insert(image.id.clone(), seen);
        }
        self.images = images;
    }

    /// When an image was used last, nanoseconds; `None`: never, as far as is known.
    pub fn last_used_ns(&self, image: &str) -> Option<u64> {
        self.images.get(image)?.last_used_ns
    }
}

fn users<'a>(
    inventory: &'a Inventory,
    image: &'a RuntimeImage,
) -> impl Iterator<Item = &'a RuntimeContainer> {
    let uses = |container: &&RuntimeContainer| {
        container
            .images
            .iter()
            .any(|reference| image.is_named(reference))
    };
    inventory.containers.iter().filter(uses)
}

/// Until when a container has used its image.
fn used_ns(container: &RuntimeContainer, unix_ns: u64, now_ns: u64) -> u64 {
    if container.state != ContainerState::Exited {
        return now_ns;
    }
    let ended_unix_ns = container
        .finished_unix_ns
        .unwrap_or(container.created_unix_ns);
    now_ns.saturating_sub(unix_ns.saturating_sub(ended_unix_ns))
}

/// What goes next of these sources; `None`: nothing may. `passed_over`: what could not be removed.
pub fn next(
    inventory: &Inventory,
    book: &ImageBook,
    sources: &[FreeSource],
    passed_over: &BTreeSet<Removal>,
    now_ns: u64,
) -> Option<Removal> {
    let may_go = |removal: &Removal| !passed_over.contains(removal);
    let containers = sources.contains(&FreeSource::EndedContainers);
    // With a container missing from the list, an image that it uses would seem unused. Of ended containers it can only
    // make one more seem the newest of its name, which stays.
    let is_whole = inventory.left_out == 0 && inventory.mounts_unread == 0;
    let images = sources.contains(&FreeSource::UnusedImages) && is_whole;
    ended_containers(inventory)
        .into_iter()
        .filter(|_| containers)
        .map(|container| Removal::Container(container.id.clone()))
        .find(may_go)
        .or_else(|| {
            unused_images(inventory, book, now_ns)
                .into_iter()
                .filter(|_| images)
                .map(|image| Removal::Image(image.id.clone()))
                .find(may_go)
        })
}

/// The containers that may go, the one that ended first before the others.
pub fn ended_containers(inventory: &Inventory) -> Vec<&RuntimeContainer> {
    let mut newest: BTreeMap<(&str, &str), &RuntimeContainer> = BTreeMap::new();
    for container in &inventory.containers {
        let of_name = newest
            .entry((&container.pod_uid, &container.name))
            .or_insert(container);
        if age_order(container) > age_order(of_name) {
            *of_name = container;
        }
    }
    let is_newest = |container: &RuntimeContainer| {
        let newest = newest.get(&(&*container.pod_uid, &*container.name));
        newest.is_some_and(|newest| newest.id == container.id)
    };
    let mut ended: Vec<(u64, &RuntimeContainer)> = inventory
        .containers
        .iter()
        .filter(|container| container.state == ContainerState::Exited)
        .filter(|container| !container.is_sandbox_ready || !is_newest(container))
        .filter_map(|container| Some((container.finished_unix_ns?, container)))
        .filter(|(finished, _)| inventory.unix_ns.saturating_sub(*finished) >= CONTAINER_AGE_MIN_NS)
        .collect();
    ended.sort_by_key(|(finished, container)| (*finished, &container.id));
    ended.into_iter().map(|(_, container)| container).collect()
}

fn age_order(container: &RuntimeContainer) -> (u64, &str) {
    (container.created_unix_ns, &container.id)
}

/// The images that may go, the one whose last use is the longest ago before the others.
pub fn unused_images<'a>(
    inventory: &'a Inventory,
    book: &ImageBook,
    now_ns: u64,
) -> Vec<&'a RuntimeImage> {
    let old = |image: &RuntimeImage| {
        let seen = book.images.get(&image.id)?;
        let age_ns = now_ns.saturating_sub(seen.first_ns);
        (seen.first_ns == 0 || age_ns >= IMAGE_AGE_MIN_NS)
            .then_some((seen.last_used_ns, seen.first_ns))
    };
    let mut images: Vec<(_, &RuntimeImage)> = inventory
        .images
        .iter()
        .filter(|image| !image.is_pinned && !image.is_mounted)
        .filter(|image| users(inventory, image).next().is_none())
        .filter_map(|image| Some((old(image)?, image)))
        .collect();
    images.sort_by_key(|(order, image)| (*order, &image.id));
    images.into_iter().map(|(_, image)| image).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::runtime_link::RuntimeDirectories;

    const S: u64 = 1_000_000_000;
    const UNIX_NS: u64 = 1_790_000_000 * S;

    fn image(id: &str, names: &[&str]) -> RuntimeImage {
        RuntimeImage {
            id: format!("sha256:{id}"),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            bytes: 1 << 20,
            is_pinned: false,
            is_mounted: false,
        }
    }

    /// `ended_s`: how long ago it ended.
    fn container(id: &str, image: &str, ended_s: Option<u64>) -> RuntimeContainer {
        RuntimeContainer {
            id: id.to_owned(),
            name: "app".to_owned(),
            pod: "p".to_owned(),
            namespace: "default".to_owned(),
            pod_uid: "u".to_owned(),
            sandbox: "s".to_owned(),
            is_sandbox_ready: true,
            state: match ended_s {
                Some(_) => ContainerState::Exited,
                None => ContainerState::Running,
            },
            created_unix_ns: UNIX_NS - 3600 * S - ended_s.unwrap_or(0) * S,
            finished_unix_ns: ended_s.map(|ago| UNIX_NS - ago * S),
            images: vec![image.to_owned()],
            writable_layer: None,
        }
    }

    fn inventory(images: Vec<RuntimeImage>, containers: Vec<RuntimeContainer>) -> Inventory {
        Inventory {
            containers,
            images,
            unix_ns: UNIX_NS,
            left_out: 0,
            images_left_out: 0,
            mounts_unread: 0,
            directories: RuntimeDirectories::default(),
        }
    }

    fn unused(inventory: &Inventory, book: &ImageBook, now_ns: u64) -> Vec<String> {
        let images = unused_images(inventory, book, now_ns);
        images.iter().map(|image| image.id.clone()).collect()
    }

    #[test]
    fn images_go_by_their_last_use_and_those_in_use_or_pinned_stay() {
        let mut pinned = image("1", &["pause:3.9"]);
        pinned.is_pinned = true;
        let images = vec![
            pinned,
            image("2", &["app:1"]),
            image("3", &["app:2", "app@sha256:aa"]),
            image("4", &["app:3"]),
            image("5", &["app:4"]),
            image("6", &["app:5"]),
        ];
        let mut book = ImageBook::default();
        // By tag, by digest, by id with and without the digest's name; also a container that has ended uses its image.
        let users = vec![
            container("a", "app:1", None),
            container("b", "app@sha256:aa", Some(10)),
            container("c", "4", None),
            container("d", "sha256:5", None),
        ];
        let all = inventory(images.clone(), users);
        book.observe(&all, 1000 * S);
        assert_eq!(unused(&all, &book, 1000 * S), ["sha256:6"]);
        // 4 was used after 3, 3 after the image that never was.
        let later = inventory(
            images,
            vec![container("a", "app:1", None), container("d", "5", None)],
        );
        book.observe(&later, 2000 * S);
        assert_eq!(
            unused(&later, &book, 2000 * S),
            ["sha256:6", "sha256:3", "sha256:4"]
        );
        assert_eq!(book.last_used_ns("sha256:3"), Some(990 * S));
    }

    #[test]
    fn an_image_that_has_just_come_stays_for_two_minutes_but_what_was_there_at_first_may_go() {
        let mut book = ImageBook::default();
        let first = inventory(vec![image("1", &[])], Vec::new());
        book.observe(&first, 5 * S);
        assert_eq!(unused(&first, &book, 5 * S), ["sha256:1"]);
        let both = inventory(vec![image("0", &[]), image("1", &[])], Vec::new());
        book.observe(&both, 10 * S);
        assert_eq!(unused(&both, &book, 129 * S), ["sha256:1"]);
        assert_eq!(unused(&both, &book, 130 * S), ["sha256:1", "sha256:0"]);
        // One that is gone and comes again is new.
        book.observe(&first, 140 * S);
        book.observe(&both, 150 * S);
        assert_eq!(unused(&both, &book, 260 * S), ["sha256:1"]);
    }

    #[test]
    fn dead_containers_go_but_for_the_newest_of_each_name_in_a_sandbox_that_runs() {
        let mut other_pod = container("e", "x", Some(500));
        other_pod.pod_uid = "v".to_owned();
        other_pod.is_sandbox_ready = false;
        let mut silent = container("f", "x", Some(900));
        silent.finished_unix_ns = None;
        let all = inventory(
            Vec::new(),
            vec![
                container("a", "x", Some(300)),
                container("b", "x", Some(600)),
                container("c", "x", Some(61)),
                container("d", "x", Some(59)),
                other_pod,
                silent,
            ],
        );
        let ids: Vec<&str> = ended_containers(&all).iter().map(|one| &*one.id).collect();
        assert_eq!(ids, ["b", "e", "a", "c"]);
        // While one of the name runs, each dead one may go.
        let running = inventory(
            Vec::new(),
            vec![container("a", "x", Some(300)), container("b", "x", None)],
        );
        assert_eq!(ended_containers(&running).len(), 1);
        let alone = inventory(Vec::new(), vec![container("a", "x", Some(300))]);
        assert_eq!(ended_containers(&alone).len(), 0);
    }

    #[test]
    fn an_image_that_is_mounted_stays_and_all_do_while_it_is_not_known_which_are() {
        use FreeSource::{EndedContainers, UnusedImages};
        let mut all = inventory(
            vec![image("1", &[]), image("2", &[])],
            vec![container("a", "x", Some(300)), container("b", "y", None)],
        );
        all.images[0].is_mounted = true;
        let mut book = ImageBook::default();
        book.observe(&all, 0);
        assert_eq!(unused(&all, &book, 0), ["sha256:2"]);
        // Its last use was when it was last seen mounted: it goes after the other.
        book.observe(&all, 5 * S);
        all.images[0].is_mounted = false;
        assert_eq!(unused(&all, &book, 6 * S), ["sha256:2", "sha256:1"]);
        all.mounts_unread = 1;
        let none = BTreeSet::new();
        let next = |sources: &[FreeSource]| next(&all, &book, sources, &none, 0);
        let dead = Some(Removal::Container("a".to_owned()));
        assert_eq!(next(&[EndedContainers, UnusedImages]), dead);
        assert_eq!(next(&[UnusedImages]), None);
    }

    #[test]
    fn containers_before_images_and_nothing_of_an_incomplete_list() {
        use FreeSource::{EndedContainers, EndedPods, UnusedImages};
        let both = [EndedContainers, UnusedImages];
        let mut all = inventory(
            vec![image("1", &["x"]), image("2", &[])],
            vec![container("a", "x", Some(300)), container("b", "y", None)],
        );
        let mut book = ImageBook::default();
        book.observe(&all, 0);
        let none = BTreeSet::new();
        let next =
            |inventory: &Inventory, sources: &[FreeSource], passed_over: &BTreeSet<Removal>| {
                next(inventory, &book, sources, passed_over, 0)
            };
        let one = |removal: &Removal| BTreeSet::from([removal.clone()]);
        let (dead, unused) = (
            Removal::Container("a".to_owned()),
            Removal::Image("sha256:2".to_owned()),
        );
        assert_eq!(next(&all, &both, &none), Some(dead.clone()));
        assert_eq!(next(&all, &[UnusedImages], &none), Some(unused.clone()));
        assert_eq!(next(&all, &[EndedPods], &none), None);
        assert_eq!(next(&all, &both, &one(&dead)), Some(unused.clone()));
        let all_of_it = BTreeSet::from([dead.clone(), unused]);
        assert_eq!(next(&all, &both, &all_of_it), None);
        // An image that is missing is one that is not removed.
        all.images_left_out = 1;
        assert!(next(&all, &both, &none).is_some());
        // A container that is missing may use any image, and is no reason to keep one that has ended.
        all.left_out = 1;
        assert_eq!(next(&all, &both, &none), Some(dead.clone()));
        assert_eq!(next(&all, &both, &one(&dead)), None);
    }
}
