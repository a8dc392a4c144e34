//! `plimsoll-cluster`: tells the Kubernetes API what `plimsoll-agent` did on its node, and the agent which pods the API
//! has there.
//!
//! It is the only holder of a token, has no privilege and no path of the host, and decides nothing: the agent kills,
//! this program tells. See docs/reference/cluster.md for its calls and the rights that each needs, ARCHITECTURE.md for
//! its rooms.
#![forbid(unsafe_code)]

pub mod api;
pub mod arbitrate;
pub mod backoff;
pub mod call;
pub mod certificate;
pub mod cli;
pub mod clock;
pub mod link;
pub mod metrics;
pub mod pod;
pub mod report;
pub mod run;
pub mod serve;
pub mod store;
pub mod watch_event;
