//! What the end-to-end tests share: the real program as child processes, a scripted engine, and a raw HTTP client.
//!
//! Everything binds to loopback on free ports and ends with the value that owns it.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of the harness")]

mod program;
mod raw_http;
mod scripted_engine;

pub use program::{Finished, Program};
pub use raw_http::{RawClient, RawReply};
pub use scripted_engine::{Reply, ScriptedEngine, Seen};

use std::time::{Duration, Instant};

/// Waits until `check` gives a value, or fails with what was waited for.
#[expect(clippy::disallowed_methods, reason = "a test's deadline is real time")]
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited 20 s for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
