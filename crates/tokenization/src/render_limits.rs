//! Which workers may get a render query, and of which length.
//!
//! Older releases of vLLM put the items of a rendered chat into the cache that its process for HTTP
//! keeps of what the engine has got, though the engine gets nothing; the generation with the same
//! items then fails. So they get no such query.
//!
//! An engine processes each image of such a query, which takes it longer the more there is, and not
//! every engine has the route. So a worker without it gets no such query for a while, and one that
//! was late gets shorter ones only: after a failed query of some length, half of it is the longest
//! at first, and time doubles it again.

use std::{collections::HashMap, time::Duration};

use fleet::{EngineKind, WorkerView};
use kv_blocks::{Moment, WorkerId};

use crate::{render_query, token_cache::TokenSource};

/// How long a worker without the route is not asked again, unless its process changes.
const ABSENCE: Duration = Duration::from_secs(300);
/// The time that doubles the longest query of a worker.
const RECOVERY: Duration = Duration::from_secs(30);
/// The length from which it doubles, at least.
const SHORTEST: usize = 1 << 10;
/// The first release of vLLM, major and minor, that gets render queries.
const FIRST_RELEASE: (u32, u32) = (0, 21);

#[derive(Clone, Copy, Debug)]
struct WorkerLimit {
    /// The longest query at `since`.
    longest: usize,
    since: Moment,
    /// The worker that has no such route, and when it said so.
    absent: Option<(TokenSource, Moment)>,
}

impl WorkerLimit {
    fn new(now: Moment) -> Self {
        Self {
            longest: render_query::LONGEST,
            since: now,
            absent: None,
        }
    }

    fn longest(&self, now: Moment) -> usize {
        let doublings = now.since(self.since).as_secs() / RECOVERY.as_secs();
        let longest = self.longest.max(SHORTEST);
        let longest = longest.saturating_mul(1_usize << doublings.min(16));
        longest.min(render_query::LONGEST)
    }

    fn is_absent(&self, source: TokenSource, now: Moment) -> bool {
        self.absent
            .is_some_and(|(known, since)| known == source && now.since(since) < ABSENCE)
    }
}

/// The limits of workers that failed such a query; [`Self::retain_workers`] removes those of
/// deleted workers.
#[derive(Debug, Default)]
pub(crate) struct RenderLimits(HashMap<WorkerId, WorkerLimit>);

impl RenderLimits {
    /// Returns whether the worker may get a query of this many bytes.
    pub(crate) fn allows(&self, worker: &WorkerView, length: usize, now: Moment) -> bool {
        // Other engines have no such route.
        let may_have_route = worker.engine.kind == EngineKind::Vllm
            && !worker.engine.version.as_deref().is_some_and(is_too_old);
        may_have_route
            && self.0.get(&worker.id).is_none_or(|limit| {
                length <= limit.longest(now) && !limit.is_absent(TokenSource::of(worker), now)
            })
    }

    /// Records that the worker has no such route.
    pub(crate) fn record_absence(&mut self, source: TokenSource, now: Moment) {
        let limit = self.limit(source.worker(), now);
        limit.absent = Some((source, now));
    }

    /// Records a query of this many bytes whose answer was late, too long or broken.
    pub(crate) fn record_failure(&mut self, worker: WorkerId, length: usize, now: Moment) {
        let limit = self.limit(worker, now);
        // A query that was sent before another one failed may be longer than what is allowed now.
        limit.longest = limit.longest(now).min(length / 2);
        limit.since = now;
    }

    /// Removes workers that are not `there` any more.
    pub(crate) fn retain_workers(&mut self, there: impl Fn(WorkerId) -> bool) {
        self.0.retain(|worker, _| there(*worker));
    }

    fn limit(&mut self, worker: WorkerId, now: Moment) -> &mut WorkerLimit {
        self.0
            .entry(worker)
            .or_insert_with(|| WorkerLimit::new(now))
    }
}

/// Returns whether a version is older than [`FIRST_RELEASE`]; false for one of another form.
fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < FIRST_RELEASE,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use net::Clock;

    use super::*;

    fn worker() -> WorkerView {
        let url = "http://127.0.0.1:1".parse().expect("a URL");
        let mut worker = WorkerView::unknown(WorkerId(1), "w1".into(), url, Clock::system().wall());
        worker.engine.kind = EngineKind::Vllm;
        worker
    }

    #[test]
    #[contract("D2")]
    fn only_vllm_and_no_release_whose_generations_would_fail_gets_a_query() {
        let (limits, now) = (RenderLimits::default(), Moment::default());
        for (version, allowed) in [
            (None, true),
            (Some("0.18.0"), false),
            (Some("0.20.2"), false),
            (Some("0.20.3.dev1+gabc"), false),
            (Some("0.21.0"), true),
            (Some("0.32.0"), true),
            (Some("1.0"), true),
            (Some("dev"), true),
            (Some(""), true),
        ] {
            let mut worker = worker();
            worker.engine.version = version.map(Into::into);
            assert_eq!(limits.allows(&worker, 1, now), allowed, "{version:?}");
            worker.engine.kind = EngineKind::Openai;
            assert!(!limits.allows(&worker, 1, now), "{version:?}");
        }
    }

    #[test]
    fn a_worker_without_the_route_is_asked_again_after_a_while_or_when_its_process_changes() {
        let (mut limits, worker, now) = (RenderLimits::default(), worker(), Moment::default());
        assert!(limits.allows(&worker, 1, now));
        limits.record_absence(TokenSource::of(&worker), now);
        let last = now + ABSENCE - Duration::from_secs(1);
        assert!(!limits.allows(&worker, 1, now) && !limits.allows(&worker, 1, last));
        assert!(limits.allows(&worker, 1, now + ABSENCE));
        let mut changed = worker;
        changed.health.ended += 1;
        assert!(limits.allows(&changed, 1, now));
    }

    #[test]
    fn a_failed_query_halves_the_longest_one_and_time_doubles_it() {
        let (mut limits, worker) = (RenderLimits::default(), worker());
        let mut now = Moment::default();
        let longest = |limits: &RenderLimits, now| {
            let lengths = (0..=23).map(|power| 1_usize << power);
            lengths
                .rev()
                .find(|length| limits.allows(&worker, *length, now))
        };
        assert_eq!(longest(&limits, now), Some(render_query::LONGEST));
        for length in [1 << 20, 1 << 19, 4 << 20] {
            limits.record_failure(worker.id, length, now);
        }
        assert_eq!(longest(&limits, now), Some(1 << 18));
        now = now + RECOVERY;
        assert_eq!(longest(&limits, now), Some(1 << 19));
        limits.record_failure(worker.id, 1 << 19, now);
        assert_eq!(longest(&limits, now), Some(1 << 18));
        assert_eq!(longest(&limits, now + 5 * RECOVERY), Some(1 << 23));
        assert_eq!(longest(&limits, now + 500 * RECOVERY), Some(1 << 23));
        // However many fail, short queries are tried.
        for _ in 0..64 {
            limits.record_failure(worker.id, 1, now);
        }
        assert_eq!(longest(&limits, now), Some(SHORTEST));
        limits.retain_workers(|worker| worker != WorkerId(1));
        assert!(limits.0.is_empty());
    }
}
