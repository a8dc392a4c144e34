//! The agent's end of the socket, as `plimsoll-agent` has it: it listens, greets, sends its intents, and believes what
//! it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::protocol::cluster_link::{
    EvictionIntent, FRAMING, OverusedNamespace, PROTOCOL, Settled, ToAgent, ToCluster,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// Connections that the program may have left before they were taken.
const ACCEPTED_MAX: usize = 100;

/// What it has heard so far.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) pods: BTreeSet<PodUid>,
    pub(crate) leaving: BTreeSet<PodUid>,
    pub(crate) budgets: BTreeSet<String>,
    pub(crate) is_listed: bool,
    pub(crate) is_reachable: Option<bool>,
    pub(crate) kubelet_version: Option<String>,
    pub(crate) overused: Vec<OverusedNamespace>,
    pub(crate) reported: Vec<PodUid>,
    pub(crate) refused: Vec<PodUid>,
    pub(crate) settled: BTreeMap<PodUid, Settled>,
    /// How often a pod was said to be gone.
    pub(crate) gone: usize,
    listing: Option<BTreeSet<PodUid>>,
}

impl Known {
    /// The API server has this eviction, or it was seen to have it: the answer that said so can be lost.
    pub(crate) fn is_told(&self, uid: &str) -> bool {
        self.reported.contains(&PodUid::from(uid)) || self.has_ended(uid)
    }

    /// The eviction is settled.
    pub(crate) fn has_ended(&self, uid: &str) -> bool {
        self.settled.contains_key(&PodUid::from(uid))
    }
}

pub(crate) struct Agent {
    pub(crate) folder: TempDir,
    listener: UnixListener,
    stream: Option<UnixStream>,
    pub(crate) known: Known,
    pub(crate) unreported: u64,
    bytes: Vec<u8>,
}

