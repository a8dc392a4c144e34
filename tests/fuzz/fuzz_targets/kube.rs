//! Quantities, durations and CPU lists.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::kube(bytes));
