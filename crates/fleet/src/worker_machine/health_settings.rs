//! The rules of a worker's health.

use std::time::Duration;

use config::{CircuitBreakerSection, HealthChecksSection};

/// Intervals and thresholds. Source: contract CH1, CH2, B4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HealthSettings {
    /// Interval between checks of a ready worker.
    pub(crate) interval: Duration,
    /// Consecutive failed checks after which a ready worker is down.
    pub(crate) unhealthy_threshold: u32,
    /// Consecutive successful checks after which a worker is ready again.
    pub(crate) healthy_threshold: u32,
    /// Interval between checks of a worker that reports that it is loading.
    pub(crate) warmup_interval: Duration,
    /// A worker loading for longer than this counts as down.
    pub(crate) max_warmup: Duration,
    /// First pause between connect probes of a worker that is down.
    pub(crate) first_connect_pause: Duration,
    /// Longest pause between connect probes.
    pub(crate) longest_connect_pause: Duration,
    /// Consecutive failed requests that eject a worker whose checks pass.
    pub(crate) eject_after: u32,
    /// How long an ejected worker stays out.
    pub(crate) eject_for: Duration,
}

impl HealthSettings {
    pub(crate) fn of(checks: &HealthChecksSection, breaker: &CircuitBreakerSection) -> Self {
        Self {
            interval: checks.interval,
            unhealthy_threshold: checks.unhealthy_threshold.get(),
            healthy_threshold: checks.healthy_threshold.get(),
            warmup_interval: checks.warmup_check_interval,
            max_warmup: checks.max_warmup_duration,
            first_connect_pause: checks.recovery_interval,
            longest_connect_pause: checks.recovery_max_interval,
            eject_after: breaker.consecutive_failures.get(),
            eject_for: breaker.ejection,
        }
    }
}
