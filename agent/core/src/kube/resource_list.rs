//! Amounts of resources, and the names of resources.

use std::collections::BTreeMap;

use crate::kube::quantity::Quantity;

/// Resource name of processor time.
pub const CPU: &str = "cpu";
/// Resource name of main memory, in bytes.
pub const MEMORY: &str = "memory";
/// Resource name of the node's disk, in bytes.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// What the names of huge-page resources begin with; the page size follows, such as `2Mi`.
pub const HUGE_PAGES_PREFIX: &str = "hugepages-";

/// Quantities by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Whether the name is one of the huge-page resources.
pub fn is_huge_pages(name: &str) -> bool {
    name.starts_with(HUGE_PAGES_PREFIX)
}

/// Whether an amount is whole pages of the size in the name, which is a whole number of bytes
/// (`IsHugePageResourceValueDivisible`). The amount is rounded up to bytes first.
pub fn is_multiple_of_page(name: &str, amount: &Quantity) -> bool {
    let size = name
        .strip_prefix(HUGE_PAGES_PREFIX)
        .and_then(|size| Quantity::parse(size).ok());
    size.is_some_and(|size| {
        let bytes = size.wrapping_scaled_value(0);
        size.sign() > 0
            && size.wrapping_scaled_value(-3) % 1000 == 0
            // Upstream divides by zero where a size is beyond 64 bits.
            && amount.wrapping_scaled_value(0).checked_rem(bytes) == Some(0)
    })
}

/// Whether the resource can be set for the pod as a whole (`IsSupportedPodLevelResource`).
pub fn is_pod_level_resource(name: &str) -> bool {
    matches!(name, CPU | MEMORY) || is_huge_pages(name)
}
