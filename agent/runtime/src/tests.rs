//! What the tests share.

pub(crate) mod stand_in;
