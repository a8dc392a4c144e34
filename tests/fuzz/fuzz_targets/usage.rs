//! Usage of pods, as `plimsoll rank` reads it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::usage(bytes));
