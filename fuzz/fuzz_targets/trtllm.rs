#![no_main]

#[path = "../checks/trtllm.rs"]
mod trtllm;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trtllm::check(bytes));
