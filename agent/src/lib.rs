//! The agent: everything that touches kernel, clock or screen. What is decided is decided in `plimsoll-core`.

#![deny(unsafe_code)]

pub mod agent;
pub mod bpf;
pub mod capabilities;
pub mod check;
pub mod cli;
pub mod config;
pub mod control;
pub mod cpu_time;
pub mod events;
pub mod exec;
pub mod explain;
pub mod facts;
pub mod host;
pub mod http;
pub mod journal;
pub mod kubepods;
pub mod ladder;
pub mod last_line;
pub mod limits;
pub mod load_programs;
pub mod manual;
pub mod metrics;
pub mod observer;
pub mod oom_group;
pub mod oom_order;
pub mod oom_scores;
pub mod output;
pub mod overview;
pub mod place;
pub mod placement;
pub mod pod_cgroup;
pub mod pod_meters;
pub mod pods;
pub mod rank;
pub mod remedies;
pub mod replay;
pub mod report;
pub mod run;
pub mod sampler;
#[cfg(test)]
#[path = "../tests/fixtures/seen.rs"]
mod seen;
pub mod serving;
pub mod source;
pub mod storage;
pub mod summary;
mod table;
pub mod tally;
pub mod timeline;
pub mod top;
pub mod topology;
pub mod trace;
pub mod uninstall;
mod yaml;
