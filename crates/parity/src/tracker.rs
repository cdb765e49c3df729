//! All targets.

use std::collections::HashMap;

use kv_blocks::{Moment, Target};

use crate::{
    EngineCounters, IncomparableRequest, MOST_SAMPLES, ParityChange, ParitySettings, ParityState,
    PredictionSample, Summary,
    target_tracker::{StateStep, TargetTracker},
};

/// What is known of each target's predictions.
///
/// ```
/// use std::time::Duration;
///
/// use kv_blocks::{DpRank, Moment, Target, WorkerId};
/// use parity::{Basis, Book, ReplyKind, Sample, Settings, State};
///
/// let mut book = Book::new(Settings {
///     window: Duration::from_secs(600),
///     min_joined: 1,
///     drift_ratio: 0.05,
///     downgrade_ratio: 0.2,
///     recover_ratio: 0.02,
/// });
/// let (target, now) = (Target { worker: WorkerId(0), rank: DpRank(0) }, Moment::START);
/// let right = Sample {
///     sent: now,
///     prompt_tokens: 100,
///     predicted: 64,
///     announced: 64,
///     actual: Some(64),
///     counted_by: Some(ReplyKind::Chat),
///     basis: Basis::Events,
/// };
/// assert_eq!(book.observe(now, target, right).change.map(|change| change.to), Some(State::Ok));
/// let wrong = Sample { actual: Some(0), ..right };
/// assert_eq!(book.observe(now, target, wrong).change.and_then(|change| change.trust()), Some(false));
/// ```
#[derive(Debug)]
pub struct ParityTracker {
    settings: ParitySettings,
    /// One per target of the fleet; each holds at most [`MOST_SAMPLES`] samples.
    targets: HashMap<Target, TargetTracker>,
}

/// What came of a request that was judged.
#[derive(Clone, Debug, PartialEq)]
pub struct ParityOutcome {
    /// Its cached tokens: as the reply told, or none where the engine leaves out zeros.
    pub actual: Option<u32>,
    /// What follows from it.
    pub change: Option<ParityChange>,
}

impl ParityTracker {
    /// An empty book. `min_joined` above [`MOST_SAMPLES`] could never be reached and counts as that.
    pub fn new(settings: ParitySettings) -> Self {
        let min_joined = settings.min_joined.clamp(1, MOST_SAMPLES);
        Self {
            settings: ParitySettings {
                min_joined,
                ..settings
            },
            targets: HashMap::new(),
        }
    }

    /// The thresholds.
    pub fn settings(&self) -> &ParitySettings {
        &self.settings
    }

    /// A request that went to `target` ended well. Once for each.
    pub fn observe(
        &mut self,
        now: Moment,
        target: Target,
        sample: PredictionSample,
    ) -> ParityOutcome {
        let track = self
            .targets
            .entry(target)
            .or_insert_with(|| TargetTracker::new(now));
        let sample = track.completed(sample);
        let step = track.observe(now, &self.settings, sample);
        ParityOutcome {
            actual: sample.actual,
            change: step.map(|step| change(target, step)),
        }
    }

    /// A request that went to `target` is over, or one attempt at it, and [`Book::observe`] is not told of it: in the
    /// engine's own counters it stands all the same.
    pub fn record_incomparable(
        &mut self,
        now: Moment,
        target: Target,
        request: IncomparableRequest,
    ) {
        self.targets
            .entry(target)
            .or_insert_with(|| TargetTracker::new(now))
            .record_incomparable(request);
    }

    /// Time has passed. `counters` is the latest that `target`'s engine told; `stream` is how often the publisher of its
    /// events has restarted, `None` without an event stream. To be called for every target, about once a second.
    pub fn tick(
        &mut self,
        now: Moment,
        target: Target,
        counters: Option<EngineCounters>,
        stream: Option<u64>,
    ) -> Option<ParityChange> {
        let track = self
            .targets
            .entry(target)
            .or_insert_with(|| TargetTracker::new(now));
        track
            .tick(now, &self.settings, counters, stream)
            .map(|step| change(target, step))
    }

    /// How a target's predictions fare.
    pub fn state(&self, target: Target) -> ParityState {
        self.targets
            .get(&target)
            .map_or_else(ParityState::default, TargetTracker::state)
    }

    /// What a target's window says; that of nobody for an unknown one.
    pub fn summary(&self, target: Target) -> Summary {
        self.targets
            .get(&target)
            .map_or_else(Summary::default, |track| track.summary(&self.settings))
    }

    /// Requests of a target that were predicted to the token, and all that could be joined.
    pub fn exact_and_joined(&self, target: Target) -> (usize, usize) {
        self.targets.get(&target).map_or((0, 0), |track| {
            (track.window().exact(), track.window().joined())
        })
    }
}

fn change(target: Target, step: StateStep) -> ParityChange {
    let StateStep {
        from,
        to,
        ratio,
        reason,
    } = step;
    ParityChange {
        target,
        from,
        to,
        ratio,
        reason,
    }
}
