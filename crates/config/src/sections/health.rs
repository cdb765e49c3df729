//! Sections `health_checks` and `circuit_breaker`.

use std::{num::NonZeroU32, time::Duration};

use settings::{ValueKind, kinds::PAUSE};

settings::section! {
    /// Section `health_checks`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct HealthChecksSection {
        /// Check workers periodically.
        enabled: bool = "true", live;
        /// Interval between checks.
        interval: Duration = "30s" in PAUSE, live;
        /// Time limit of one check.
        timeout: Duration = "10s", live;
        /// Consecutive failures after which a worker is unhealthy.
        unhealthy_threshold: NonZeroU32 = "3", live;
        /// Consecutive successes after which a worker is healthy again.
        healthy_threshold: NonZeroU32 = "2", live;
        /// Path of the check. Unset: the paths of the worker's type.
        endpoint: Option<String> = "~" in ValueKind::UrlPath, live;
        /// Interval between checks while a worker loads its model.
        warmup_check_interval: Duration = "1s" in PAUSE, live;
        /// Time after which a worker that still loads its model is unhealthy.
        max_warmup_duration: Duration = "300s", live;
        /// First pause between connection attempts to a worker that is down.
        recovery_interval: Duration = "250ms" in PAUSE, live;
        /// Longest pause between these attempts.
        recovery_max_interval: Duration = "2s" in PAUSE, live;
    }
}

settings::section! {
    /// Section `circuit_breaker`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct CircuitBreakerSection {
        /// Eject workers whose requests fail.
        enabled: bool = "true", live;
        /// Consecutive failed requests after which a worker is ejected.
        consecutive_failures: NonZeroU32 = "5", live;
        /// Interval between reviews of all workers.
        sweep: Duration = "10s" in PAUSE, later;
        /// Duration of an ejection.
        ejection: Duration = "30s", live;
        /// Largest share of a pool that may be ejected at one time. The last worker is never
        /// ejected.
        max_ejected_ratio: f64 = "0.5", live;
    }
}
