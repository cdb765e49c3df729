//! How workers took the questions that they were asked lately: who may be asked now.
//!
//! One question says little about a worker: it may be the question that is odd. What rests a worker is several different
//! ones that failed in a row.
//!
//! **Invariant**: no worker has more than [`AT_ONCE`] questions at a time, if each is asked only while [`Standings::may_be_asked`].

use std::{collections::HashMap, time::Duration};

use kv_blocks::{Moment, WorkerId};

use super::token_cache::QueryDigest;

/// Questions at one worker at one moment. An engine answers them beside its generations: more would be late anyway.
pub(super) const AT_ONCE: usize = 8;
/// So many different questions in a row must fail before a worker is left alone.
const STRIKES: usize = 3;
/// How long a worker is left alone that does not answer such questions.
const REST: Duration = Duration::from_secs(5);
/// How long after answers that came too late, or not; twice as long after further ones, up to [`REST`]. A busy engine
/// answers late now and then.
const SHORT_REST: Duration = Duration::from_millis(250);
/// Longer questions take their time: that they are late says nothing about short ones. In bytes.
const LONG_QUESTION: usize = 16 << 10;

/// Why a worker gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenizeFailure {
    /// The engine refuses this question, as it will refuse the request: an answer of a kind.
    Refused,
    /// The worker does not answer such questions.
    Broken,
    /// It did not answer in time, or hung up.
    Late,
    /// It cannot be reached, whatever is asked.
    Unreachable,
}

/// A question that failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedQuery {
    pub(super) why: TokenizeFailure,
    pub(super) question: QueryDigest,
    /// The question's length in bytes.
    pub(super) length: usize,
}

#[derive(Debug, Default)]
struct WorkerBreaker {
    /// Questions on their way.
    in_flight: usize,
    /// Different questions that failed since the last answer or rest; fewer than [`STRIKES`].
    failed: Vec<QueryDigest>,
    /// How long it was left alone the last time, and until when; nothing since an answer.
    rest: Duration,
    until: Option<Moment>,
}

impl WorkerBreaker {
    fn rests(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| until > now)
    }
}

/// The standing of each worker that was asked; [`Self::forget_gone`] keeps it to those that there are.
#[derive(Debug, Default)]
pub(super) struct TokenizerBreakers(HashMap<WorkerId, WorkerBreaker>);

impl TokenizerBreakers {
    pub(super) fn allows(&self, worker: WorkerId, now: Moment) -> bool {
        self.0
            .get(&worker)
            .is_none_or(|standing| standing.in_flight < AT_ONCE && !standing.rests(now))
    }

    /// A question goes to the worker. Each is followed by [`Self::over`].
    pub(super) fn begin_query(&mut self, worker: WorkerId) {
        self.0.entry(worker).or_default().in_flight += 1;
    }

    /// A question is no longer on its way, however it ended.
    pub(super) fn end_query(&mut self, worker: WorkerId) {
        if let Some(standing) = self.0.get_mut(&worker) {
            standing.in_flight = standing.in_flight.saturating_sub(1);
        }
    }

    /// The worker answered a question.
    pub(super) fn record_success(&mut self, worker: WorkerId) {
        if let Some(standing) = self.0.get_mut(&worker) {
            *standing = WorkerBreaker {
                in_flight: standing.in_flight,
                ..WorkerBreaker::default()
            };
        }
    }

    /// The worker failed a question. Says for how long it is left alone, if it is from now on.
    pub(super) fn record_failure(
        &mut self,
        worker: WorkerId,
        failure: FailedQuery,
        now: Moment,
    ) -> Option<Duration> {
        let FailedQuery {
            why,
            question,
            length,
        } = failure;
        if why == TokenizeFailure::Refused {
            self.record_success(worker);
            return None;
        }
        let standing = self.0.entry(worker).or_default();
        if standing.rests(now) || (why == TokenizeFailure::Late && length > LONG_QUESTION) {
            return None;
        }
        if !standing.failed.contains(&question) {
            standing.failed.push(question);
        }
        if why != TokenizeFailure::Unreachable && standing.failed.len() < STRIKES {
            return None;
        }
        standing.failed.clear();
        standing.rest = if why == TokenizeFailure::Late {
            (standing.rest * 2).clamp(SHORT_REST, REST)
        } else {
            REST
        };
        standing.until = Some(now + standing.rest);
        Some(standing.rest)
    }

