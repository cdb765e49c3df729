#![no_main]

#[path = "../checks/sequencer.rs"]
mod sequencer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sequencer::check(bytes));
