//! The mounts of any process.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::mountinfo(bytes));
