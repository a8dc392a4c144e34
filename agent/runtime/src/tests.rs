//! What the tests share.

pub(crate) mod agent;
pub(crate) mod stand_in;
