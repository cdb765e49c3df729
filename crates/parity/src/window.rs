//! The latest requests of one target, compared one by one.

use std::{collections::VecDeque, time::Duration};

use kv_blocks::Moment;

use crate::{MOST_SAMPLES, PredictionSample, comparison::Comparison};

/// A ring of at most [`MOST_SAMPLES`] samples with sums kept as they come and go: a sample costs the same however many
/// there are.
#[derive(Debug, Default)]
pub(crate) struct SampleWindow {
    /// In the order they ended.
    entries: VecDeque<WindowEntry>,
    joined: usize,
    exact: usize,
    /// Predicted against actual, of those that decide.
    deciding: Comparison,
    /// Requests sent before this decide nothing.
    from: Moment,
    /// End of the latest one that made room for another.
    made_room: Option<Moment>,
}

#[derive(Debug)]
struct WindowEntry {
    ended: Moment,
    decides: bool,
    sample: PredictionSample,
}

impl WindowEntry {
    fn predicted(&self) -> Option<Comparison> {
        let PredictionSample {
            prompt_tokens,
            predicted,
            actual,
            ..
        } = self.sample;
        Some(Comparison::of(prompt_tokens, predicted, actual?))
    }

    fn announced(&self) -> Option<Comparison> {
        let PredictionSample {
            prompt_tokens,
            announced,
            actual,
            ..
        } = self.sample;
        Some(Comparison::of(prompt_tokens, announced, actual?))
    }
}

impl SampleWindow {
    /// Takes one in; the oldest goes when the ring is full.
    pub(crate) fn push(&mut self, now: Moment, sample: PredictionSample) {
        if self.entries.len() >= MOST_SAMPLES {
            self.made_room = self.entries.front().map(|oldest| oldest.ended);
            self.pop();
        }
        let entry = WindowEntry {
            ended: now,
            decides: sample.sent >= self.from,
            sample,
        };
        if let Some(predicted) = entry.predicted() {
            self.joined += 1;
            self.exact += usize::from(predicted.apart == 0);
            if entry.decides {
                self.deciding.add(&predicted);
            }
        }
        self.entries.push_back(entry);
    }

    fn pop(&mut self) {
        let Some(entry) = self.entries.pop_front() else {
            return;
        };
        if let Some(predicted) = entry.predicted() {
            self.joined -= 1;
            self.exact -= usize::from(predicted.apart == 0);
            if entry.decides {
                self.deciding.take(&predicted);
            }
        }
    }

    /// Drops what ended longer ago than `window`.
    pub(crate) fn expire(&mut self, now: Moment, window: Duration) {
        while self
            .entries
            .front()
            .is_some_and(|entry| now.since(entry.ended) > window)
        {
            self.pop();
        }
    }

    /// What is there so far decides nothing more, nor does what was sent before `from`.
    pub(crate) fn start_over(&mut self, from: Moment) {
        self.from = from;
        self.deciding = Comparison::default();
        self.entries
            .iter_mut()
            .for_each(|entry| entry.decides = false);
    }

    /// End of the latest one that left before its time: the ring was full.
    pub(crate) fn made_room(&self) -> Option<Moment> {
        self.made_room
    }

    pub(crate) fn requests(&self) -> usize {
        self.entries.len()
    }

    /// Requests whose reply told.
    pub(crate) fn joined(&self) -> usize {
        self.joined
    }

    /// Those of them that were predicted to the token.
    pub(crate) fn exact(&self) -> usize {
        self.exact
    }

    /// Whether enough replies tell for one by one to be the way.
    pub(crate) fn has_enough_samples(&self) -> bool {
        self.joined * 10 >= self.entries.len()
    }

    /// Predicted against actual, of the requests that decide.
    pub(crate) fn predictions(&self) -> Comparison {
        self.deciding
    }

    /// Announced against actual of the latest `count` requests that decide; `None` while there are fewer.
    pub(crate) fn latest_announcements(&self, count: usize) -> Option<Comparison> {
        let mut sum = Comparison::default();
        let deciding = self.entries.iter().rev().filter(|entry| entry.decides);
        deciding
            .filter_map(WindowEntry::announced)
            .take(count)
            .for_each(|one| sum.add(&one));
        (sum.requests >= count).then_some(sum)
    }

    /// Those that ended at `from` or later.
    pub(crate) fn ended_since(&self, from: Moment) -> impl Iterator<Item = &PredictionSample> {
        self.entries
            .iter()
            .rev()
            .take_while(move |entry| entry.ended >= from)
            .map(|entry| &entry.sample)
    }

    /// All of them, oldest first.
    pub(crate) fn samples(&self) -> impl Iterator<Item = &PredictionSample> {
        self.entries.iter().map(|entry| &entry.sample)
    }
}
