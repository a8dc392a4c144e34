//! What a list and the watch after it say, without the connection that they came over.

use std::time::Instant;

/// What was heard of a resource.
#[derive(Debug)]
pub enum WatchEvent {
    /// A list begins. It has everything that was there at this time; none: it may come from a cache that lags behind.
    List(Option<Instant>),
    /// An object, listed, added or changed.
    Object(Vec<u8>),
    /// An object that was deleted, as it was.
    Gone(Vec<u8>),
    /// The list is complete.
    Listed,
    /// The server said something.
    Word,
    /// An object longer than any can be was left out.
    TooLarge,
    /// The server is there, and refuses. Why.
    Refused(String),
    /// No answer, or one that cannot be used. Why.
    Missed(String),
}
