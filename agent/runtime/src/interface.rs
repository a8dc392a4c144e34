//! The interfaces of Kubernetes and containerd, as compiled from `proto/`.

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

/// What is used of the Node Resource Interface (NRI v1alpha1).
#[expect(
    missing_docs,
    reason = "compiled from proto/nri-v1alpha1.proto, whose names are the published ones"
)]
pub mod nri {
    tonic::include_proto!("nri.pkg.api.v1alpha1");
}

/// The envelope of a ttrpc call.
#[expect(
    missing_docs,
    reason = "compiled from proto/ttrpc.proto, whose names are the published ones"
)]
pub mod ttrpc {
    tonic::include_proto!("ttrpc");
}
