//! What the programs of a node say to each other, and in which frames.

pub mod backoff;
pub mod cluster_link;
pub mod framing;
pub mod pod_resources;
pub mod runtime_link;
