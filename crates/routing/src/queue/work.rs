//! The work that a request causes, in milliseconds of an engine.

use crate::Rates;

/// Least work of a request, so that one of unknown length counts.
const LEAST_MS: f64 = 1.0;
/// Most work of a request: a day.
pub(super) const MOST_MS: f64 = 86_400_000.0;

/// The work of a request on an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RequestWork {
    /// Time to compute the uncached tokens of its prompt.
    pub(crate) prefill_ms: f64,
    /// Time that its sequence adds to the steps in which its reply is generated.
    pub(crate) decode_ms: f64,
}

/// The tokens that an engine reported of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedWork {
    /// Of the prompt.
    pub prompt_tokens: u32,
    /// Of the prompt, found in a cache; `None`: not reported.
    pub cached_tokens: Option<u32>,
    /// Of the reply.
    pub output_tokens: u32,
    /// Whether the time of the reply is that of its decode steps: its tokens came one after another, not
    /// those of several choices or prompts, and none waited for its client.
    pub shows_decode_steps: bool,
}

impl RequestWork {
    /// Returns the sum, within its bounds.
    pub(crate) fn total_ms(self) -> f64 {
        let sum = self.prefill_ms + self.decode_ms;
        if sum.is_finite() {
            sum.clamp(LEAST_MS, MOST_MS)
        } else {
            LEAST_MS
        }
    }
}

impl ReportedWork {
    /// Returns the work of a request at this speed. What was not reported stays as estimated, and so
    /// does a prompt that another engine computed.
    pub(crate) fn measured(self, rates: &Rates, estimate: RequestWork) -> RequestWork {
        let cached = self.cached_tokens.filter(|_| estimate.prefill_ms > 0.0);
        let prefill = cached.map(|cached| {
            let uncached = self.prompt_tokens.saturating_sub(cached);
            rates.prefill_ms(f64::from(cached), f64::from(uncached))
        });
        RequestWork {
            prefill_ms: prefill.unwrap_or(estimate.prefill_ms),
            decode_ms: decode_ms(rates, self.prompt_tokens, f64::from(self.output_tokens)),
        }
    }
}

/// Returns the time that a sequence adds to the steps in which its reply of this length is generated:
/// its context grows from the prompt to prompt and reply. The cost of a step that all of its sequences
/// share is nobody's.
pub(crate) fn decode_ms(rates: &Rates, prompt_tokens: u32, output_tokens: f64) -> f64 {
    let context = f64::from(prompt_tokens) + output_tokens / 2.0;
    rates.sequence_ms(context) * output_tokens
}