impl Agent {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("cluster.sock")).unwrap();
        Self {
            folder,
            listener,
            stream: None,
            known: Known::default(),
            unreported: 0,
            bytes: Vec::new(),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("cluster.sock")
    }

    /// Takes the next connection, and reads the greeting. One that was not taken in time waits there as well, left by
    /// the program meanwhile: then the next one.
    pub(crate) async fn accept(&mut self) {
        let greeting = ToCluster::Hello {
            protocol: PROTOCOL,
            unreported: self.unreported,
            soft_grace_s: None,
        };
        let greeting = serde_json::to_vec(&greeting).unwrap();
        for _ in 0..ACCEPTED_MAX {
            let (stream, _) = self.listener.accept().await.unwrap();
            self.stream = Some(stream);
            self.bytes.clear();
            if self.write(&greeting).await.is_err() {
                continue;
            }
            let Some(hello) = self.frame().await else {
                continue;
            };
            assert!(
                matches!(
                    &hello,
                    ToAgent::Hello {
                        protocol: PROTOCOL,
                        ..
                    }
                ),
                "{hello:?}"
            );
            return;
        }
        panic!("the program left each of {ACCEPTED_MAX} connections without a greeting");
    }

    /// Ends the connection.
    pub(crate) fn close(&mut self) {
        self.stream = None;
        self.known = Known::default();
    }

    pub(crate) async fn send(&mut self, frame: &ToCluster) {
        let bytes = serde_json::to_vec(frame).unwrap();
        self.send_bytes(&bytes).await;
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        self.write(bytes).await.unwrap();
    }

    async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let stream = self.stream.as_mut().unwrap();
        let length = u32::try_from(bytes.len()).unwrap();
        stream.write_u32_le(length).await?;
        stream.write_all(bytes).await
    }

    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        self.stream
            .as_mut()
            .unwrap()
            .write_all(bytes)
            .await
            .unwrap();
    }

    /// The next frame; `None`: the connection has ended. Can be dropped while it waits.
    async fn frame(&mut self) -> Option<ToAgent> {
        loop {
            if let Some((length, rest)) = self.bytes.split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                assert!(length <= FRAMING.bytes_max);
                if rest.len() >= length {
                    let frame = serde_json::from_slice(&rest[..length]);
                    let frame = frame.unwrap_or_else(|error| {
                        panic!("{error}: {}", String::from_utf8_lossy(&rest[..length]))
                    });
                    self.bytes.drain(..4 + length);
                    return Some(frame);
                }
            }
            if self
                .stream
                .as_mut()?
                .read_buf(&mut self.bytes)
                .await
                .unwrap_or(0)
                == 0
            {
                return None;
            }
        }
    }

    /// Hears one frame, or that the program has ended the connection.
    pub(crate) async fn is_open(&mut self) -> bool {
        self.frame().await.is_some()
    }

    /// Hears one frame.
    pub(crate) async fn hear(&mut self) {
        let frame = self
            .frame()
            .await
            .expect("the program has closed the connection");
        let known = &mut self.known;
        match frame {
            ToAgent::Hello { .. } => panic!("a second greeting"),
            ToAgent::List => known.listing = Some(BTreeSet::new()),
            ToAgent::Pod { pod, is_leaving } => {
                if let Some(listing) = &mut known.listing {
                    listing.insert(pod.uid());
                }
                known.leaving.remove(&pod.uid());
                if is_leaving {
                    known.leaving.insert(pod.uid());
                }
                known.pods.insert(pod.uid());
            }
            ToAgent::PodGone { uid } => {
                known.gone += 1;
                known.pods.remove(&uid);
            }
            ToAgent::Budget { budget } => {
                known.budgets.insert(budget.key().to_string());
            }
            ToAgent::BudgetGone { namespace, name } => {
                known.budgets.remove(&format!("{namespace}/{name}"));
            }
            ToAgent::Listed => {
                if let Some(listed) = known.listing.take() {
                    known.pods = listed;
                }
                known.is_listed = true;
            }
            ToAgent::Api { is_reachable } => known.is_reachable = Some(is_reachable),
            ToAgent::Node { kubelet_version } => known.kubelet_version = Some(kubelet_version),
            ToAgent::Overused { namespaces, .. } => known.overused = namespaces,
            ToAgent::Reported { uid } => known.reported.push(uid),
            ToAgent::Refused { uid } => known.refused.push(uid),
            ToAgent::Settled { uid, how } => {
                known.settled.insert(uid, how);
            }
        }
    }

    /// Hears what was sent by now.
    pub(crate) async fn hear_all(&mut self) {
        let soon = std::time::Duration::from_millis(1);
        while tokio::time::timeout(soon, self.hear()).await.is_ok() {}
    }

    /// Hears until this is so. What never is so ends the test with what is known.
    pub(crate) async fn until(&mut self, what: &str, is_so: impl Fn(&Known) -> bool) {
        while !is_so(&self.known) {
            let heard =
                tokio::time::timeout(std::time::Duration::from_secs(600), self.hear()).await;
            assert!(
                heard.is_ok(),
                "nothing comes of waiting for: {what}; known: {:?}",
                self.known
            );
        }
    }

    /// Tells of an eviction at this time, and returns its intent.
    pub(crate) async fn evict(
        &mut self,
        uid: &str,
        name: &str,
        decided_unix_ms: u64,
        grace_s: u32,
    ) -> EvictionIntent {
        let intent = intent(uid, name, decided_unix_ms, grace_s);
        self.send(&ToCluster::Evicted {
            intent: Box::new(intent.clone()),
            is_let_go: false,
        })
        .await;
        intent
    }

    /// The pod's cgroup has gone.
    pub(crate) async fn cgroup_gone(&mut self, uid: &str) {
        self.send(&ToCluster::CgroupGone { uid: uid.into() }).await;
    }
}

pub(crate) fn intent(uid: &str, name: &str, decided_unix_ms: u64, grace_s: u32) -> EvictionIntent {
    let intent = json!({
        "uid": uid, "namespace": "shop", "name": name, "decidedUnixMs": decided_unix_ms, "signal": "memory.available",
        "message": "The node was low on resource: memory. Ranked 1st of 2: highest usage over request; next: shop/web",
        "rank": 1, "ranked": 2, "graceS": grace_s, "isHeld": grace_s == 0, "starvedResource": "memory",
        "offendingContainers": "app", "offendingContainersUsage": "1Gi",
    });
    serde_json::from_value(intent).unwrap()
}
