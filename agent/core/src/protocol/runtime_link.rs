//! What the agent and `plimsoll-runtime` say to each other, and what a container runtime has on a node.
//!
//! **Problem.** The runtime's answers come from a large program over a socket: late, cut off, too large or not at all.
//! The agent must stay small, locked in memory, and wait for none of it. **Approach.** `plimsoll-runtime` alone speaks
//! gRPC. It sends what it has read in frames of bounded length ([`framing`](crate::protocol::framing)). It decides
//! nothing and remembers nothing: it may die at any time, and the next one is asked again.
//!
//! `plimsoll-runtime nri` is a second process of the same program: there the runtime asks, and waits for the answer. So
//! all answers are sent ahead ([`ToNri`]).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::protocol::framing::Framing;

/// The version of this protocol. A peer with another one is sent away.
pub const PROTOCOL: u32 = 6;
/// Of all frames. The largest container has a fraction of these values.
pub const FRAMING: Framing = Framing {
    bytes_max: 64 << 10,
    values_max: 2048,
};
/// Containers of one list: 110 pods with eight each, several times.
pub const CONTAINERS_MAX: usize = 8192;
/// Images of one list.
pub const IMAGES_MAX: usize = 4096;
/// Bytes of one text (a name, an id): more than any reference of an image has (`distribution/reference`: 255 for the
/// name, and a digest).
pub const TEXT_BYTES_MAX: usize = 1024;
/// Names of one image.
pub const NAMES_MAX: usize = 32;
/// Where runtimes listen, in the order in which they are looked for.
pub const RUNTIME_SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
];
/// Where runtimes take plugins, unless configured otherwise (`DefaultSocketPath` in containerd/nri).
pub const NRI_SOCKET: &str = "/var/run/nri/nri.sock";
/// Pods of which `plimsoll-runtime nri` knows something at one time.
pub const ANSWERED_PODS_MAX: usize = 2048;

/// A frame from the agent to `plimsoll-runtime`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToRuntime {
    /// Asks for all containers and images; [`FromRuntime::Listed`] or [`FromRuntime::Failed`] ends the answer.
    List {
        /// Comes back with the answer.
        number: u64,
    },
    /// Asks where the runtime keeps what it has, and nothing else: [`FromRuntime::Listed`] or [`FromRuntime::Failed`]
    /// answers.
    Directories {
        /// Comes back with the answer.
        number: u64,
    },
    /// Removes something; [`FromRuntime::Removed`] or [`FromRuntime::Failed`] answers.
    Remove {
        /// Comes back with the answer.
        number: u64,
        /// What.
        removal: Removal,
    },
}

/// A frame from `plimsoll-runtime` to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromRuntime {
    /// The first frame.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
    },
    /// A container of the list that is under way.
    Container {
        /// The container.
        container: Box<RuntimeContainer>,
    },
    /// An image of the list that is under way.
    Image {
        /// The image.
        image: Box<RuntimeImage>,
    },
    /// The list is complete.
    Listed {
        /// Of the request.
        number: u64,
        /// The wall clock when it was read, nanoseconds since 1970.
        unix_ns: u64,
        /// Containers that are missing: too many, without an id, or with a text that is too long.
        left_out: u64,
        /// Images that are missing: too many, or without an id.
        images_left_out: u64,
        /// Containers of which it is not known which images are mounted in them.
        mounts_unread: u64,
        /// Where the runtime keeps what it has.
        directories: RuntimeDirectories,
    },
    /// It has been removed, or was gone already.
    Removed {
        /// Of the request.
        number: u64,
    },
    /// The request could not be carried out.
    Failed {
        /// Of the request.
        number: u64,
        /// Why, for people.
        why: String,
        /// It was not answered in time, and may still be carried out.
        is_late: bool,
    },
}

/// Directories on the file systems of a container runtime, as it sees them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeDirectories {
    /// For images; `None`: it does not say.
    pub images: Option<String>,
    /// For writable layers; `None`: where the images are.
    pub containers: Option<String>,
}

/// Something that can be removed without ending a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Removal {
    /// A container that has ended, by its id.
    Container(String),
    /// An image that no container uses, by its id.
    Image(String),
}

/// What a container does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerState {
    /// Made, not started.
    Created,
    /// Runs.
    Running,
    /// Has ended.
    Exited,
    /// The runtime does not know.
    Unknown,
}

