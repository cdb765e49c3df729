//! Health of one worker: a small state machine over the results of checks and of requests.
//!
//! Pure: it gets the time and the events as arguments, and returns the state and the time of the
//! next check. It opens no sockets and knows nothing of other workers; the caller decides whether a
//! worker is the last usable one.
//!
//! **Invariant**: `ready` is entered only by a successful check, and left at once after a refused
//! connection or when the worker reports that it is loading.

use std::{sync::Arc, time::Duration};

use config::{CircuitBreakerSection, HealthChecksSection};
use kv_blocks::Moment;

use crate::{FailureKind, WorkerState};

/// Intervals and thresholds, and what is probed beside the health. Source: contract CH1, CH2, B4.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HealthSettings {
    pub(crate) checks: HealthChecksSection,
    pub(crate) breaker: CircuitBreakerSection,
    /// Whether ready workers are probed for whether they honour salts.
    pub(crate) probes_salts: bool,
}

/// Result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckOutcome {
    /// The worker serves.
    Passed,
    /// The worker is up and reports that it is loading.
    Loading,
    /// The port refuses connections: conclusive at once.
    Refused,
    /// Any other failure: a timeout, an unexpected status, nonsense.
    Failed,
    /// This process could not send the check: no verdict on the worker.
    NotMade,
}

/// The next check, and the pause before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextCheck {
    /// Runs a whole check after this pause.
    CheckIn(Duration),
    /// Opens and closes a connection after this pause; a successful connect is followed by a check.
    ConnectIn(Duration),
}

/// Whether failed requests may eject the worker now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EjectionPermit {
    Granted,
    /// It is the last usable one, or enough others are ejected.
    Denied,
}

/// The health of one worker.
#[derive(Debug)]
pub(crate) struct WorkerHealth {
    settings: Arc<HealthSettings>,
    state: WorkerState,
    failed_checks: u32,
    passed_checks: u32,
    failed_requests: u32,
    warming_since: Option<Moment>,
    /// Down because it loads for longer than allowed: it accepts connections, so these tell
    /// nothing.
    overdue: bool,
    ejected_until: Option<Moment>,
    connect_probe_pause: Duration,
    /// Set by a refused request: the next connect probe does not wait.
    connect_now: bool,
}

impl WorkerHealth {
    pub(crate) fn new(settings: Arc<HealthSettings>) -> Self {
        Self {
            connect_probe_pause: settings.checks.recovery_interval,
            settings,
            state: WorkerState::Unknown,
            failed_checks: 0,
            passed_checks: 0,
            failed_requests: 0,
            warming_since: None,
            overdue: false,
            ejected_until: None,
            connect_now: false,
        }
    }

    pub(crate) fn state(&self) -> WorkerState {
        self.state
    }

    /// Replaces intervals and thresholds; counters stay.
    pub(crate) fn reconfigure(&mut self, settings: Arc<HealthSettings>) {
        self.connect_probe_pause = self
            .connect_probe_pause
            .min(settings.checks.recovery_max_interval)
            .max(settings.checks.recovery_interval);
        self.settings = settings;
    }

    /// Records the result of a check. The first one decides alone (contract CH3).
    pub(crate) fn record_check(&mut self, now: Moment, check: CheckOutcome) -> WorkerState {
        match check {
            CheckOutcome::Passed => self.passed(now),
            CheckOutcome::Loading => self.loading(now),
            CheckOutcome::Refused => self.down(),
            // A worker that was never checked cannot be used; a checked one keeps its state.
            CheckOutcome::NotMade if self.state == WorkerState::Unknown => self.down(),
            CheckOutcome::NotMade => {}
            CheckOutcome::Failed => {
                self.passed_checks = 0;
                self.failed_checks = self.failed_checks.saturating_add(1);
                match self.state {
                    WorkerState::Ready | WorkerState::Ejected | WorkerState::WarmingUp
                        if self.failed_checks < self.settings.checks.unhealthy_threshold.get() => {}
                    _ => self.down(),
                }
            }
        }
        self.state
    }

    fn passed(&mut self, now: Moment) {
        self.failed_checks = 0;
        self.warming_since = None;
        self.overdue = false;
        self.passed_checks = self.passed_checks.saturating_add(1);
        match self.state {
            WorkerState::Unknown | WorkerState::WarmingUp => self.become_ready(),
            WorkerState::Down
                if self.passed_checks >= self.settings.checks.healthy_threshold.get() =>
            {
                self.become_ready()
            }
            // A passing check does not shorten an ejection: the requests are the better witness.
            WorkerState::Ejected if self.ejected_until.is_none_or(|until| until <= now) => {
                self.become_ready()
            }
            _ => {}
        }
    }

