//! Circuit breakers for queries of one kind: which workers may get one now.
//!
//! One failed query says little about a worker: the query itself may be unusual. A worker's breaker
//! opens after several different queries have failed in a row.
//!
//! **Invariant**: no worker has more than [`AT_ONCE`] queries at a time, if each one is sent only
//! while [`TokenizerBreakers::allows`] it.

use std::{collections::HashMap, time::Duration};

use kv_blocks::{Moment, WorkerId};
use resilience::{Backoff, CircuitBreaker};

use crate::token_cache::QueryDigest;

/// Most queries at one worker at a time. An engine answers them beside its generations: more would
/// be late anyway.
pub(crate) const AT_ONCE: usize = 8;
/// Different queries that must fail in a row before a breaker opens.
const STRIKES: usize = 3;
/// How long a breaker stays open for a worker that does not answer such queries.
const REST: Duration = Duration::from_secs(5);
/// How long it stays open after late or missing answers; doubled each further time, up to [`REST`].
/// A busy engine is late now and then.
const SHORT_REST: Duration = Duration::from_millis(250);
/// Longer queries take their time: a late answer to one says nothing about short ones. In bytes.
const LONG_QUERY: usize = 16 << 10;

/// The reason why a worker gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenizeFailure {
    /// The engine refuses this query, as it will refuse the request: the worker is fine.
    Refused,
    /// The worker has no route for a chat with media: it is fine.
    Absent,
    /// The worker does not answer such queries.
    Broken,
    /// The worker did not answer in time, or closed the connection.
    Late,
    /// The worker cannot be reached at all.
    Unreachable,
}

/// A failed query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedQuery {
    pub(crate) why: TokenizeFailure,
    pub(crate) digest: QueryDigest,
    /// Length of the query, bytes.
    pub(crate) length: usize,
}

#[derive(Debug)]
struct WorkerBreaker {
    /// Queries in flight.
    in_flight: usize,
    /// Different queries that failed since the last answer or pause; fewer than [`STRIKES`].
    failed: Vec<QueryDigest>,
    /// Opened when enough queries failed.
    circuit: CircuitBreaker,
}

impl Default for WorkerBreaker {
    fn default() -> Self {
        Self {
            in_flight: 0,
            failed: Vec::new(),
            circuit: CircuitBreaker::new(1, Backoff::new(SHORT_REST, REST)),
        }
    }
}

/// The breaker of each queried worker; [`Self::retain_workers`] removes those of deleted workers.
#[derive(Debug, Default)]
pub(crate) struct TokenizerBreakers(HashMap<WorkerId, WorkerBreaker>);

impl TokenizerBreakers {
    pub(crate) fn allows(&self, worker: WorkerId, now: Moment) -> bool {
        self.0
            .get(&worker)
            .is_none_or(|breaker| breaker.in_flight < AT_ONCE && !breaker.circuit.is_open(now))
    }

    /// Counts a query to the worker. Each call is paired with [`Self::end_query`].
    pub(crate) fn begin_query(&mut self, worker: WorkerId) {
        self.0.entry(worker).or_default().in_flight += 1;
    }

    /// Counts the end of a query, whatever its result.
    pub(crate) fn end_query(&mut self, worker: WorkerId) {
        if let Some(breaker) = self.0.get_mut(&worker) {
            breaker.in_flight = breaker.in_flight.saturating_sub(1);
        }
    }

    /// Records an answer.
    pub(crate) fn record_success(&mut self, worker: WorkerId) {
        if let Some(breaker) = self.0.get_mut(&worker) {
            breaker.failed.clear();
            breaker.circuit.record_success();
        }
    }

    /// Records a failure. Returns the length of the pause if one begins now.
    pub(crate) fn record_failure(
        &mut self,
        worker: WorkerId,
        failure: FailedQuery,
        now: Moment,
    ) -> Option<Duration> {
        let FailedQuery {
            why,
            digest,
            length,
        } = failure;
        if matches!(why, TokenizeFailure::Refused | TokenizeFailure::Absent) {
            self.record_success(worker);
            return None;
        }
        let breaker = self.0.entry(worker).or_default();
        if breaker.circuit.is_open(now) || (why == TokenizeFailure::Late && length > LONG_QUERY) {
            return None;
        }
        if !breaker.failed.contains(&digest) {
            breaker.failed.push(digest);
        }
        if why != TokenizeFailure::Unreachable && breaker.failed.len() < STRIKES {
            return None;
        }
        breaker.failed.clear();
        match why {
            TokenizeFailure::Late => breaker.circuit.record_failure(now),
            _ => Some(breaker.circuit.record_outage(now)),
        }
    }

    /// Removes workers that are not `there` any more.
    pub(crate) fn retain_workers(&mut self, there: impl Fn(WorkerId) -> bool) {
        self.0.retain(|worker, _| there(*worker));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(1);

    fn failure(why: TokenizeFailure, digest: u8, length: usize) -> FailedQuery {
        FailedQuery {
            why,
            digest: [digest; 32],
            length,
        }
    }

    #[test]
    fn failures_of_different_queries_pause_a_worker_and_those_of_one_query_do_not() {
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
        for digest in [3, 4] {
            assert_eq!(
                all.record_failure(WORKER, failure(TokenizeFailure::Broken, digest, 10), now),
                None
            );
        }
        for why in [TokenizeFailure::Refused, TokenizeFailure::Absent] {
            all.record_failure(WORKER, failure(why, 9, 10), now);
        }
        for digest in [5, 6] {
            assert_eq!(
                all.record_failure(WORKER, failure(TokenizeFailure::Broken, digest, 10), now),
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
    fn late_long_queries_are_tolerated_and_late_short_ones_cause_growing_pauses() {
        let (mut all, mut now) = (TokenizerBreakers::default(), Moment::default());
        for digest in 0..10 {
            assert_eq!(
                all.record_failure(
                    WORKER,
                    failure(TokenizeFailure::Late, digest, LONG_QUERY + 1),
                    now
                ),
                None
            );
        }
        let mut rests = Vec::new();
        for digest in 0..24 {
            if let Some(rest) =
                all.record_failure(WORKER, failure(TokenizeFailure::Late, digest, 10), now)
            {
                // A query that was in flight meanwhile does not count.
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
    fn concurrent_queries_of_a_worker_are_bounded() {
        let (mut all, now) = (TokenizerBreakers::default(), Moment::default());
        for _ in 0..AT_ONCE {
            assert!(all.allows(WORKER, now));
            all.begin_query(WORKER);
        }
        assert!(!all.allows(WORKER, now));
        // An answer to one query frees one slot, not all.
        all.record_success(WORKER);
        all.end_query(WORKER);
        assert!(all.allows(WORKER, now));
        all.begin_query(WORKER);
        assert!(!all.allows(WORKER, now));
        all.retain_workers(|worker| worker != WORKER);
        assert!(all.0.is_empty());
    }
}