impl ContainerState {
    /// In one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Unknown => "unknown",
        }
    }
}

/// A container of a pod, as the runtime has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeContainer {
    /// Its id.
    pub id: String,
    /// The container's name in its pod (`metadata.name`).
    pub name: String,
    /// Of the pod.
    pub pod: String,
    /// Of the pod.
    pub namespace: String,
    /// Of the pod.
    pub pod_uid: String,
    /// Id of the sandbox that it is in.
    pub sandbox: String,
    /// Whether that sandbox runs (`SANDBOX_READY`).
    pub is_sandbox_ready: bool,
    /// What it does.
    pub state: ContainerState,
    /// When it was made, nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// When it ended, nanoseconds since 1970; `None` if it has not, or the runtime does not say.
    pub finished_unix_ns: Option<u64>,
    /// Every way in which it names its image: ids, tags, digests.
    pub images: Vec<String>,
    /// Its writable layer, by the runtime's own figures.
    pub writable_layer: Option<LayerUse>,
}

/// What a writable layer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LayerUse {
    /// Bytes.
    pub bytes: Option<u64>,
    /// Inodes.
    pub inodes: Option<u64>,
}

/// An image on the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeImage {
    /// Its id.
    pub id: String,
    /// Tags and digests, as the runtime writes them.
    pub names: Vec<String>,
    /// What the runtime says that it takes, bytes. Layers that images share count for each.
    pub bytes: u64,
    /// The runtime wants it to stay, or makes sandboxes of it.
    pub is_pinned: bool,
    /// A container has it as a volume.
    pub is_mounted: bool,
}

impl RuntimeImage {
    /// Whether a container that names its image so has this one.
    pub fn is_named(&self, reference: &str) -> bool {
        bare(&self.id) == bare(reference) || self.names.iter().any(|name| name == reference)
    }

    /// What people call it.
    pub fn name(&self) -> &str {
        self.names.first().unwrap_or(&self.id)
    }
}

/// An id without the name of its digest: runtimes give both forms.
pub fn bare(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}

/// What the runtime has, at one time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Inventory {
    /// All containers of pods, without sandboxes.
    pub containers: Vec<RuntimeContainer>,
    /// All images.
    pub images: Vec<RuntimeImage>,
    /// The wall clock when it was read, nanoseconds since 1970.
    pub unix_ns: u64,
    /// Containers that are missing. While there are any, nothing is removed: an image could be theirs.
    pub left_out: u64,
    /// Images that are missing.
    pub images_left_out: u64,
    /// Containers of which it is not known which images are mounted in them. While there are any, no image is removed.
    pub mounts_unread: u64,
    /// Where the runtime keeps what it has.
    pub directories: RuntimeDirectories,
}

/// A frame from the agent to `plimsoll-runtime nri`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToNri {
    /// What the runtime is answered when it makes a container of this pod. Takes the place of what was said of the pod
    /// before.
    Pod {
        /// The pod's UID, as its cgroup has it.
        uid: String,
        /// The answers.
        answers: PodAnswers,
    },
    /// On which CPUs containers are made that have none of their own, from now on.
    SharedPool {
        /// `None`: nothing is placed, and containers are made as their specification has them.
        cpus: Option<String>,
    },
    /// All pods have been sent that are known by now: the runtime may ask.
    Complete,
}

/// What a runtime is answered when it makes a container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodAnswers {
    /// Why no container of this pod is to be made; `None`: it may.
    pub refusal: Option<String>,
    /// The `oom_score_adj` of containers, by name. Others keep that of their specification.
    pub oom_score_adj: BTreeMap<String, i32>,
    /// The `oom_score_adj` of their specification. A container that the runtime shows with another one has it from
    /// another plugin.
    #[serde(default)]
    pub specified: BTreeMap<String, i32>,
    /// Where containers are made that have CPUs or memory nodes of their own, by name. Others are made in the shared
    /// pool.
    #[serde(default)]
    pub places: BTreeMap<String, ContainerPlace>,
    /// Ids of containers whose CPUs another plugin has set: they keep them.
    #[serde(default)]
    pub foreign: BTreeSet<String>,
}

