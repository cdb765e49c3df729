//! Requests between two readings of an engine's own counters.
//!
//! The counters tell sums only, and of everything that reached the engine. They are compared over spans in which their
//! count of prompt tokens agrees with what was sent from here to be judged. Where others use the engine too, nothing can
//! be said; where much of our own traffic cannot be judged, spans without it are looked for.

use std::{collections::VecDeque, time::Duration};

use kv_blocks::Moment;

use crate::{Sample, Unjudged, comparison::Comparison, spans::Spans};

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
pub(crate) enum Reading {
    /// It is one we had.
    Known,
    New,
    /// A counter fell: the engine is another process.
    Restarted,
}

/// Readings, and what was sent after each until the next.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    readings: VecDeque<Interval>,
    /// Those that had not been looked up, as far as is known, when the latest reading was taken.
    unjudged: VecDeque<Unjudged>,
}

#[derive(Debug)]
pub(crate) struct Interval {
    pub(crate) start: EngineCounters,
    pub(crate) sent: Sent,
    /// Prompt tokens of unjudged requests that may have been looked up in it.
    unjudged: u64,
}

impl Interval {
    /// Few enough of its tokens are unjudged.
    pub(crate) fn is_usable(&self) -> bool {
        self.unjudged.saturating_mul(AGREEMENT)
            <= self.sent.prompt_tokens.saturating_add(self.unjudged)
    }
}

/// Sums over requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) requests: usize,
    pub(crate) prompt_tokens: u64,
    pub(crate) predicted: u64,
    pub(crate) announced: u64,
}

impl Sent {
    fn of(sample: &Sample) -> Self {
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

impl Intervals {
    /// Takes in what the engine says. `known` are all requests that have ended since it was read: it may have taken a
    /// while to come here, and those that were sent after it stand before it until now.
    pub(crate) fn read<'a>(
        &mut self,
        counters: EngineCounters,
        known: impl Iterator<Item = &'a Sample>,
        begins: Moment,
    ) -> Reading {
        let latest = self.readings.back().map(|interval| interval.start);
        let reading = match latest {
            Some(latest) if counters.at <= latest.at => return Reading::Known,
            Some(latest) if counters.queries < latest.queries || counters.hits < latest.hits => {
                Reading::Restarted
            }
            _ => Reading::New,
        };
        if reading == Reading::Restarted {
            self.readings.clear();
        }
        let mut sent = Sent::default();
        known
            .filter(|sample| sample.sent >= counters.at)
            .for_each(|sample| sent.add(&Sent::of(sample)));
        if let Some(before) = self.readings.back_mut() {
            before.sent.take(&sent);
        }
        self.unjudged.retain(|request| request.until >= counters.at);
        let unjudged = self
            .unjudged
            .iter()
            .map(|request| request.prompt_tokens)
            .fold(0, u64::saturating_add);
        self.readings.push_back(Interval {
            start: counters,
            sent,
            unjudged,
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
    pub(crate) fn add(&mut self, sample: &Sample) {
        let sent_in = self
            .readings
            .iter_mut()
            .rev()
            .find(|interval| interval.start.at <= sample.sent);
        let Some(interval) = sent_in else { return };
        interval.sent.add(&Sent::of(sample));
    }

    /// Counts an unjudged request wherever it may have been looked up.
    pub(crate) fn add_unjudged(&mut self, request: Unjudged) {
        for interval in self.readings.iter_mut().rev() {
            if interval.start.at <= request.until {
                interval.unjudged = interval.unjudged.saturating_add(request.prompt_tokens);
            }
            if interval.start.at <= request.sent {
                break;
            }
        }
        if self.unjudged.len() >= MOST_UNJUDGED {
            self.unjudged.pop_front();
        }
        self.unjudged.push_back(request);
    }

    /// What can be said from the first reading at or after `from` on.
    pub(crate) fn spans(&self, from: Moment) -> Spans {
        Spans::of(
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
