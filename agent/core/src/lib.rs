//! The decision core.
