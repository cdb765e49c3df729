//! The latest requests of one target, compared one by one.

use std::{collections::VecDeque, time::Duration};

use kv_blocks::Moment;

use crate::{MOST_SAMPLES, PredictionSample, comparison::Comparison};

/// A ring of at most [`MOST_SAMPLES`] samples with running sums: the cost of a sample does not
/// depend on their number.
#[derive(Debug, Default)]
pub(crate) struct SampleWindow {
    /// In the order in which the requests ended.
    entries: VecDeque<WindowEntry>,
    joined: usize,
    exact: usize,
    /// Predicted against actual tokens of the deciding samples.
    deciding: Comparison,
    /// Requests sent before this decide nothing.
    from: Moment,
    /// End of the latest sample that was dropped because the ring was full.
    last_evicted: Option<Moment>,
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
    /// Adds a sample; the oldest is dropped when the ring is full.
    pub(crate) fn push(&mut self, now: Moment, sample: PredictionSample) {
        if self.entries.len() >= MOST_SAMPLES {
            self.last_evicted = self.entries.front().map(|oldest| oldest.ended);
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

    /// Drops the samples that ended longer ago than `window`.
    pub(crate) fn expire(&mut self, now: Moment, window: Duration) {
        while self
            .entries
            .front()
            .is_some_and(|entry| now.since(entry.ended) > window)
        {
            self.pop();
        }
    }

    /// Excludes the samples so far, and those sent before `from`, from all decisions.
    pub(crate) fn start_over(&mut self, from: Moment) {
        self.from = from;
        self.deciding = Comparison::default();
        self.entries
            .iter_mut()
            .for_each(|entry| entry.decides = false);
    }

    /// Returns the end of the latest sample that was dropped because the ring was full.
    pub(crate) fn last_evicted(&self) -> Option<Moment> {
        self.last_evicted
    }

    pub(crate) fn requests(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of requests whose reply reports its cached tokens.
    pub(crate) fn joined(&self) -> usize {
        self.joined
    }

    /// Returns the number of joined requests whose prediction was exact.
    pub(crate) fn exact(&self) -> usize {
        self.exact
    }

    /// Returns whether enough replies report cached tokens to compare one by one.
    pub(crate) fn has_enough_samples(&self) -> bool {
        self.joined * 10 >= self.entries.len()
    }

    /// Returns predicted against actual tokens of the deciding requests.
    pub(crate) fn predictions(&self) -> Comparison {
        self.deciding
    }

    /// Returns announced against actual tokens of the latest `count` deciding requests; `None`
    /// while there are fewer.
    pub(crate) fn latest_announcements(&self, count: usize) -> Option<Comparison> {
        let mut sum = Comparison::default();
        let deciding = self.entries.iter().rev().filter(|entry| entry.decides);
        deciding
            .filter_map(WindowEntry::announced)
            .take(count)
            .for_each(|one| sum.add(&one));
        (sum.requests >= count).then_some(sum)
    }

    /// Returns the samples that ended at `from` or later.
    pub(crate) fn ended_since(&self, from: Moment) -> impl Iterator<Item = &PredictionSample> {
        self.entries
            .iter()
            .rev()
            .take_while(move |entry| entry.ended >= from)
            .map(|entry| &entry.sample)
    }

    /// Returns all samples, oldest first.
    pub(crate) fn samples(&self) -> impl Iterator<Item = &PredictionSample> {
        self.entries.iter().map(|entry| &entry.sample)
    }
}
