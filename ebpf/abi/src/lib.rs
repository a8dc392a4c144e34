//! The records.
#![no_std]
#![forbid(unsafe_code)]
