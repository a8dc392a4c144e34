//! Identities, by the name that this room knows them by.

pub use crate::kube::pod_uid::PodUid;
