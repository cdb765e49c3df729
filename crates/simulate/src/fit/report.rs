//! What is told of a fit, and why there is none.

use std::fmt;

use serde::Serialize;

/// How a profile was found, and its times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FitReport {
    /// Requests there were.
    pub requests: usize,
    /// First tokens that told what a prompt costs.
    pub first_tokens: usize,
    /// Replies that told what a step costs; 0: there were too few, so that is as in the named profile.
    pub replies: usize,
    /// By how much the profile is off from those first tokens, as a share: the median.
    pub ttft_error: f64,
    /// The same of the time between the tokens of those replies.
    pub itl_error: Option<f64>,
    /// Before a request is scheduled.
    pub overhead_ms: f64,
    /// For each token of a prompt.
    pub prefill_ms: f64,
    /// For each unit of `end² - start²`.
    pub attention_ms: f64,
    /// For each step.
    pub step_ms: f64,
    /// For each sequence of a step.
    pub sequence_ms: f64,
    /// For each token of its context.
    pub kv_token_ms: f64,
}

impl fmt::Display for FitReport {
    /// Two lines for people.
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

/// Why requests do not tell how fast their engines were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// Nearly all were without a first token, or with others' prompts.
    #[error(
        "{usable} of its {requests} requests streamed and had their engine's prefill to themselves: expected at least \
         {needed}, so record more of them, or at a lower load"
    )]
    TooFew {
        /// Requests there were.
        requests: usize,
        /// Those that tell what a prompt costs.
        usable: usize,
        /// How many would do.
        needed: usize,
    },
    /// No two prompts differ.
    #[error(
        "nearly all prompts had about {tokens} tokens to compute, which cannot tell the price of a token from what every \
         request costs: record prompts of different lengths"
    )]
    OneLength {
        /// About the length of all.
        tokens: u32,
    },
    /// Something else decides when first tokens come.
    #[error(
        "how long its {usable} usable first tokens took has little to do with the lengths of their prompts: expected \
         engines that are alike and do nothing else"
    )]
    Noise {
        /// First tokens there were.
        usable: usize,
    },
}
