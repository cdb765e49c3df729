#![no_main]

#[path = "../checks/zmtp_session.rs"]
mod zmtp_session;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| zmtp_session::check(bytes));
