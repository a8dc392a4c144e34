//! `plimsoll-runtime`: asks the container runtime and the kubelet of a node on behalf of `plimsoll-agent`.
//!
//! It is a process of its own because it parses what large programs send: gRPC stays out of the agent's locked memory,
//! and off the way to a kill. It decides nothing and remembers nothing, and may die at any time. See
//! `docs/decisions/0044-runtime.md`, and `docs/decisions/0049-nri.md` for what the runtime asks.
#![forbid(unsafe_code)]

pub mod cli;
pub mod connection;
pub mod cri;
mod events;
pub mod frames;
pub mod interface;
pub mod limits;
pub mod nri;
mod outbox;
pub mod pod_resources;
mod reconnect;
pub mod serve;
pub mod show;
#[cfg(test)]
mod tests;
