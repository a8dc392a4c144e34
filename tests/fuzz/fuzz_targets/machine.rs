//! Machine and device files of `plimsoll place`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::machine(bytes));