    fn become_ready(&mut self) {
        self.state = WorkerState::Ready;
        self.failed_requests = 0;
        self.ejected_until = None;
        self.connect_probe_pause = self.settings.checks.recovery_interval;
        self.connect_now = false;
    }

    fn loading(&mut self, now: Moment) {
        self.failed_checks = 0;
        self.passed_checks = 0;
        let since = *self.warming_since.get_or_insert(now);
        self.overdue = now.since(since) > self.settings.checks.max_warmup_duration;
        if self.overdue {
            self.state = WorkerState::Down;
            self.connect_now = false;
        } else {
            self.state = WorkerState::WarmingUp;
            self.connect_probe_pause = self.settings.checks.recovery_interval;
        }
    }

    fn down(&mut self) {
        if self.state == WorkerState::Down {
            // It may accept connections and pass no check.
            self.record_failed_connect();
        } else {
            self.connect_probe_pause = self.settings.checks.recovery_interval;
        }
        self.state = WorkerState::Down;
        self.passed_checks = 0;
        self.warming_since = None;
        self.overdue = false;
    }

    /// Records a failed connect probe: the next one waits longer.
    pub(crate) fn record_failed_connect(&mut self) {
        self.connect_now = false;
        self.passed_checks = 0;
        self.overdue = false;
        self.connect_probe_pause =
            (self.connect_probe_pause * 2).min(self.settings.checks.recovery_max_interval);
    }

    /// Restarts the connect probes of a worker that seems to come back, the first one at once.
    pub(crate) fn restart_connect_probes(&mut self) {
        if self.state == WorkerState::Down {
            self.connect_probe_pause = self.settings.checks.recovery_interval;
            self.connect_now = true;
        }
    }

    /// Records a failed request. The last usable worker is never ejected.
    pub(crate) fn request_failed(
        &mut self,
        now: Moment,
        kind: FailureKind,
        ejection: EjectionPermit,
    ) -> WorkerState {
        match kind {
            FailureKind::Refused => {
                if matches!(
                    self.state,
                    WorkerState::Ready | WorkerState::Ejected | WorkerState::WarmingUp
                ) {
                    self.down();
                    self.connect_now = true;
                }
            }
            // A worker that reports that it cannot serve now is not at fault; the check that
            // follows finds the reason.
            FailureKind::Unavailable | FailureKind::Local => {}
            _ => {
                self.failed_requests = self.failed_requests.saturating_add(1);
                if self.state == WorkerState::Ready
                    && ejection == EjectionPermit::Granted
                    && self.failed_requests >= self.settings.breaker.consecutive_failures.get()
                {
                    self.state = WorkerState::Ejected;
                    self.ejected_until = Some(now + self.settings.breaker.ejection);
                    self.failed_requests = 0;
                }
            }
        }
        self.state
    }

    /// Records a successful request: only consecutive failures count.
    pub(crate) fn request_succeeded(&mut self) {
        self.failed_requests = 0;
    }

