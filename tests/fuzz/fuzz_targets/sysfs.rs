//! CPUs and NUMA nodes as sysfs shows them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::sysfs(bytes));
