//! The clocks.

use std::{
    sync::OnceLock,
    time::{Instant, SystemTime},
};

use crate::simulation;

/// Returns the present of the monotonic clock: virtual time in a simulation.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the clock that the ban points to"
)]
pub fn monotonic() -> Instant {
    match crate::is_simulated() {
        true => tokio::time::Instant::now().into_std(),
        false => Instant::now(),
    }
}

/// Returns the moment from which this process counts time: the first call, or the begin of the
/// simulation.
pub fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    simulation::start().unwrap_or_else(|| *START.get_or_init(monotonic))
}

/// Returns the present wall-clock time. A simulation begins on 2026-01-01 and follows its virtual
/// time.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the clock that the ban points to"
)]
pub fn system_time() -> SystemTime {
    simulation::start().map_or_else(SystemTime::now, |start| {
        simulation::epoch() + monotonic().saturating_duration_since(start)
    })
}
