#![no_main]

#[path = "../checks/standard.rs"]
#[allow(dead_code, reason = "another target uses the rest")]
mod standard;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| standard::check_msgpack(bytes));
