//! Spans of readings over which an engine's counters are compared with the requests sent.

use std::{fmt, ops::RangeInclusive};

use crate::{
    comparison::Comparison,
    intervals::{AGREEMENT, CounterInterval, EngineCounters, SentTotals},
};

/// Why the counters cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CounterRefusal {
    /// The counters and our totals do not cover the same requests.
    Foreign {
        /// Prompt tokens by the engine's count.
        counted: u64,
        /// Prompt tokens sent from here.
        sent: u64,
    },
    /// Incomparable requests of ours ran all the time.
    Unjudged,
}

/// Readings in order, cut where too much of the traffic between two of them is incomparable.
#[derive(Debug)]
pub(crate) struct ReadingSpans {
    readings: Vec<EngineCounters>,
    /// Totals sent before each reading, since the first.
    before: Vec<SentTotals>,
    /// First and last reading of each span; they always differ.
    uncut: Vec<RangeInclusive<usize>>,
}

impl ReadingSpans {
    pub(crate) fn of<'a>(intervals: impl Iterator<Item = &'a CounterInterval>) -> Self {
        let mut spans = Self {
            readings: Vec::new(),
            before: Vec::new(),
            uncut: Vec::new(),
        };
        let (mut sent, mut begin, mut is_cut) = (SentTotals::default(), 0, false);
        for (at, interval) in intervals.enumerate() {
            if is_cut {
                begin = at;
            } else if at > begin {
                match spans.uncut.last_mut().filter(|span| *span.start() == begin) {
                    Some(span) => *span = begin..=at,
                    None => spans.uncut.push(begin..=at),
                }
            }
            spans.readings.push(interval.start);
            spans.before.push(sent);
            sent.add(&interval.sent);
            is_cut = !interval.is_usable();
        }
        spans
    }

    /// Returns predicted against counted tokens; `Ok(None)` before a second reading.
    pub(crate) fn predictions(&self) -> Result<Option<Comparison>, CounterRefusal> {
        let (mut sum, mut refused) = (None::<Comparison>, None);
        for span in &self.uncut {
            match self.longest(span, |sent| sent.predicted) {
                Ok(comparison) => sum.get_or_insert_default().add(&comparison),
                Err(foreign) => refused = refused.or(Some(foreign)),
            }
        }
        match (sum, refused) {
            (None, Some(foreign)) => Err(foreign),
            (None, None) if self.readings.len() > 1 => Err(CounterRefusal::Unjudged),
            (sum, _) => Ok(sum),
        }
    }

    /// Returns announced against counted tokens of about the latest `count` requests; `None` while
    /// fewer are comparable.
    pub(crate) fn latest_announcements(&self, count: usize) -> Option<Comparison> {
        let announced = |sent: &SentTotals| sent.announced;
        let mut sum = Comparison::default();
        for span in self.uncut.iter().rev() {
            let needed = count.saturating_sub(sum.requests);
            let pairs = (*span.start() + 1..=*span.end()).rev();
            let mut pairs =
                pairs.flat_map(|last| (*span.start()..last).rev().map(move |first| (first, last)));
            let enough = pairs.find_map(|(first, last)| {
                self.between(first, last, announced)
                    .ok()
                    .filter(|comparison| comparison.requests >= needed)
            });
            if let Some(comparison) = enough.or_else(|| self.longest(span, announced).ok()) {
                sum.add(&comparison);
            }
            if sum.requests >= count {
                return Some(sum);
            }
        }
        None
    }

    /// Returns the span from its first reading to the latest one that agrees: requests in flight at
    /// a later one have not ended yet.
    fn longest(
        &self,
        span: &RangeInclusive<usize>,
        expected: impl Fn(&SentTotals) -> u64,
    ) -> Result<Comparison, CounterRefusal> {
        let first = *span.start();
        let whole = self.between(first, *span.end(), &expected);
        let mut shorter = (first + 1..*span.end())
            .rev()
            .map(|last| self.between(first, last, &expected));
        whole.or_else(|foreign| shorter.find_map(Result::ok).ok_or(foreign))
    }

    fn between(
        &self,
        first: usize,
        last: usize,
        expected: impl Fn(&SentTotals) -> u64,
    ) -> Result<Comparison, CounterRefusal> {
        let mut sent = self.before[last];
        sent.take(&self.before[first]);
        let (from, to) = (self.readings[first], self.readings[last]);
        let counted = to.queries - from.queries;
        if counted.abs_diff(sent.prompt_tokens) > counted.max(sent.prompt_tokens) / AGREEMENT {
            return Err(CounterRefusal::Foreign {
                counted,
                sent: sent.prompt_tokens,
            });
        }
        Ok(Comparison::of_sums(
            sent.requests,
            sent.prompt_tokens,
            expected(&sent),
            to.hits - from.hits,
        ))
    }
}

impl fmt::Display for CounterRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("replies do not tell cached tokens, and ")?;
        match self {
            Self::Foreign { counted, sent } => write!(
                f,
                "the engine counted {counted} prompt tokens where {sent} were sent from here: others use it too"
            ),
            Self::Unjudged => f.write_str(
                "requests that cannot be compared (cancelled, of several choices, known by their text only) ran beside \
                 the others all the time",
            ),
        }
    }
}