/// Where a container is made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerPlace {
    /// Its exclusive CPUs, as a list of the kernel's (`2-3`). `None`: the shared pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// The NUMA nodes of its memory. `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mems: Option<String>,
}

/// What the runtime shows of a container that it is about to make: other plugins have had their say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown<'a> {
    /// Its `oom_score_adj`.
    pub oom_score_adj: Option<i64>,
    /// Its `cpuset.cpus`; empty: all.
    pub cpus: &'a str,
    /// Its `cpuset.mems`; empty: all.
    pub mems: &'a str,
}

impl PodAnswers {
    /// Nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.refusal.is_none()
            && self.oom_score_adj.is_empty()
            && self.places.is_empty()
            && self.foreign.is_empty()
    }

    /// For one container, of which the runtime shows this. What another plugin has set stays: a container of which two
    /// set one thing is not made at all (containerd/nri, pkg/adaptation/result.go, `ClaimOomScoreAdj`).
    pub fn for_container(&self, name: &str, shown: Shown<'_>, pool: Option<&str>) -> Answer {
        if let Some(why) = &self.refusal {
            return Answer::Refused(why.clone());
        }
        let is_scored = shown
            .oom_score_adj
            .zip(self.specified.get(name))
            .is_some_and(|(shown, specified)| shown != i64::from(*specified));
        let mut place = self.place(name, shown, pool);
        if !shown.cpus.is_empty() {
            // It is another plugin's as a whole, and nobody would take our nodes back.
            place.mems = None;
        }
        let adjustment = Adjustment {
            oom_score_adj: self.oom_score_adj.get(name).copied().filter(|_| !is_scored),
            ..place
        };
        adjustment.into()
    }

    /// For one container that runs and whose resources are about to be changed; the runtime shows what the change
    /// itself says. A runtime also writes again all else that the specification has, so it has to be told where the
    /// container is to be by now.
    pub fn for_update(
        &self,
        (name, id): (&str, &str),
        shown: Shown<'_>,
        pool: Option<&str>,
    ) -> Answer {
        if self.foreign.contains(id) {
            return Answer::Unchanged;
        }
        self.place(name, shown, pool).into()
    }

    /// Where it is to be; what is shown already is another's.
    fn place(&self, name: &str, shown: Shown<'_>, pool: Option<&str>) -> Adjustment {
        // Without a pool nothing is placed.
        let place = self.places.get(name).filter(|_| pool.is_some());
        let cpus = place.and_then(|place| place.cpus.as_deref()).or(pool);
        let mems = place.and_then(|place| place.mems.as_deref());
        Adjustment {
            oom_score_adj: None,
            cpus: cpus.filter(|_| shown.cpus.is_empty()).map(str::to_owned),
            mems: mems.filter(|_| shown.mems.is_empty()).map(str::to_owned),
        }
    }
}

impl From<Adjustment> for Answer {
    fn from(adjustment: Adjustment) -> Self {
        if adjustment == Adjustment::default() {
            Self::Unchanged
        } else {
            Self::Adjusted(Box::new(adjustment))
        }
    }
}

/// What is changed in a container's specification.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adjustment {
    /// Its `oom_score_adj`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// Its `cpuset.cpus`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Its `cpuset.mems`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mems: Option<String>,
}

/// What the runtime was answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The container is made as its specification has it: nothing was known of it, or another plugin has set what would
    /// have been.
    Unchanged,
    /// It is made so.
    Adjusted(Box<Adjustment>),
    /// It is not made, and this is why.
    Refused(String),
}

