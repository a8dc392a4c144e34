//! The ledger of changed kernel settings; read, never undone.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::ledger(bytes));
