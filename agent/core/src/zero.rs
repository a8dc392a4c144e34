//! Numbers that JSON leaves out when they are zero.

/// For serde's `skip_serializing_if`: an old reader and an old journal know nothing of such a field.
pub(crate) fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}
