//! The fit of an engine profile to the requests that engines served.
//!
//! The first tokens of prompts that had their engine's prefill to themselves give the cost of a
//! prompt: the same curve as the router learns, fitted in the same way. The time between the tokens
//! of a reply gives the cost of a step, and of each sequence beside it, after the prompts computed
//! meanwhile are subtracted. Each fit needs the result of the other, so they alternate.
//!
//! All engines are assumed to be alike; a few exceptions do no harm.

mod observed_request;
mod report;

use engine_model::Profile;
use routing::{
    PrefillCurve,
    robust::{self, RatePrior, TimeSample, median},
};

use self::observed_request::{ObservedRequest, observed};
pub use self::report::{FitError, FitReport};

/// Fewest first tokens, and fewest replies, for a fit.
const ENOUGH: usize = 20;
/// Least difference between the quartiles of prompt lengths, as a share of the longer one.
const SPREAD: f64 = 0.1;
/// Most tokens of one step, as in the simulated engines.
const MAX_BATCHED_TOKENS: f64 = 8192.0;
/// Number of alternations. The result changes little after two.
const TURNS: usize = 4;

/// One served request, as its sender observed it. Times are in milliseconds from any common origin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServedRequest {
    /// The engine that served it.
    pub engine: usize,
    /// Time of sending.
    pub sent_ms: f64,
    /// Time of its first token; `None` if the reply came as a whole.
    pub first_token_ms: Option<f64>,
    /// Time of its last token.
    pub end_ms: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that were found in a cache.
    pub cached_tokens: u32,
    /// Tokens of the reply; `None` if unknown.
    pub output_tokens: Option<u32>,
}

/// The result of a fit.
#[derive(Clone, Debug, PartialEq)]
pub struct FitResult {
    /// The profile, for the engines of a simulation.
    pub profile: Profile,
    /// The report of the fit.
    pub report: FitReport,
}

/// Returns the profile that explains `served` best. Parameters that the requests do not determine
/// are as in `base`: the size of the cache, the cost of a reload, and the cost of a step if there
/// are too few replies of more than a few tokens.
///
/// # Errors
///
/// Why `served` is insufficient.
pub fn fit(served: &[ServedRequest], base: &Profile) -> Result<FitResult, FitError> {
    let observed = observed(served);
    let prefills: Vec<&ObservedRequest> = observed
        .iter()
        .filter(|one| one.reports_prefill())
        .collect();
    let steps: Vec<&ObservedRequest> = observed.iter().filter(|one| one.reports_steps()).collect();
    check(served, &prefills)?;
    let mut profile = Profile {
        name: "fitted",
        ..*base
    };
    let mut curve = PrefillCurve::PRIOR;
    for _ in 0..TURNS {
        let samples = first_tokens(&prefills, &profile);
        curve = PrefillCurve::fit_curve(&samples, curve).ok_or(FitError::Noise {
            usable: prefills.len(),
        })?;
        (profile.prefill_ms, profile.attention_ms) = (curve.token_ms, curve.square_ms);
        if steps.len() >= ENOUGH {
            let prices = step_prices(&gaps(&steps, &curve), base);
            [profile.sequence_ms, profile.step_ms, profile.kv_token_ms] = prices;
        }
        // A prompt is computed in a step, so its overhead includes that step's.
        profile.overhead_ms = (curve.overhead_ms - profile.step_ms).max(0.0);
    }
    let has_steps = steps.len() >= ENOUGH;
    let prices = [profile.sequence_ms, profile.step_ms, profile.kv_token_ms];
    let report = FitReport {
        requests: served.len(),
        first_tokens: prefills.len(),
        replies: if has_steps { steps.len() } else { 0 },
        ttft_error: error(&first_tokens(&prefills, &profile), &curve.prices()),
        itl_error: has_steps.then(|| error(&gaps(&steps, &curve), &prices)),
        overhead_ms: profile.overhead_ms,
        prefill_ms: profile.prefill_ms,
        attention_ms: profile.attention_ms,
        step_ms: profile.step_ms,
        sequence_ms: profile.sequence_ms,
        kv_token_ms: profile.kv_token_ms,
    };
    Ok(FitResult { profile, report })
}

/// Checks that there is enough data.
fn check(served: &[ServedRequest], prefills: &[&ObservedRequest]) -> Result<(), FitError> {
    let usable = prefills.len();
    if usable < ENOUGH {
        return Err(FitError::TooFew {
            requests: served.len(),
            usable,
            needed: ENOUGH,
        });
    }
    let mut lengths: Vec<u32> = prefills.iter().map(|one| one.computed_tokens()).collect();
    lengths.sort_unstable();
    let (short, long) = (lengths[usable / 4], lengths[usable * 3 / 4]);
    if f64::from(long - short) < SPREAD * f64::from(long) {
        return Err(FitError::OneLength { tokens: long });
    }
    Ok(())
}

/// Returns the time that each first token would have taken alone on an idle engine.
fn first_tokens(prefills: &[&ObservedRequest], profile: &Profile) -> Vec<TimeSample> {
    let sample = |one: &&ObservedRequest| {
        let tokens = f64::from(one.computed_tokens());
        let decoding =
            profile.sequence_ms * one.decoding + profile.kv_token_ms * one.context_tokens;
        let further_steps = (tokens / MAX_BATCHED_TOKENS).ceil() - 1.0;
        // On average half a step is still in progress when a request arrives.
        let waited = if one.decoding > 0.0 {
            0.5 * (profile.step_ms + decoding)
        } else {
            0.0
        };
        let others = waited + decoding + further_steps * (profile.step_ms + decoding);
        let ms = one.ttft_ms()?;
        (others < ms)
            .then(|| PrefillCurve::sample(f64::from(one.served.cached_tokens), tokens, ms - others))
    };
    prefills.iter().filter_map(sample).collect()
}

/// Returns the times of steps, by their sequences, the step itself and the contexts.
fn gaps(steps: &[&ObservedRequest], curve: &PrefillCurve) -> Vec<TimeSample> {
    let sample = |one: &&ObservedRequest| {
        let prefill_ms =
            curve.token_ms * one.prefilled_tokens + curve.square_ms * one.prefilled_squares;
        let ms = (one.reply_ms()? - prefill_ms) / one.gaps()?;
        (ms > 0.0).then_some(TimeSample {
            parts: [one.mean_sequences, 1.0, one.mean_context_tokens],
            ms,
        })
    };
    steps.iter().filter_map(sample).collect()
}

fn step_prices(gaps: &[TimeSample], base: &Profile) -> [f64; 3] {
    let prices = [base.sequence_ms, base.step_ms.max(0.1), base.kv_token_ms];
    robust::fit(
        gaps,
        prices,
        &RatePrior {
            prices,
            bounds: [0.0..=1e3, 1e-3..=1e4, 0.0..=1.0],
        },
    )
}

/// Returns the median of the relative differences.
fn error(samples: &[TimeSample], prices: &[f64; 3]) -> f64 {
    median(
        samples
            .iter()
            .map(|sample| (sample.ratio(prices) - 1.0).abs()),
    )
}