    /// Returns the next check.
    pub(crate) fn next(&self, now: Moment) -> NextCheck {
        match self.state {
            WorkerState::Unknown => NextCheck::CheckIn(Duration::ZERO),
            WorkerState::Ready | WorkerState::Draining => {
                NextCheck::CheckIn(self.settings.checks.interval)
            }
            WorkerState::WarmingUp => {
                NextCheck::CheckIn(self.settings.checks.warmup_check_interval)
            }
            WorkerState::Ejected => {
                let left = self
                    .ejected_until
                    .map_or(Duration::ZERO, |until| until.since(now));
                NextCheck::CheckIn(left.min(self.settings.checks.interval))
            }
            // Checks that pass are run back to back until the threshold is met (decision B4).
            WorkerState::Down if self.passed_checks > 0 => NextCheck::CheckIn(Duration::ZERO),
            WorkerState::Down if self.connect_now => NextCheck::ConnectIn(Duration::ZERO),
            WorkerState::Down if self.overdue => NextCheck::CheckIn(self.settings.checks.interval),
            // The interval of checks is the longest pause, however rare attempts may get.
            WorkerState::Down => {
                let interval = self.settings.checks.interval;
                NextCheck::ConnectIn(self.connect_probe_pause.min(interval))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    fn ready() -> WorkerHealth {
        let mut health = WorkerHealth::new(Arc::default());
        health.record_check(at(0), CheckOutcome::Passed);
        health
    }

    #[test]
    #[contract("CH3")]
    fn the_first_check_decides_alone() {
        for (check, state) in [
            (CheckOutcome::Passed, WorkerState::Ready),
            (CheckOutcome::Loading, WorkerState::WarmingUp),
            (CheckOutcome::Refused, WorkerState::Down),
            (CheckOutcome::Failed, WorkerState::Down),
        ] {
            let mut health = WorkerHealth::new(Arc::default());
            assert_eq!(health.state(), WorkerState::Unknown);
            assert_eq!(health.next(at(0)), NextCheck::CheckIn(Duration::ZERO));
            assert_eq!(health.record_check(at(0), check), state, "{check:?}");
        }
    }

    #[test]
    #[contract("CH2")]
    fn three_failed_checks_in_a_row_take_a_worker_down_and_two_passed_ones_bring_it_back() {
        let mut health = ready();
        for check in [
            CheckOutcome::Failed,
            CheckOutcome::Failed,
            CheckOutcome::Passed,
            CheckOutcome::Failed,
            CheckOutcome::Failed,
        ] {
            assert_eq!(health.record_check(at(1), check), WorkerState::Ready);
        }
        assert_eq!(
            health.record_check(at(2), CheckOutcome::Failed),
            WorkerState::Down
        );
        assert_eq!(
            health.record_check(at(3), CheckOutcome::Passed),
            WorkerState::Down
        );
        assert_eq!(
            health.record_check(at(3), CheckOutcome::Failed),
            WorkerState::Down
        );
        assert_eq!(
            health.record_check(at(4), CheckOutcome::Passed),
            WorkerState::Down
        );
        assert_eq!(
            health.record_check(at(4), CheckOutcome::Passed),
            WorkerState::Ready
        );
    }

    #[test]
    #[contract("CH4", "CH5")]
    fn a_loading_worker_is_checked_every_second_and_used_after_one_success() {
        for mut health in [ready(), WorkerHealth::new(Arc::default())] {
            assert_eq!(
                health.record_check(at(10), CheckOutcome::Loading),
                WorkerState::WarmingUp
            );
            assert_eq!(
                health.next(at(10)),
                NextCheck::CheckIn(Duration::from_secs(1))
            );
            assert_eq!(
                health.record_check(at(11), CheckOutcome::Passed),
                WorkerState::Ready
            );
            assert_eq!(
                health.next(at(11)),
                NextCheck::CheckIn(Duration::from_secs(30))
            );
        }
    }

    #[test]
    #[contract("CH4")]
    fn a_worker_that_loads_for_too_long_is_down_until_it_serves() {
        let mut health = WorkerHealth::new(Arc::default());
        health.record_check(at(0), CheckOutcome::Loading);
        assert_eq!(
            health.record_check(at(300), CheckOutcome::Loading),
            WorkerState::WarmingUp
        );
        for seconds in [301, 331] {
            assert_eq!(
                health.record_check(at(seconds), CheckOutcome::Loading),
                WorkerState::Down
            );
            assert_eq!(
                health.next(at(seconds)),
                NextCheck::CheckIn(Duration::from_secs(30)),
                "at the normal interval"
            );
        }
        health.record_check(at(361), CheckOutcome::Passed);
        assert_eq!(
            health.record_check(at(361), CheckOutcome::Passed),
            WorkerState::Ready
        );
    }

    #[test]
    #[contract("B4")]
    fn a_worker_that_is_down_gets_rarer_connect_probes_and_then_checks_in_a_row() {
        let mut health = ready();
        assert_eq!(
            health.record_check(at(1), CheckOutcome::Refused),
            WorkerState::Down
        );
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let NextCheck::ConnectIn(pause) = health.next(at(1)) else {
                panic!("a worker that is down gets connect probes")
            };
            pauses.push(pause.as_millis());
            health.record_failed_connect();
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 2000, 2000]);
        health.record_check(at(9), CheckOutcome::Passed);
        assert_eq!(health.next(at(9)), NextCheck::CheckIn(Duration::ZERO));
        assert_eq!(
            health.record_check(at(9), CheckOutcome::Passed),
            WorkerState::Ready
        );
    }

    #[test]
    #[contract("B4", "CH3")]
    fn a_worker_that_accepts_connections_and_fails_its_checks_gets_rarer_checks() {
        let settings = HealthSettings {
            checks: HealthChecksSection {
                interval: Duration::from_secs(1),
                ..HealthChecksSection::default()
            },
            ..HealthSettings::default()
        };
        let mut health = WorkerHealth::new(Arc::new(settings));
        health.record_check(at(0), CheckOutcome::Failed);
        // A sign of life that no check confirms does not make it checked without pause.
        health.restart_connect_probes();
        let mut pauses = Vec::new();
        for _ in 0..5 {
            let NextCheck::ConnectIn(pause) = health.next(at(1)) else {
                panic!("a worker that is down gets connect probes")
            };
            pauses.push(pause.as_millis());
            health.record_check(at(1), CheckOutcome::Failed);
        }
        assert_eq!(pauses, [0, 500, 1000, 1000, 1000], "at most the interval");
    }

    #[test]
    fn a_sign_of_life_restarts_the_connect_probes() {
        let mut health = ready();
        health.record_check(at(1), CheckOutcome::Refused);
        for _ in 0..4 {
            health.record_failed_connect();
        }
        assert_eq!(
            health.next(at(9)),
            NextCheck::ConnectIn(Duration::from_secs(2))
        );
        health.restart_connect_probes();
        assert_eq!(health.next(at(9)), NextCheck::ConnectIn(Duration::ZERO));
        health.record_failed_connect();
        assert_eq!(
            health.next(at(9)),
            NextCheck::ConnectIn(Duration::from_millis(500))
        );
    }

    #[test]
    fn a_refused_request_takes_the_worker_down_at_once_and_probes_without_delay() {
        let mut health = ready();
        assert_eq!(
            health.request_failed(at(1), FailureKind::Refused, EjectionPermit::Denied),
            WorkerState::Down
        );
        assert_eq!(health.next(at(1)), NextCheck::ConnectIn(Duration::ZERO));
        health.record_failed_connect();
        // Late reports of the same outage neither hurry the connect probes nor reset their pause.
        health.request_failed(at(1), FailureKind::Refused, EjectionPermit::Denied);
        assert_eq!(
            health.next(at(1)),
            NextCheck::ConnectIn(Duration::from_millis(500))
        );
    }

    #[test]
    fn five_failed_requests_in_a_row_eject_a_worker_for_thirty_seconds_however_well_it_passes_checks()
     {
        let mut health = ready();
        for _ in 0..4 {
            assert_eq!(
                health.request_failed(at(1), FailureKind::Status, EjectionPermit::Granted),
                WorkerState::Ready
            );
        }
        health.request_succeeded();
        for _ in 0..4 {
            assert_eq!(
                health.request_failed(at(1), FailureKind::ResetBeforeHead, EjectionPermit::Granted),
                WorkerState::Ready
            );
        }
        assert_eq!(
            health.request_failed(at(1), FailureKind::Status, EjectionPermit::Granted),
            WorkerState::Ejected
        );
        assert_eq!(
            health.next(at(1)),
            NextCheck::CheckIn(Duration::from_secs(30))
        );
        assert_eq!(
            health.record_check(at(30), CheckOutcome::Passed),
            WorkerState::Ejected
        );
        assert_eq!(
            health.record_check(at(31), CheckOutcome::Passed),
            WorkerState::Ready
        );
    }

    #[test]
    fn a_check_or_request_that_failed_locally_does_not_count() {
        let mut health = ready();
        for _ in 0..50 {
            assert_eq!(
                health.record_check(at(1), CheckOutcome::NotMade),
                WorkerState::Ready
            );
            assert_eq!(
                health.request_failed(at(1), FailureKind::Local, EjectionPermit::Granted),
                WorkerState::Ready
            );
        }
        // Nor does it begin a new row of failures.
        for (check, state) in [
            (CheckOutcome::Failed, WorkerState::Ready),
            (CheckOutcome::Failed, WorkerState::Ready),
            (CheckOutcome::NotMade, WorkerState::Ready),
            (CheckOutcome::Failed, WorkerState::Down),
            (CheckOutcome::NotMade, WorkerState::Down),
        ] {
            assert_eq!(health.record_check(at(2), check), state);
        }
        // A start does not wait for a verdict that is impossible.
        assert_eq!(
            WorkerHealth::new(Arc::default()).record_check(at(0), CheckOutcome::NotMade),
            WorkerState::Down
        );
    }

    #[test]
    fn the_last_usable_worker_is_never_ejected() {
        let mut health = ready();
        for _ in 0..50 {
            assert_eq!(
                health.request_failed(at(1), FailureKind::Status, EjectionPermit::Denied),
                WorkerState::Ready
            );
        }
    }

    #[test]
    fn an_answered_503_does_not_eject_a_worker() {
        let mut health = ready();
        for _ in 0..50 {
            assert_eq!(
                health.request_failed(at(1), FailureKind::Unavailable, EjectionPermit::Granted),
                WorkerState::Ready
            );
        }
    }
}
