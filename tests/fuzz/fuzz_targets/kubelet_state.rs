//! State files of the kubelet's CPU and memory managers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::kubelet_state(bytes));
