#![no_main]

#[path = "../checks/vllm_payload.rs"]
mod vllm_payload;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| vllm_payload::check(bytes));
