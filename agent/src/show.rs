//! Data in, words and pictures out.

pub mod explain;
pub mod place;
pub mod table;
pub mod top;
pub mod topology;
