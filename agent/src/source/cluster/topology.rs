//! The newest NUMA zones, on their way to plimsoll-cluster: a place for one, so that none waits behind an older one.

use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_core::kube::node_resource_topology::NodeTopology;
use plimsoll_core::protocol::cluster_link::{FRAMING, ToCluster};

use crate::host::wake_fd::WakeFd;

/// Where the zones are put. The loop does not use it.
#[derive(Debug, Clone)]
pub struct TopologySlot {
    newest: Arc<Mutex<Option<Box<NodeTopology>>>>,
    wake: WakeFd,
}

impl TopologySlot {
    pub(in crate::source) fn new(wake: WakeFd) -> Self {
        Self {
            newest: Arc::default(),
            wake,
        }
    }

    /// Takes the place of what has not been sent.
    pub fn put(&self, topology: NodeTopology) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = Some(Box::new(topology));
        drop(newest);
        self.wake.wake();
    }

    /// What has been put since the last time, as a frame.
    ///
    /// # Errors
    /// It is larger than a frame may be.
    pub(in crate::source) fn take(&self) -> Option<Result<Vec<u8>, String>> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let topology = newest.take()?;
        drop(newest);
        let json = serde_json::to_vec(&ToCluster::NodeTopology { topology });
        let frame = json.map_err(|error| error.to_string()).and_then(|json| {
            let body = FRAMING.body(&json).and_then(|body| FRAMING.frame(body));
            body.map_err(|error| error.to_string())
        });
        Some(frame)
    }
}
