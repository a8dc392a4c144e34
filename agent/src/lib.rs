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
pub mod journal;
pub mod kubepods;
pub mod ladder;
pub mod last_line;
pub mod limits;
pub mod load_programs;
pub mod observer;
pub mod oom_group;
pub mod oom_order;
pub mod oom_scores;
pub mod output;
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
pub mod source;
pub mod storage;
mod table;
pub mod timeline;
pub mod topology;
pub mod uninstall;
mod yaml;
