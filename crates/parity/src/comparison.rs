//! The difference between expected and counted tokens.

use std::fmt;

/// Expected and counted cached tokens of one or more requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) requests: usize,
    pub(crate) prompt_tokens: u64,
    pub(crate) expected: u64,
    pub(crate) actual: u64,
    /// Sum of the absolute differences.
    pub(crate) apart: u64,
}

impl Comparison {
    /// Creates the comparison of one request.
    pub(crate) fn of(prompt_tokens: u32, expected: u32, actual: u32) -> Self {
        Self {
            requests: 1,
            prompt_tokens: prompt_tokens.into(),
            expected: expected.into(),
            actual: actual.into(),
            apart: expected.abs_diff(actual).into(),
        }
    }

    /// Creates the comparison of several requests of which only the sums are known.
    pub(crate) fn of_sums(requests: usize, prompt_tokens: u64, expected: u64, actual: u64) -> Self {
        Self {
            requests,
            prompt_tokens,
            expected,
            actual,
            apart: expected.abs_diff(actual),
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.prompt_tokens += other.prompt_tokens;
        self.expected += other.expected;
        self.actual += other.actual;
        self.apart += other.apart;
    }

    /// Subtracts a comparison that was added before.
    pub(crate) fn take(&mut self, other: &Self) {
        self.requests -= other.requests;
        self.prompt_tokens -= other.prompt_tokens;
        self.expected -= other.expected;
        self.actual -= other.actual;
        self.apart -= other.apart;
    }

    /// Returns the difference per prompt token; 0 without any.
    pub(crate) fn ratio(&self) -> f64 {
        ratio(self.apart, self.prompt_tokens)
    }
}

/// Returns `part / whole`; 0 for a whole of 0.
#[allow(clippy::cast_precision_loss, reason = "counts far below 2^53")]
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            requests,
            prompt_tokens,
            expected,
            actual,
            ..
        } = self;
        let percent = self.ratio() * 100.0;
        write!(
            f,
            "{expected} cached tokens expected and {actual} found in {requests} requests, off by {percent:.1} % of \
             {prompt_tokens} prompt tokens"
        )
    }
}
