//! Support for tests that start programs: requirements on the machine, time limits and ports.
//!
//! A dev-dependency of the crates whose tests start programs. [`require!`] skips a test whose
//! program is missing, or fails it where `CI` is set; the functions of [`limit`] end a program that
//! hangs and fail the test; a [`ReservedPort`] stays free for a program that is restarted.

pub mod limit;
mod port;
mod requirement;

pub use port::ReservedPort;
pub use requirement::{Requirement, SKIPPED, node_folder, python};

/// Skips the test if one of these [`Requirement`]s is missing: `require!(RedisServer, Prometheus);`
/// as its first line.
///
/// The test prints a line that starts with [`SKIPPED`] and returns. With `CI=true` in the
/// environment it fails.
#[macro_export]
macro_rules! require {
    ($($requirement:ident),+ $(,)?) => {
        $(
            if $crate::Requirement::$requirement.is_missing() {
                return;
            }
        )+
    };
}
