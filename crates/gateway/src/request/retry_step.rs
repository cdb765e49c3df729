//! The table of retries: what follows a failed attempt, by its class and the workers that are left.
//!
//! [`crate::retry`] explains the classes. This table knows no clock, no budget and no worker: the
//! caller passes what it found, and performs the step.

use routing::receipt::AttemptClass;

/// A failed attempt as the table reads it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedStep {
    pub(super) class: AttemptClass,
    pub(super) status: Option<u16>,
    /// Whether the request names its worker.
    pub(super) pinned: bool,
    pub(super) untried: UntriedWorkers,
    /// Whether the model has no other worker.
    pub(super) only_worker: bool,
    /// Whether the request may still wait for a worker to appear or return.
    pub(super) may_wait: bool,
}

/// The workers that have not failed the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UntriedWorkers {
    None,
    /// Each of them failed its last request.
    AllFailedLately,
    SomeHealthy,
}

/// The step after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryStep {
    /// The client gets the failure.
    GiveUp,
    /// An untried worker gets the request.
    Elsewhere(PermitUse),
    /// The request waits like one that found no worker.
    WaitForWorker,
    /// Any worker gets the request again, after a pause.
    Again(PermitUse),
}

/// How a retry uses the retry budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermitUse {
    /// It needs no permit.
    Free,
    /// Without a permit the request ends.
    Needed,
    /// Without a permit the request waits for one, or for a worker that has recovered.
    WaitedFor,
}

impl FailedStep {
    /// Returns the step that follows.
    pub(super) fn next(self) -> RetryStep {
        if !self.pinned && self.untried != UntriedWorkers::None {
            return RetryStep::Elsewhere(self.permit_elsewhere());
        }
        // A request of which nothing was sent counts as new: it also waits for a worker to appear
        // or return, where that is allowed.
        if self.class == AttemptClass::C0 && self.may_wait {
            return RetryStep::WaitForWorker;
        }
        let alone = self.pinned || self.only_worker;
        let (repeats, waits) = match self.class {
            AttemptClass::C1 => (alone || self.may_wait, self.may_wait && !self.pinned),
            _ => (alone && self.status == Some(503), false),
        };
        match (repeats, waits) {
            (false, _) => RetryStep::GiveUp,
            (true, false) => RetryStep::Again(PermitUse::Needed),
            (true, true) => RetryStep::Again(PermitUse::WaitedFor),
        }
    }

    fn permit_elsewhere(self) -> PermitUse {
        match (self.class, self.untried) {
            (AttemptClass::C0, _) | (AttemptClass::C1, UntriedWorkers::SomeHealthy) => {
                PermitUse::Free
            }
            _ => PermitUse::Needed,
        }
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::{
        PermitUse::{Free, Needed, WaitedFor},
        RetryStep::{Again, Elsewhere, GiveUp, WaitForWorker},
        UntriedWorkers::{AllFailedLately, None as NoneLeft, SomeHealthy},
        *,
    };

    const CLASSES: [(AttemptClass, Option<u16>); 4] = [
        (AttemptClass::C0, None),
        (AttemptClass::C1, None),
        (AttemptClass::C2, Some(429)),
        (AttemptClass::C2, Some(503)),
    ];

    /// The steps after the four failures above.
    fn steps(pinned: bool, untried: UntriedWorkers, only: bool, may_wait: bool) -> [RetryStep; 4] {
        CLASSES.map(|(class, status)| {
            let failed = FailedStep {
                class,
                status,
                pinned,
                untried,
                only_worker: only,
                may_wait,
            };
            failed.next()
        })
    }

    #[test]
    #[contract("F1", "F2", "F4")]
    fn an_untried_worker_gets_the_request_and_only_a_likely_failure_costs_a_permit() {
        for may_wait in [false, true] {
            assert_eq!(
                steps(false, SomeHealthy, false, may_wait),
                [
                    Elsewhere(Free),
                    Elsewhere(Free),
                    Elsewhere(Needed),
                    Elsewhere(Needed)
                ]
            );
            assert_eq!(
                steps(false, AllFailedLately, false, may_wait),
                [
                    Elsewhere(Free),
                    Elsewhere(Needed),
                    Elsewhere(Needed),
                    Elsewhere(Needed)
                ]
            );
        }
    }

    #[test]
    #[contract("CH10")]
    fn without_an_untried_worker_only_a_lone_worker_gets_the_request_again() {
        // Of several workers that all failed the request, none is tried again.
        assert_eq!(steps(false, NoneLeft, false, false), [GiveUp; 4]);
        // The only worker, or the one that the request names.
        for (pinned, only) in [(false, true), (true, false), (true, true)] {
            assert_eq!(
                steps(pinned, NoneLeft, only, false),
                [GiveUp, Again(Needed), GiveUp, Again(Needed)],
                "pinned {pinned}, only {only}"
            );
        }
    }

    #[test]
    #[contract("V38")]
    fn where_requests_wait_for_a_worker_so_do_those_whose_attempts_reached_none() {
        assert_eq!(
            steps(false, NoneLeft, false, true),
            [WaitForWorker, Again(WaitedFor), GiveUp, GiveUp]
        );
        assert_eq!(
            steps(false, NoneLeft, true, true),
            [WaitForWorker, Again(WaitedFor), GiveUp, Again(Needed)]
        );
    }

    #[test]
    fn a_pinned_request_never_goes_to_another_worker() {
        for untried in [NoneLeft, AllFailedLately, SomeHealthy] {
            for only in [false, true] {
                assert_eq!(
                    steps(true, untried, only, false),
                    [GiveUp, Again(Needed), GiveUp, Again(Needed)]
                );
                // It waits for its worker to return, and for no permit.
                assert_eq!(
                    steps(true, untried, only, true),
                    [WaitForWorker, Again(Needed), GiveUp, Again(Needed)]
                );
            }
        }
    }
}
