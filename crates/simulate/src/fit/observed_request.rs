//! The load on each request's engine beside it, computed from the times of all requests.

use super::ServedRequest;

/// Times this close may be equal: logs are written in whole milliseconds.
const SAME_MS: f64 = 2.0;
/// Fewest gaps of a usable reply: in shorter ones the first and last gaps weigh too much.
const LEAST_GAPS: f64 = 4.0;

/// A request, and the load beside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedRequest {
    pub(super) served: ServedRequest,
    /// Sequences that were decoding at its arrival, and the tokens of their contexts.
    pub(super) decoding: f64,
    pub(super) context_tokens: f64,
    /// Means over the time of its reply, including the request itself.
    pub(super) mean_sequences: f64,
    pub(super) mean_context_tokens: f64,
    /// Prompt tokens that were computed during its reply, and their `end² - start²`.
    pub(super) prefilled_tokens: f64,
    pub(super) prefilled_squares: f64,
    /// Whether no other prompt was waiting or computed before its first token.
    alone: bool,
    /// Whether the load beside it is fully known.
    clear: bool,
}

/// Returns every request with the load beside it.
pub(super) fn observed(served: &[ServedRequest]) -> Vec<ObservedRequest> {
    let mut sorted = served.to_vec();
    sorted.sort_by(|a, b| {
        (a.engine, a.sent_ms)
            .partial_cmp(&(b.engine, b.sent_ms))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let mut observed: Vec<ObservedRequest> = sorted
        .iter()
        .map(|one| ObservedRequest::alone(*one))
        .collect();
    // Earlier requests that may not be over.
    let mut open: Vec<usize> = Vec::new();
    for later in 0..sorted.len() {
        let came = sorted[later];
        open.retain(|earlier| {
            sorted[*earlier].engine == came.engine && sorted[*earlier].end_ms > came.sent_ms
        });
        for earlier in &open {
            observed[later].add(&sorted[*earlier]);
            observed[*earlier].add(&came);
        }
        open.push(later);
    }
    observed
}

impl ObservedRequest {
    fn alone(served: ServedRequest) -> Self {
        let own =
            f64::from(served.prompt_tokens) + f64::from(served.output_tokens.unwrap_or(0)) / 2.0;
        Self {
            served,
            decoding: 0.0,
            context_tokens: 0.0,
            mean_sequences: 1.0,
            mean_context_tokens: own,
            prefilled_tokens: 0.0,
            prefilled_squares: 0.0,
            alone: true,
            clear: true,
        }
    }

    /// Adds another request on the same engine at the same time.
    fn add(&mut self, other: &ServedRequest) {
        let (Some(first_ms), Some(other_first_ms)) =
            (self.served.first_token_ms, other.first_token_ms)
        else {
            // Its effect is unknown without both first tokens.
            self.clear = false;
            return;
        };
        let context_tokens =
            f64::from(other.prompt_tokens) + f64::from(other.output_tokens.unwrap_or(0)) / 2.0;
        if other.sent_ms < first_ms && other_first_ms > self.served.sent_ms {
            self.alone = false;
        }
        if other_first_ms <= self.served.sent_ms && other.end_ms > self.served.sent_ms {
            self.decoding += 1.0;
            self.context_tokens += context_tokens;
        }
        let shared_ms = other.end_ms.min(self.served.end_ms) - other_first_ms.max(first_ms);
        let reply_ms = self.served.end_ms - first_ms;
        if shared_ms > 0.0 && reply_ms > 0.0 {
            self.mean_sequences += shared_ms / reply_ms;
            self.mean_context_tokens += context_tokens * shared_ms / reply_ms;
        }
        // A prompt is computed in the step that ends with its first token.
        if other_first_ms > first_ms + SAME_MS && other_first_ms <= self.served.end_ms + SAME_MS {
            let (start, end) = (
                f64::from(other.cached_tokens),
                f64::from(other.prompt_tokens),
            );
            self.prefilled_tokens += end - start;
            self.prefilled_squares += end * end - start * start;
        }
    }

    pub(super) fn reports_prefill(&self) -> bool {
        self.clear
            && self.alone
            && self.computed_tokens() > 0
            && self.ttft_ms().is_some_and(|ms| ms > 0.0)
    }

    pub(super) fn reports_steps(&self) -> bool {
        self.clear
            && self.gaps().is_some_and(|gaps| gaps >= LEAST_GAPS)
            && self.reply_ms().is_some_and(|ms| ms > 0.0)
    }

    pub(super) fn computed_tokens(&self) -> u32 {
        self.served
            .prompt_tokens
            .saturating_sub(self.served.cached_tokens)
    }

    pub(super) fn ttft_ms(&self) -> Option<f64> {
        Some(self.served.first_token_ms? - self.served.sent_ms)
    }

    /// Returns the time from the first token to the last.
    pub(super) fn reply_ms(&self) -> Option<f64> {
        Some(self.served.end_ms - self.served.first_token_ms?)
    }

    /// Returns the number of gaps between its tokens.
    pub(super) fn gaps(&self) -> Option<f64> {
        self.served
            .output_tokens
            .map(|tokens| f64::from(tokens) - 1.0)
    }
}
