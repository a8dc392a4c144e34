//! Kubernetes' own terms: pods, quantities, resources, QoS, and what the kubelet makes of them.

pub mod admission;
pub mod budget;
pub mod cgroup_config;
pub mod duration;
pub mod go_float;
pub mod node_allocatable;
pub mod node_resource_topology;
pub mod owner;
pub mod pod;
pub mod pod_qos;
pub mod pod_uid;
pub mod pods_fingerprint;
pub mod qos;
pub mod quantity;
pub mod resource_list;
pub mod resources;
pub mod time;
