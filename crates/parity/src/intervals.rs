//! Requests between two readings of an engine's own counters.
//!
//! The counters give sums only, and they cover all requests that reached the engine. They are
//! compared over spans in which their count of prompt tokens agrees with the comparable requests
//! sent from here. Where other clients use the engine too, no comparison is possible; where much of
//! our own traffic is incomparable, only spans without it are used.

use std::{collections::VecDeque, time::Duration};

use kv_blocks::Moment;

use crate::{IncomparableRequest, PredictionSample, comparison::Comparison, spans::ReadingSpans};

/// Most readings per target; the oldest is dropped first.
const MOST_READINGS: usize = 128;
/// Most incomparable requests retained per target for a reading that is still to come; the oldest
/// is dropped first. They are already counted in the intervals that were known when they ended.
const MOST_INCOMPARABLE: usize = 512;
/// The engine's count of prompt tokens and ours may differ by one part in this many: requests that
/// were in flight when the counters were read are counted on one side and not yet on the other.
pub(crate) const AGREEMENT: u64 = 50;

/// An engine's own counters of its prefix cache at one moment, in tokens; they grow until it
/// restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineCounters {
    /// When they were read.
    pub at: Moment,
    /// Prompt tokens looked up.
    pub queries: u64,
    /// The looked-up tokens that were found.
    pub hits: u64,
}

/// The result of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CounterReading {
    /// The reading is already recorded.
    Known,
    New,
    /// A counter fell: the engine is another process.
    Restarted,
}

/// Readings, and the requests sent after each of them until the next.
#[derive(Debug, Default)]
pub(crate) struct CounterIntervals {
    readings: VecDeque<CounterInterval>,
    /// Requests that were not yet looked up, as far as is known, when the latest reading was taken.
    incomparable: VecDeque<IncomparableRequest>,
}

#[derive(Debug)]
pub(crate) struct CounterInterval {
    pub(crate) start: EngineCounters,
    pub(crate) sent: SentTotals,
    /// Prompt tokens of incomparable requests that may have been looked up in this interval.
    incomparable: u64,
}

impl CounterInterval {
    /// Returns whether few enough of the interval's tokens are incomparable.
    pub(crate) fn is_usable(&self) -> bool {
        self.incomparable.saturating_mul(AGREEMENT)
            <= self.sent.prompt_tokens.saturating_add(self.incomparable)
    }
}

/// Sums over requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentTotals {
    pub(crate) requests: usize,
    pub(crate) prompt_tokens: u64,
    pub(crate) predicted: u64,
    pub(crate) announced: u64,
}

impl SentTotals {
    fn of(sample: &PredictionSample) -> Self {
        Self {
            requests: 1,
            prompt_tokens: sample.prompt_tokens.into(),
            predicted: sample.predicted.into(),
            announced: sample.announced.into(),
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.prompt_tokens += other.prompt_tokens;
        self.predicted += other.predicted;
        self.announced += other.announced;
    }

    /// Subtracts totals that were added before.
    pub(crate) fn take(&mut self, other: &Self) {
        self.requests -= other.requests;
        self.prompt_tokens -= other.prompt_tokens;
        self.predicted -= other.predicted;
        self.announced -= other.announced;
    }
}

impl CounterIntervals {
    /// Adds a reading of the engine's counters. `known` are all requests that have ended since it
    /// was read: a reading may arrive late, and until now the requests sent after it are counted
    /// before it.
    pub(crate) fn read<'a>(
        &mut self,
        counters: EngineCounters,
        known: impl Iterator<Item = &'a PredictionSample>,
        begins: Moment,
    ) -> CounterReading {
        let latest = self.readings.back().map(|interval| interval.start);
        let reading = match latest {
            Some(latest) if counters.at <= latest.at => return CounterReading::Known,
            Some(latest) if counters.queries < latest.queries || counters.hits < latest.hits => {
                CounterReading::Restarted
            }
            _ => CounterReading::New,
        };
        if reading == CounterReading::Restarted {
            self.readings.clear();
        }
        let mut sent = SentTotals::default();
        known
            .filter(|sample| sample.sent >= counters.at)
            .for_each(|sample| sent.add(&SentTotals::of(sample)));
        if let Some(before) = self.readings.back_mut() {
            before.sent.take(&sent);
        }
        self.incomparable
            .retain(|request| request.until >= counters.at);
        let incomparable = self
            .incomparable
            .iter()
            .map(|request| request.prompt_tokens)
            .fold(0, u64::saturating_add);
        self.readings.push_back(CounterInterval {
            start: counters,
            sent,
            incomparable,
        });
        // The latest reading from before the window stays: the window begins there.
        while self.readings.len() > MOST_READINGS
            || self
                .readings
                .get(1)
                .is_some_and(|next| next.start.at <= begins)
        {
            self.readings.pop_front();
        }
        reading
    }

    /// Drops the readings of an engine that has sent none for a whole window.
    pub(crate) fn expire(&mut self, now: Moment, window: Duration) {
        if self
            .readings
            .back()
            .is_some_and(|latest| now.since(latest.start.at) > window)
        {
            self.readings.clear();
        }
    }

    /// Counts a request in the interval in which it was sent.
    pub(crate) fn add(&mut self, sample: &PredictionSample) {
        let sent_in = self
            .readings
            .iter_mut()
            .rev()
            .find(|interval| interval.start.at <= sample.sent);
        let Some(interval) = sent_in else { return };
        interval.sent.add(&SentTotals::of(sample));
    }

    /// Counts an incomparable request in every interval in which it may have been looked up.
    pub(crate) fn add_incomparable(&mut self, request: IncomparableRequest) {
        for interval in self.readings.iter_mut().rev() {
            if interval.start.at <= request.until {
                interval.incomparable = interval.incomparable.saturating_add(request.prompt_tokens);
            }
            if interval.start.at <= request.sent {
                break;
            }
        }
        if self.incomparable.len() >= MOST_INCOMPARABLE {
            self.incomparable.pop_front();
        }
        self.incomparable.push_back(request);
    }

    /// Returns the comparable spans from the first reading at or after `from` on.
    pub(crate) fn spans(&self, from: Moment) -> ReadingSpans {
        ReadingSpans::of(
            self.readings
                .iter()
                .skip_while(|interval| interval.start.at < from),
        )
    }

    /// Returns predicted against counted tokens over all comparable spans.
    pub(crate) fn all_predictions(&self) -> Option<Comparison> {
        self.spans(Moment::START).predictions().ok().flatten()
    }
}
