//! Sections `health_checks` and `circuit_breaker`.

use std::{num::NonZeroU32, time::Duration};

use settings::{ValueKind, kinds::PAUSE};

settings::section! {
    /// Section `health_checks`.
    #[derive(Clone, Debug)]
    pub struct HealthChecksSection {
        /// Check workers by asking them.
        enabled: bool = "true", live;
        /// Time between checks.
        interval: Duration = "30s" in PAUSE, live;
        /// Time for one answer.
        timeout: Duration = "10s", live;
        /// Failures in a row that make a worker unhealthy.
        unhealthy_threshold: NonZeroU32 = "3", live;
        /// Successes in a row that bring it back.
        healthy_threshold: NonZeroU32 = "2", live;
        /// Path asked first; unset = the worker type's own list.
        endpoint: Option<String> = "~" in ValueKind::UrlPath, live;
        /// Time between checks while a worker loads its model.
        warmup_check_interval: Duration = "1s" in PAUSE, live;
        /// A worker that loads longer than this is unhealthy.
        max_warmup_duration: Duration = "300s", live;
        /// First pause between knocks on a worker that is down.
        recovery_interval: Duration = "250ms" in PAUSE, live;
        /// Longest pause between knocks.
        recovery_max_interval: Duration = "2s" in PAUSE, live;
    }
}

settings::section! {
    /// Section `circuit_breaker`.
    #[derive(Clone, Debug)]
    pub struct CircuitBreakerSection {
        /// Leave failing workers out.
        enabled: bool = "true", live;
        /// Failures in a row that leave a worker out.
        consecutive_failures: NonZeroU32 = "5", live;
        /// Time between looks at all workers.
        sweep: Duration = "10s" in PAUSE, later;
        /// How long a worker is left out the first time.
        ejection: Duration = "30s", live;
        /// Share of a pool that may be left out; never its last worker.
        max_ejected_ratio: f64 = "0.5", live;
    }
}
