//! What the kernel does when it has to kill: scores, their order, and the order it keeps for an agent that does not
//! answer.

pub mod last_line;
pub mod order;
pub mod score;
