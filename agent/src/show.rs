//! Data in, words and pictures out.

pub(crate) mod admission;
pub(crate) mod arbitrate;
pub mod check;
pub mod explain;
pub mod place;
pub mod rank;
pub(crate) mod rehearse;
pub(crate) mod svg;
pub mod table;
pub mod top;
pub mod topology;
