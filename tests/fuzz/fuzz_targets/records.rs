//! Records of the kernel's ring buffers, and samples of a tracing session.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::records(bytes));
