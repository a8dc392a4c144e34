//! Files of a cgroup.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::cgroup_files(bytes));
