//! Pods on this node: who they are, their cgroups, and how they are ended.

pub mod cgroup;
pub mod cgroup_worker;
pub mod directories;
pub mod kill;
pub mod memory_reader;
pub mod names;
pub mod registry;
pub mod remedy_files;
pub mod sandbox;
pub mod uncharged;

mod paths;
mod remove_tree;
mod walk;
