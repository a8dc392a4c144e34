//! The words about CPU bandwidth, which events and decisions are made of.

pub use crate::model::bandwidth::{
    CgroupCpu, CpuKnob, CpuReading, CpuWhy, PodCpu, SharedCpus, WaitSource, Waiter,
};
