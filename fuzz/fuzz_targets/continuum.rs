#![no_main]

#[path = "../checks/continuum.rs"]
mod continuum;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| continuum::check(bytes));
