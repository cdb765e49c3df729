//! Requests between two readings of an engine's own counters.
//!
//! The counters tell sums only, and of everything that reached the engine. They are compared over spans in which their
//! count of prompt tokens agrees with what was sent from here to be judged. Where others use the engine too, nothing can
//! be said; where much of our own traffic cannot be judged, spans without it are looked for.

use std::{collections::VecDeque, time::Duration};

use kv_blocks::Moment;

use crate::{IncomparableRequest, PredictionSample, comparison::Comparison, spans::ReadingSpans};

/// Readings kept per target, the oldest going first.
const MOST_READINGS: usize = 128;
/// Unjudged requests kept per target for a reading that is still to be told, the oldest going first: those stand in the
/// intervals that were known when they ended.
const MOST_UNJUDGED: usize = 512;
/// The engine's count of prompt tokens and ours may differ by one part in this many: requests that were on their way
/// when the counters were read stand in the one and not yet in the other.
pub(crate) const AGREEMENT: u64 = 50;

/// An engine's own counters of its prefix cache at one moment, in tokens; they grow until it restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineCounters {
    /// When they were read.
    pub at: Moment,
    /// Prompt tokens looked up.
    pub queries: u64,
    /// Those of them that were found.
    pub hits: u64,
}

/// What came of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CounterReading {
    /// It is one we had.
    Known,
    New,
    /// A counter fell: the engine is another process.
    Restarted,
}

/// Readings, and what was sent after each until the next.
#[derive(Debug, Default)]
pub(crate) struct CounterIntervals {
    readings: VecDeque<CounterInterval>,
    /// Those that had not been looked up, as far as is known, when the latest reading was taken.
    incomparable: VecDeque<IncomparableRequest>,
}

#[derive(Debug)]
pub(crate) struct CounterInterval {
    pub(crate) start: EngineCounters,
    pub(crate) sent: SentTotals,
    /// Prompt tokens of unjudged requests that may have been looked up in it.
    incomparable: u64,
}

impl CounterInterval {
    /// Few enough of its tokens are unjudged.
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

    /// Takes out what was added before.
    pub(crate) fn take(&mut self, other: &Self) {
        self.requests -= other.requests;
        self.prompt_tokens -= other.prompt_tokens;
        self.predicted -= other.predicted;
        self.announced -= other.announced;
    }
}

impl CounterIntervals {
    /// Takes in what the engine says. `known` are all requests that have ended since it was read: it may have taken a
    /// while to come here, and those that were sent after it stand before it until now.
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
        let unjudged = self
            .incomparable
            .iter()
            .map(|request| request.prompt_tokens)
            .fold(0, u64::saturating_add);
        self.readings.push_back(CounterInterval {
            start: counters,
            sent,
            incomparable: unjudged,
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

    /// Forgets an engine that has not told anything for a whole window.
    pub(crate) fn expire(&mut self, now: Moment, window: Duration) {
        if self
            .readings
            .back()
            .is_some_and(|latest| now.since(latest.start.at) > window)
        {
            self.readings.clear();
        }
    }

    /// Counts a request where it was sent.
    pub(crate) fn add(&mut self, sample: &PredictionSample) {
        let sent_in = self
            .readings
            .iter_mut()
            .rev()
            .find(|interval| interval.start.at <= sample.sent);
        let Some(interval) = sent_in else { return };
        interval.sent.add(&SentTotals::of(sample));
    }

    /// Counts an unjudged request wherever it may have been looked up.
    pub(crate) fn add_incomparable(&mut self, request: IncomparableRequest) {
        for interval in self.readings.iter_mut().rev() {
            if interval.start.at <= request.until {
                interval.incomparable = interval.incomparable.saturating_add(request.prompt_tokens);
            }
            if interval.start.at <= request.sent {
                break;
            }
        }
        if self.incomparable.len() >= MOST_UNJUDGED {
            self.incomparable.pop_front();
        }
        self.incomparable.push_back(request);
    }

    /// What can be said from the first reading at or after `from` on.
    pub(crate) fn spans(&self, from: Moment) -> ReadingSpans {
        ReadingSpans::of(
            self.readings
                .iter()
                .skip_while(|interval| interval.start.at < from),
        )
    }

    /// Predicted against counted over everything that can be compared.
    pub(crate) fn all_predictions(&self) -> Option<Comparison> {
        self.spans(Moment::START).predictions().ok().flatten()
    }
}
