//! Requests and answers of the control socket.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::requests(bytes));
