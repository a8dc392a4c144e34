//! Configuration files, up to what they come to.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::config(bytes));