    /// Forgets workers that are not `there` any more.
    pub(super) fn retain_workers(&mut self, there: impl Fn(WorkerId) -> bool) {
        self.0.retain(|worker, _| there(*worker));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(1);

    fn failure(why: TokenizeFailure, question: u8, length: usize) -> FailedQuery {
        FailedQuery {
            why,
            question: [question; 32],
            length,
        }
    }

    #[test]
    fn different_questions_in_a_row_rest_a_worker_and_one_question_never_does() {
        let (mut all, now) = (TokenizerBreakers::default(), Moment::default());
        for _ in 0..10 {
            assert_eq!(
                all.record_failure(WORKER, failure(TokenizeFailure::Broken, 1, 10), now),
                None
            );
        }
        assert_eq!(
            all.record_failure(WORKER, failure(TokenizeFailure::Broken, 2, 10), now),
            None
        );
        all.record_success(WORKER);
        for question in [3, 4] {
            assert_eq!(
                all.record_failure(WORKER, failure(TokenizeFailure::Broken, question, 10), now),
                None
            );
        }
        all.record_failure(WORKER, failure(TokenizeFailure::Refused, 9, 10), now);
        for question in [5, 6] {
            assert_eq!(
                all.record_failure(WORKER, failure(TokenizeFailure::Broken, question, 10), now),
                None
            );
        }
        assert!(all.allows(WORKER, now));
        assert_eq!(
            all.record_failure(WORKER, failure(TokenizeFailure::Broken, 7, 10), now),
            Some(REST)
        );
        assert!(!all.allows(WORKER, now));
        assert!(all.allows(WORKER, now + REST));
    }

    #[test]
    fn long_questions_may_be_late_and_short_ones_cost_longer_and_longer_rests() {
        let (mut all, mut now) = (TokenizerBreakers::default(), Moment::default());
        for question in 0..10 {
            assert_eq!(
                all.record_failure(
                    WORKER,
                    failure(TokenizeFailure::Late, question, LONG_QUESTION + 1),
                    now
                ),
                None
            );
        }
        let mut rests = Vec::new();
        for question in 0..24 {
            if let Some(rest) =
                all.record_failure(WORKER, failure(TokenizeFailure::Late, question, 10), now)
            {
                // What was on its way meanwhile does not count.
                assert_eq!(
                    all.record_failure(WORKER, failure(TokenizeFailure::Late, 99, 10), now),
                    None
                );
                now = now + rest;
                rests.push(rest.as_millis());
            }
        }
        assert_eq!(rests, [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000]);
        all.record_success(WORKER);
        assert_eq!(
            all.record_failure(WORKER, failure(TokenizeFailure::Unreachable, 1, 10), now),
            Some(REST)
        );
    }

    #[test]
    fn a_worker_has_so_many_questions_at_once_and_no_more() {
        let (mut all, now) = (TokenizerBreakers::default(), Moment::default());
        for _ in 0..AT_ONCE {
            assert!(all.allows(WORKER, now));
            all.begin_query(WORKER);
        }
        assert!(!all.allows(WORKER, now));
        // An answer to one of them frees one place, not all.
        all.record_success(WORKER);
        all.end_query(WORKER);
        assert!(all.allows(WORKER, now));
        all.begin_query(WORKER);
        assert!(!all.allows(WORKER, now));
        all.retain_workers(|worker| worker != WORKER);
        assert!(all.0.is_empty());
    }
}
