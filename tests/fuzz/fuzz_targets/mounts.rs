//! The list of mounts, from which the cgroup hierarchies are found.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::mounts(bytes));
