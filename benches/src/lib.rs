//! Criterion benches of the decision core.
