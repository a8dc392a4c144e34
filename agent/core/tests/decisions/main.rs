//! What the core decides, as its callers see it. All of it is one program of tests: each program compiles the engine's
//! generic code once more.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod admission;
mod beside_kubelet;
mod breaker;
mod cpu;
mod ended_cache;
mod engine;
mod exempt;
mod explain;
mod foresight;
mod freshness;
mod huge_pages;
mod last_line;
mod lazily_freed;
mod leaders;
mod local_storage;
mod node;
mod node_first;
mod overuse;
mod placement;
mod policies;
mod remedies;
mod stuck;
mod uncharged;
