//! A tracker with one target, and a clock that advances by itself.

use std::time::Duration;

use api::ParityCounts;
use kv_blocks::{DpRank, Moment, Target, WorkerId};
use parity::{
    Basis, EngineCounters, IncomparableRequest, ParityChange, ParitySettings, ParityState,
    ParityTracker, PredictionSample, ReplyKind, Summary,
};

pub(crate) const TARGET: Target = Target {
    worker: WorkerId(3),
    rank: DpRank(1),
};
pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) const SETTINGS: ParitySettings = ParitySettings {
    window: Duration::from_secs(600),
    min_joined: 50,
    drift_ratio: 0.05,
    downgrade_ratio: 0.2,
    recover_ratio: 0.02,
};

pub(crate) struct TrackerFixture {
    pub(crate) tracker: ParityTracker,
    pub(crate) now: Moment,
    pub(crate) basis: Basis,
    /// The kind of replies that report prompt tokens.
    pub(crate) counted_by: Option<ReplyKind>,
    /// The number of restarts of its event publisher.
    pub(crate) restarts: u64,
    /// Each state entered, and the action that it requires.
    pub(crate) changes: Vec<ParityChange>,
}

impl TrackerFixture {
    pub(crate) fn new(settings: ParitySettings) -> Self {
        Self {
            tracker: ParityTracker::new(settings),
            now: Moment::START + SECOND,
            basis: Basis::Events,
            counted_by: None,
            restarts: 0,
            changes: Vec::new(),
        }
    }

    /// A request of 1000 tokens; `None`: its reply has no cached tokens.
    pub(crate) fn request(&mut self, predicted: u32, announced: u32, actual: Option<u32>) {
        let sample = self.sample(predicted, announced, actual);
        self.now = self.now + Duration::from_millis(10);
        self.ended(sample);
    }

    /// A request sent now.
    pub(crate) fn sample(
        &self,
        predicted: u32,
        announced: u32,
        actual: Option<u32>,
    ) -> PredictionSample {
        let Self {
            now: sent,
            basis,
            counted_by,
            ..
        } = *self;
        PredictionSample {
            sent,
            prompt_tokens: 1000,
            predicted,
            announced,
            actual,
            counted_by,
            basis,
        }
    }

    pub(crate) fn ended(&mut self, sample: PredictionSample) {
        self.changes
            .extend(self.tracker.observe(self.now, TARGET, sample).change);
    }

    /// An incomparable request of `prompt_tokens` tokens.
    pub(crate) fn incomparable(&mut self, prompt_tokens: u64) {
        let sent = self.now;
        self.now = self.now + Duration::from_millis(10);
        self.tracker.record_incomparable(
            self.now,
            TARGET,
            IncomparableRequest {
                sent,
                until: self.now,
                prompt_tokens,
            },
        );
    }

    /// Requests that are each off by `off` of 1000 tokens; the announced tokens are off as much.
    pub(crate) fn off_by(&mut self, off: u32, requests: usize) {
        (0..requests).for_each(|_| self.request(500 + off, 500 + off, Some(500)));
    }

    /// The same with only the announced tokens off.
    pub(crate) fn announced_off_by(&mut self, off: u32, requests: usize) {
        (0..requests).for_each(|_| self.request(500, 500 + off, Some(500)));
    }

    pub(crate) fn tick(&mut self) {
        self.tick_with(None, true);
    }

    /// A reading of the engine's counters.
    pub(crate) fn read_counters(&mut self, queries: u64, hits: u64) {
        self.tick_with(
            Some(EngineCounters {
                at: self.now,
                queries,
                hits,
            }),
            true,
        );
    }

    pub(crate) fn tick_with(&mut self, counters: Option<EngineCounters>, followed: bool) {
        self.now = self.now + Duration::from_millis(10);
        let stream = followed.then_some(self.restarts);
        self.changes
            .extend(self.tracker.tick(self.now, TARGET, counters, stream));
    }

    pub(crate) fn state(&self) -> ParityState {
        self.tracker.state(TARGET)
    }

    /// States entered so far.
    pub(crate) fn path(&self) -> Vec<ParityState> {
        self.changes.iter().map(|change| change.to).collect()
    }

    pub(crate) fn summary(&self) -> Summary {
        self.tracker.summary(TARGET)
    }

    pub(crate) fn report(&self) -> ParityCounts {
        self.summary().counts()
    }
}
