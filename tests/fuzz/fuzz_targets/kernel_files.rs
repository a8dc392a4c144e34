//! Files of /proc and of cgroups.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::kernel_files(bytes));
