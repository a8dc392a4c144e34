//! The interfaces of Kubernetes, as compiled from `proto/`.

/// The container runtime's (CRI v1).
#[expect(
    missing_docs,
    clippy::allow_attributes_without_reason,
    clippy::doc_lazy_continuation,
    clippy::doc_overindented_list_items,
    reason = "compiled from a published file, see proto/README.md"
)]
pub mod cri {
    tonic::include_proto!("runtime.v1");
}

/// The kubelet's list of what it has given to pods (PodResources v1).
#[expect(
    missing_docs,
    clippy::allow_attributes_without_reason,
    reason = "compiled from a published file, see proto/README.md"
)]
pub mod pod_resources {
    tonic::include_proto!("v1");
}
