//! Manifests of pods and disruption budgets.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::manifests(bytes));
