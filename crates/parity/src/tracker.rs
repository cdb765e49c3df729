//! The parity of all targets.

use std::collections::HashMap;

use kv_blocks::{Moment, Target};

use crate::{
    EngineCounters, IncomparableRequest, MOST_SAMPLES, ParityChange, ParitySettings, ParityState,
    PredictionSample, Summary,
    target_tracker::{StateStep, TargetTracker},
};

/// The prediction accuracy of each target.
///
/// ```
/// use std::time::Duration;
///
/// use kv_blocks::{DpRank, Moment, Target, WorkerId};
/// use parity::{
///     Basis, ParitySettings, ParityState, ParityTracker, PredictionSample, ReplyKind,
/// };
///
/// let mut tracker = ParityTracker::new(ParitySettings {
///     window: Duration::from_secs(600),
///     min_joined: 1,
///     drift_ratio: 0.05,
///     downgrade_ratio: 0.2,
///     recover_ratio: 0.02,
/// });
/// let (target, now) = (Target { worker: WorkerId(0), rank: DpRank(0) }, Moment::START);
/// let right = PredictionSample {
///     sent: now,
///     prompt_tokens: 100,
///     predicted: 64,
///     announced: 64,
///     actual: Some(64),
///     counted_by: Some(ReplyKind::Chat),
///     basis: Basis::Events,
/// };
/// let change = tracker.observe(now, target, right).change;
/// assert_eq!(change.map(|change| change.to), Some(ParityState::Ok));
/// let wrong = PredictionSample { actual: Some(0), ..right };
/// let change = tracker.observe(now, target, wrong).change;
/// assert_eq!(change.and_then(|change| change.trust()), Some(false));
/// ```
#[derive(Debug)]
pub struct ParityTracker {
    settings: ParitySettings,
    /// One per target of the fleet; each holds at most [`MOST_SAMPLES`] samples.
    targets: HashMap<Target, TargetTracker>,
}

/// The result of a comparable request.
#[derive(Clone, Debug, PartialEq)]
pub struct ParityOutcome {
    /// Its cached tokens: as the reply reports them, or 0 where the engine omits zeros.
    pub actual: Option<u32>,
    /// The change of state that follows from it.
    pub change: Option<ParityChange>,
}

impl ParityTracker {
    /// Creates an empty tracker. `min_joined` above [`MOST_SAMPLES`] is unreachable and counts as
    /// [`MOST_SAMPLES`].
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

    /// Returns the thresholds.
    pub fn settings(&self) -> &ParitySettings {
        &self.settings
    }

    /// Records a request to `target` that ended well. Call it once for each.
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

    /// Records the end of a request to `target`, or of one attempt, without a call of
    /// [`ParityTracker::observe`]: the engine's own counters include it all the same.
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

    /// Advances the time. `counters` is the latest reading of `target`'s engine; `stream` is how
    /// often the publisher of its events has restarted, `None` without an event stream. Call it for
    /// every target about once a second.
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

    /// Returns the state of a target's predictions.
    pub fn state(&self, target: Target) -> ParityState {
        self.targets
            .get(&target)
            .map_or_else(ParityState::default, TargetTracker::state)
    }

    /// Returns the figures of a target's window; empty ones for an unknown target.
    pub fn summary(&self, target: Target) -> Summary {
        self.targets
            .get(&target)
            .map_or_else(Summary::default, |track| track.summary(&self.settings))
    }

    /// Returns the number of exactly predicted requests of a target, and of all joined ones.
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