/// A frame from `plimsoll-runtime nri` to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromNri {
    /// The first frame.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
    },
    /// The runtime asks from now on. Containers that it has made before are as they are.
    Connected {
        /// Its name and version.
        runtime: String,
    },
    /// The runtime does not ask: what is known is applied after a container's start. It is tried again.
    Away {
        /// Why, for people.
        why: String,
    },
    /// The runtime makes a container.
    Container {
        /// Of the pod.
        pod_uid: String,
        /// The container's name in its pod.
        name: String,
        /// The runtime's id of it.
        id: String,
        /// What the runtime was answered.
        answer: Answer,
        /// Another plugin has set its CPUs.
        #[serde(default)]
        is_foreign: bool,
    },
    /// The runtime changes the resources of a container that runs.
    Update {
        /// Of the pod.
        pod_uid: String,
        /// What the runtime was answered; never a refusal.
        answer: Answer,
    },
    /// The runtime has changed them: what it has written is there.
    Updated {
        /// Of the pod.
        pod_uid: String,
    },
    /// Whether the runtime tells of containers that start and end.
    Events {
        /// Why it does not, for people; `None`: it does. It is tried again.
        away: Option<String>,
    },
    /// A container is made, or runs now.
    Started {
        /// Of the pod.
        pod_uid: String,
        /// The container's name in its pod.
        name: String,
        /// The runtime's id of it.
        id: String,
    },
    /// A container has ended.
    Ended {
        /// Of the pod.
        pod_uid: String,
    },
    /// Frames that were dropped, because the agent did not read them.
    Dropped {
        /// Since the last such frame.
        frames: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(oom_score_adj: Option<i64>) -> Shown<'static> {
        Shown {
            oom_score_adj,
            ..Shown::default()
        }
    }

    #[test]
    fn a_refusal_goes_before_a_score() {
        let mut answers = PodAnswers::default();
        let app = |answers: &PodAnswers, adj| answers.for_container("app", shown(adj), None);
        let scored = Answer::Adjusted(Box::new(Adjustment {
            oom_score_adj: Some(321),
            ..Adjustment::default()
        }));
        assert!(answers.is_empty());
        assert_eq!(app(&answers, Some(1000)), Answer::Unchanged);
        answers.oom_score_adj.insert("app".to_owned(), 321);
        assert_eq!(app(&answers, Some(1000)), scored);
        let other = answers.for_container("other", shown(Some(1000)), None);
        assert_eq!(other, Answer::Unchanged);
        answers.specified.insert("app".to_owned(), 1000);
        assert_eq!(app(&answers, Some(1000)), scored);
        assert_eq!(app(&answers, None), scored);
        let of_another_plugin = app(&answers, Some(999));
        assert_eq!(of_another_plugin, Answer::Unchanged);
        answers.refusal = Some("evicted".to_owned());
        let refused = Answer::Refused("evicted".to_owned());
        assert_eq!(app(&answers, Some(1000)), refused);
        let other = answers.for_container("other", shown(Some(1000)), None);
        assert_eq!(other, refused);
        assert!(!answers.is_empty());
    }

    #[test]
    fn a_container_is_made_on_its_own_cpus_or_in_the_pool_and_keeps_what_another_plugin_set() {
        let place = ContainerPlace {
            cpus: Some("2-3".to_owned()),
            mems: Some("1".to_owned()),
        };
        let answers = PodAnswers {
            places: BTreeMap::from([("app".to_owned(), place)]),
            ..PodAnswers::default()
        };
        let adjusted = |cpus: Option<&str>, mems: Option<&str>| {
            Answer::Adjusted(Box::new(Adjustment {
                cpus: cpus.map(str::to_owned),
                mems: mems.map(str::to_owned),
                oom_score_adj: None,
            }))
        };
        let pool = Some("0-1");
        let answer = |name, shown, pool| answers.for_container(name, shown, pool);
        let mems = Some("1");
        let set = Shown {
            cpus: "5",
            ..Shown::default()
        };
        assert_eq!(
            answer("app", shown(None), pool),
            adjusted(Some("2-3"), mems)
        );
        assert_eq!(answer("init", shown(None), pool), adjusted(pool, None));
        let update = |id, shown| answers.for_update(("app", id), shown, pool);
        assert_eq!(update("its id", shown(None)), adjusted(Some("2-3"), mems));
        assert_eq!(update("its id", set), adjusted(None, mems), "by request");
        assert_eq!(
            answer("app", set, pool),
            Answer::Unchanged,
            "it is another plugin's, its nodes too"
        );
        let only_mems = Shown {
            mems: "0",
            ..Shown::default()
        };
        assert_eq!(answer("app", only_mems, pool), adjusted(Some("2-3"), None));
        let answers = PodAnswers {
            foreign: BTreeSet::from(["another id".to_owned()]),
            ..answers.clone()
        };
        let update = answers.for_update(("app", "another id"), shown(None), pool);
        assert_eq!(update, Answer::Unchanged);
        assert_eq!(answer("init", set, pool), Answer::Unchanged);
        assert_eq!(answer("app", shown(None), None), Answer::Unchanged);
    }
}
