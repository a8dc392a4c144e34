//! All targets, of which the environment names the one that runs: one program is built and linked, not one for each.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::run(bytes));
