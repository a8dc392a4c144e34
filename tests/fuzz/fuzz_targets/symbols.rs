//! Symbols of an ELF file, which a container may have made.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plimsoll_fuzz::symbols(bytes));
