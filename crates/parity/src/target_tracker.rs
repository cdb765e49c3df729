//! The window and the state of one target.

mod evaluation;

use kv_blocks::Moment;

use crate::{
    Basis, EngineCounters, IncomparableRequest, ParitySettings, ParityState, ParityVerdict,
    PredictionSample, ReplyKind, Summary,
    intervals::{CounterIntervals, CounterReading},
    summary::ActualSource,
    window::SampleWindow,
};

#[derive(Debug)]
pub(crate) struct TargetTracker {
    window: SampleWindow,
    intervals: CounterIntervals,
    state: ParityState,
    since: Moment,
    /// Why the target is in this state; `None` if there is no reason.
    reason: Option<String>,
    /// Requests sent before this decide nothing.
    from: Moment,
    /// The basis of predictions, and since when; `None` before the first.
    basis: Option<(Basis, Moment)>,
    /// The latest known number of restarts of the publisher of the target's events.
    restarts: Option<u64>,
    /// For each kind of reply: whether one has reported cached tokens since the engine's last known
    /// restart.
    reports_cached: [bool; ReplyKind::COUNT],
}

/// A change of state without its target.
#[derive(Debug)]
pub(crate) struct StateStep {
    pub(crate) from: ParityState,
    pub(crate) to: ParityState,
    pub(crate) ratio: Option<f64>,
    pub(crate) reason: String,
}

impl TargetTracker {
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            window: SampleWindow::default(),
            intervals: CounterIntervals::default(),
            state: ParityState::NoData,
            since: now,
            reason: None,
            from: Moment::START,
            basis: None,
            restarts: None,
            reports_cached: Default::default(),
        }
    }

    pub(crate) fn state(&self) -> ParityState {
        self.state
    }

    pub(crate) fn window(&self) -> &SampleWindow {
        &self.window
    }

    /// Returns the sample with the zero that some engines omit: they report cached tokens only when
    /// there are any.
    pub(crate) fn completed(&mut self, sample: PredictionSample) -> PredictionSample {
        let Some(kind) = sample.counted_by else {
            return sample;
        };
        let reports = &mut self.reports_cached[kind as usize];
        *reports |= sample.actual.is_some();
        PredictionSample {
            actual: sample.actual.or(reports.then_some(0)),
            ..sample
        }
    }

    /// Records a finished request.
    pub(crate) fn observe(
        &mut self,
        now: Moment,
        settings: &ParitySettings,
        sample: PredictionSample,
    ) -> Option<StateStep> {
        self.goes_by(sample.basis, sample.sent);
        self.window.expire(now, settings.window);
        self.window.push(now, sample);
        self.intervals.add(&sample);
        // Sums are compared in `tick`: that takes longer with more readings.
        if self.window.has_enough_samples() {
            self.evaluate(now, settings)
        } else {
            None
        }
    }

    /// Records the basis of a prediction sent at this moment. Predictions on the other basis are no
    /// evidence about this one.
    fn goes_by(&mut self, basis: Basis, sent: Moment) {
        match self.basis {
            Some((known, _)) if known == basis => {}
            // A request from before the change of basis that ends late.
            Some((_, since)) if sent < since => {}
            before => {
                self.basis = Some((basis, sent));
                if before.is_some() {
                    self.start_over(sent);
                }
            }
        }
    }

    /// Records the end of an incomparable request.
    pub(crate) fn record_incomparable(&mut self, request: IncomparableRequest) {
        self.intervals.add_incomparable(request);
    }

    /// Advances the time and takes the engine's counters if there are any.
    pub(crate) fn tick(
        &mut self,
        now: Moment,
        settings: &ParitySettings,
        counters: Option<EngineCounters>,
        stream: Option<u64>,
    ) -> Option<StateStep> {
        self.window.expire(now, settings.window);
        self.intervals.expire(now, settings.window);
        if let Some(counters) = counters {
            let known = self.window.ended_since(counters.at);
            if self.intervals.read(counters, known, now - settings.window)
                == CounterReading::Restarted
            {
                self.restarted(counters.at);
            }
        }
        if let Some(restarts) = stream
            && self
                .restarts
                .replace(restarts)
                .is_some_and(|before| before != restarts)
        {
            self.restarted(now);
        }
        if stream.is_none() && !self.state.trusts_events() {
            return Some(self.enter(
                ParityState::NoData,
                now,
                None,
                "it has no event stream any more".to_owned(),
            ));
        }
        self.evaluate(now, settings)
    }

    /// Starts over: the engine is another process, and the earlier one's requests do not count
    /// against it.
    fn restarted(&mut self, at: Moment) {
        self.reports_cached = Default::default();
        self.start_over(at);
    }

    fn start_over(&mut self, from: Moment) {
        self.from = self.from.max(from);
        self.window.start_over(self.from);
    }

    pub(crate) fn summary(&self, settings: &ParitySettings) -> Summary {
        let source = if self.window.has_enough_samples() {
            ActualSource::Usage
        } else {
            ActualSource::EngineMetrics
        };
        let counted = match source {
            ActualSource::Usage => None,
            ActualSource::EngineMetrics => self.intervals.all_predictions(),
        };
        let mut summary = Summary {
            requests: self.window.requests() as u64,
            source,
            drifts: Vec::with_capacity(self.window.joined()),
            predicted_tokens: counted.map_or(0, |counted| counted.expected),
            actual_tokens: counted.map_or(0, |counted| counted.actual),
            verdict: ParityVerdict {
                state: self.state,
                since: self.since,
                reason: self.reason(settings),
            },
            last_evicted: self.window.last_evicted(),
        };
        for sample in self.window.samples() {
            let (Some(drift), Some(actual)) = (sample.drift(), sample.actual) else {
                continue;
            };
            summary.drifts.push(drift);
            if source == ActualSource::Usage {
                summary.predicted_tokens += u64::from(sample.predicted);
                summary.actual_tokens += u64::from(actual);
            }
        }
        summary
    }
}
