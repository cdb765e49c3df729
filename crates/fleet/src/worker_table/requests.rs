//! Outcomes of routed requests, as the request path reports them.

use config::CircuitBreakerSection;
use kv_blocks::WorkerId;

use super::{WorkerTable, find};
use crate::{
    FailureKind, WorkerState,
    worker_machine::{EjectionPermit, WorkerEvent},
    worker_record::WorkerRecord,
};

/// Returns whether failed requests may eject this worker: only while every model stays served, and
/// the ejected share within its limit.
fn permit(rule: &CircuitBreakerSection, entries: &[WorkerRecord], id: WorkerId) -> EjectionPermit {
    let worker = entries.iter().find(|entry| entry.view.id == id);
    let ejected = entries
        .iter()
        .filter(|entry| entry.machine.health_state() == WorkerState::Ejected)
        .count()
        + 1;
    #[allow(clippy::cast_precision_loss, reason = "numbers of workers")]
    let within = ejected as f64 <= rule.max_ejected_ratio * entries.len() as f64;
    if rule.enabled && within && worker.is_some_and(|worker| is_replaceable(worker, entries)) {
        EjectionPermit::Granted
    } else {
        EjectionPermit::Denied
    }
}

/// Returns whether each of the worker's models is served by another ready worker.
fn is_replaceable(worker: &WorkerRecord, entries: &[WorkerRecord]) -> bool {
    // A request can do without a prefill worker.
    if worker.view.only_prefills() {
        return true;
    }
    let serves = |id: &str| {
        entries.iter().any(|other| {
            other.view.id != worker.view.id
                && !other.view.only_prefills()
                && other.view.is_ready()
                && other
                    .view
                    .served
                    .models
                    .iter()
                    .any(|listed| &*listed.id == id)
        })
    };
    worker
        .view
        .served
        .models
        .iter()
        .all(|model| serves(&model.id))
}

impl WorkerTable {
    /// Records a failed request (contract of [`crate::Fleet::report_failure`]).
    pub(crate) fn request_failed(&self, id: WorkerId, kind: FailureKind) {
        if kind == FailureKind::Local || !self.records.failed(id, self.clock.now()) {
            return;
        }
        let mut entries = self.entries.lock();
        let ejection = permit(&self.health.read().breaker, &entries, id);
        let event = WorkerEvent::RequestFailed { kind, ejection };
        self.on_locked(&mut entries, id, event);
    }

    /// Records a successful request.
    pub(crate) fn request_succeeded(&self, id: WorkerId) {
        if self.records.succeeded(id)
            && let Some(entry) = find(&mut self.entries.lock(), id)
        {
            self.step(entry, WorkerEvent::RequestSucceeded);
        }
    }

    /// Records that a request's reply has begun.
    pub(crate) fn request_answered(&self, id: WorkerId) {
        self.records.answered(id);
    }

    /// Returns whether a request failed there lately with no answer since.
    pub(crate) fn failed_lately(&self, id: WorkerId) -> bool {
        self.records.failed_lately(id, self.clock.now())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kv_blocks::Role;
    use net::Clock;

    use super::*;
    use crate::worker_machine::CheckOutcome;

    fn ready(id: u32, model: &str) -> WorkerRecord {
        WorkerRecord::for_tests(WorkerId(id), &Clock::system())
            .serving(model)
            .checked(CheckOutcome::Passed)
    }

    fn permit(entries: &[WorkerRecord]) -> EjectionPermit {
        super::permit(&CircuitBreakerSection::default(), entries, WorkerId(0))
    }

    #[test]
    fn a_worker_is_ejected_only_while_another_one_serves_each_of_its_models() {
        let other = |outcome| {
            WorkerRecord::for_tests(WorkerId(1), &Clock::system())
                .serving("m")
                .checked(outcome)
        };
        for (other, expected) in [
            (other(CheckOutcome::Passed), EjectionPermit::Granted),
            (other(CheckOutcome::Failed), EjectionPermit::Denied),
            (ready(1, "other"), EjectionPermit::Denied),
        ] {
            let what = format!(
                "{:?} {:?}",
                other.view.health.state, other.view.served.models
            );
            assert_eq!(permit(&[ready(0, "m"), other]), expected, "{what}");
        }
        assert_eq!(
            permit(&[ready(1, "m"), ready(2, "m")]),
            EjectionPermit::Denied
        );
    }

    #[test]
    fn a_prefill_worker_needs_no_replacement_and_is_none() {
        let prefill = |id| {
            let mut record = ready(id, "m");
            Arc::make_mut(&mut record.view).role = Role::Prefill;
            record
        };
        let fleet = [prefill(0), ready(1, "other")];
        assert_eq!(permit(&fleet), EjectionPermit::Granted);
        let fleet = [ready(0, "m"), prefill(1)];
        assert_eq!(permit(&fleet), EjectionPermit::Denied);
    }

    #[test]
    fn the_ejected_share_has_a_limit_and_the_rule_can_be_off() {
        let fleet = [ready(0, "m"), ready(1, "m")];
        for (enabled, max_ejected_ratio, expected) in [
            (true, 0.5, EjectionPermit::Granted),
            (true, 0.49, EjectionPermit::Denied),
            (false, 1.0, EjectionPermit::Denied),
        ] {
            let rule = CircuitBreakerSection {
                enabled,
                max_ejected_ratio,
                ..CircuitBreakerSection::default()
            };
            assert_eq!(
                super::permit(&rule, &fleet, WorkerId(0)),
                expected,
                "{rule:?}"
            );
        }
        let failed = WorkerEvent::RequestFailed {
            kind: FailureKind::Status,
            ejection: EjectionPermit::Granted,
        };
        let fleet = [ready(0, "m"), ready(1, "m").decided(failed)];
        assert_eq!(permit(&fleet), EjectionPermit::Denied, "half are ejected");
    }
}
