//! A book with one target, and a clock that goes on by itself.

use std::time::Duration;

use kv_blocks::{DpRank, Moment, Target, WorkerId};
use parity::{
    Basis, EngineCounters, IncomparableRequest, ParityChange, ParityReport, ParitySettings,
    ParityState, ParityTracker, PredictionSample, ReplyKind,
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

pub(crate) struct Journal {
    pub(crate) book: ParityTracker,
    pub(crate) now: Moment,
    pub(crate) basis: Basis,
    /// What replies that count the prompt are.
    pub(crate) counted_by: Option<ReplyKind>,
    /// Times that the publisher of its events has restarted.
    pub(crate) restarts: u64,
    /// Each state entered, and what that asks for.
    pub(crate) changes: Vec<ParityChange>,
}

impl Journal {
    pub(crate) fn new(settings: ParitySettings) -> Self {
        Self {
            book: ParityTracker::new(settings),
            now: Moment::START + SECOND,
            basis: Basis::Events,
            counted_by: None,
            restarts: 0,
            changes: Vec::new(),
        }
    }

    /// A request of 1000 tokens; `None`: its reply does not tell.
    pub(crate) fn request(&mut self, predicted: u32, announced: u32, actual: Option<u32>) {
        let sample = self.sample(predicted, announced, actual);
        self.now = self.now + Duration::from_millis(10);
        self.ended(sample);
    }

    /// One that is sent now.
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
            .extend(self.book.observe(self.now, TARGET, sample).change);
    }

    /// A request of so many tokens that cannot be judged.
    pub(crate) fn unjudged(&mut self, prompt_tokens: u64) {
        let sent = self.now;
        self.now = self.now + Duration::from_millis(10);
        self.book.record_incomparable(
            self.now,
            TARGET,
            IncomparableRequest {
                sent,
                until: self.now,
                prompt_tokens,
            },
        );
    }

    /// So many requests, each off by `off` of its 1000 tokens; what events say is off as much.
    pub(crate) fn off_by(&mut self, off: u32, requests: usize) {
        (0..requests).for_each(|_| self.request(500 + off, 500 + off, Some(500)));
    }

    /// The same while only what events say is off.
    pub(crate) fn announced_off_by(&mut self, off: u32, requests: usize) {
        (0..requests).for_each(|_| self.request(500, 500 + off, Some(500)));
    }

    pub(crate) fn tick(&mut self) {
        self.look(None, true);
    }

    /// The engine tells its counters.
    pub(crate) fn told(&mut self, queries: u64, hits: u64) {
        self.look(
            Some(EngineCounters {
                at: self.now,
                queries,
                hits,
            }),
            true,
        );
    }

    pub(crate) fn look(&mut self, counters: Option<EngineCounters>, followed: bool) {
        self.now = self.now + Duration::from_millis(10);
        let stream = followed.then_some(self.restarts);
        self.changes
            .extend(self.book.tick(self.now, TARGET, counters, stream));
    }

    pub(crate) fn state(&self) -> ParityState {
        self.book.state(TARGET)
    }

    /// States entered so far.
    pub(crate) fn path(&self) -> Vec<ParityState> {
        self.changes.iter().map(|change| change.to).collect()
    }

    pub(crate) fn report(&self) -> ParityReport {
        self.book.summary(TARGET).report()
    }
}
