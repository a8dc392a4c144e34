//! Who holds which CPUs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::checkpoint(bytes));
