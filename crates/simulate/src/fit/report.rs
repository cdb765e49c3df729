//! The report of a fit, and the reasons for a failed one.

use std::fmt;

use serde::Serialize;

/// The data and the result of a fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FitReport {
    /// Requests given.
    pub requests: usize,
    /// First tokens used for the cost of a prompt.
    pub first_tokens: usize,
    /// Replies used for the cost of a step; 0: there were too few, so that cost is as in the named
    /// profile.
    pub replies: usize,
    /// Median error of the profile on those first tokens, as a share.
    pub ttft_error: f64,
    /// Median error on the time between the tokens of those replies, as a share.
    pub itl_error: Option<f64>,
    /// Time before a request is scheduled.
    pub overhead_ms: f64,
    /// Time for each token of a prompt.
    pub prefill_ms: f64,
    /// Time for each unit of `end² - start²`.
    pub attention_ms: f64,
    /// Time for each step.
    pub step_ms: f64,
    /// Time for each sequence of a step.
    pub sequence_ms: f64,
    /// Time for each token of a sequence's context.
    pub kv_token_ms: f64,
}

impl fmt::Display for FitReport {
    /// Writes two lines for a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "fitted to {} first tokens of {} requests, off by {:.1} % (median): {:.2} ms for a request, {:.2} ms for 1,000 \
             tokens and {:.2} ms for their attention",
            self.first_tokens,
            self.requests,
            self.ttft_error * 100.0,
            self.overhead_ms,
            self.prefill_ms * 1e3,
            self.attention_ms * 1e6,
        )?;
        match self.itl_error {
            Some(error) => write!(f, "and to the steps of {} replies, off by {:.1} %", self.replies, error * 100.0)?,
            None => {
                f.write_str("its replies are too few or too short to tell of steps, which are as in the profile")?
            }
        }
        write!(
            f,
            ": {:.2} ms for a step, {:.3} ms for a sequence, {:.3} ms for 1,000 tokens of context",
            self.step_ms,
            self.sequence_ms,
            self.kv_token_ms * 1e3
        )
    }
}

/// Why requests do not determine their engines' times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// Nearly all requests lack a first token, or shared their engine's prefill.
    #[error(
        "{usable} of its {requests} requests streamed and had their engine's prefill to themselves: expected at least \
         {needed}, so record more of them, or at a lower load"
    )]
    TooFew {
        /// Requests given.
        requests: usize,
        /// Requests usable for the cost of a prompt.
        usable: usize,
        /// Requests needed.
        needed: usize,
    },
    /// All prompts have about the same length.
    #[error(
        "nearly all prompts had about {tokens} tokens to compute, which cannot tell the price of a token from what every \
         request costs: record prompts of different lengths"
    )]
    OneLength {
        /// Their approximate length.
        tokens: u32,
    },
    /// The times of first tokens depend on something else.
    #[error(
        "how long its {usable} usable first tokens took has little to do with the lengths of their prompts: expected \
         engines that are alike and do nothing else"
    )]
    Noise {
        /// First tokens used.
        usable: usize,
    },
}
