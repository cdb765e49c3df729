//! What tests share about programs: which ones a test needs on the machine, time limits and ports for those it starts.
//!
//! A dev-dependency of the crates whose tests start programs. [`require!`] skips a test whose program is missing, or
//! fails it where `CI` is set; the functions of [`limit`] end a program that hangs and fail the test; a
//! [`ReservedPort`] is there again for a program that is started again.

pub mod limit;
mod port;
mod requirement;

pub use port::ReservedPort;
pub use requirement::{Requirement, SKIPPED, node_folder, python};

/// Skips the test where one of these [`Requirement`]s is missing: `require!(RedisServer, Prometheus);` as its first line.
///
/// The test returns, and says so on a line that starts with [`SKIPPED`]. Where the environment says `CI=true` it fails.
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
