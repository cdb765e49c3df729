//! An engine's times, from what became of the requests that it served.
//!
//! First tokens of prompts that had their engine's prefill to themselves tell what a prompt costs: the same curve as the
//! router learns, found in the same way. What lies between the tokens of a reply tells what a step costs, and what each
//! sequence beside it adds, once the prompts that were computed meanwhile are taken off. Each needs a little of the other,
//! so they are found in turns.
//!
//! All requests are taken to come from engines that are alike; a few that are not do no harm.

mod observed_request;
mod report;

use engine_model::Profile;
use routing::{
    PrefillCurve,
    robust::{self, RatePrior, TimeSample, median},
};

use self::observed_request::{ObservedRequest, watched};
pub use self::report::{FitError, FitReport};

/// Fewest first tokens, and fewest replies, that tell anything.
const ENOUGH: usize = 20;
/// Prompts are of different lengths if those at the quartiles differ by this much of the longer one.
const SPREAD: f64 = 0.1;
/// Most tokens of one step, as of the engines that are simulated.
const MAX_BATCHED_TOKENS: f64 = 8192.0;
/// In turns so often. It changes little after two.
const TURNS: usize = 4;

/// One request that got its reply, as whoever sent it saw that. Times are milliseconds since anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServedRequest {
    /// By which engine.
    pub engine: usize,
    /// When it was sent there.
    pub sent_ms: f64,
    /// When its first token came; `None` if the reply came as a whole.
    pub first_token_ms: Option<f64>,
    /// When its last token came.
    pub end_ms: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Those of them that were found in a cache.
    pub cached_tokens: u32,
    /// Tokens of the reply; `None` if nobody told.
    pub output_tokens: Option<u32>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct FitResult {
    /// For the engines of a simulation.
    pub profile: Profile,
    /// How it was found.
    pub report: FitReport,
}

/// The profile that explains `served` best. What that does not tell is as in `base`: the size of the cache and what a
/// reload costs, and where there are too few replies of more than a few tokens also what a step does.
///
/// # Errors
///
/// Why `served` tells too little.
pub fn fit(served: &[ServedRequest], base: &Profile) -> Result<FitResult, FitError> {
    let watched = watched(served);
    let prefills: Vec<&ObservedRequest> = watched
        .iter()
        .filter(|one| one.tells_of_prefill())
        .collect();
    let steps: Vec<&ObservedRequest> = watched.iter().filter(|one| one.tells_of_steps()).collect();
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
        // A prompt is computed in a step.
        profile.overhead_ms = (curve.overhead_ms - profile.step_ms).max(0.0);
    }
    let steps_told = steps.len() >= ENOUGH;
    let prices = [profile.sequence_ms, profile.step_ms, profile.kv_token_ms];
    let report = FitReport {
        requests: served.len(),
        first_tokens: prefills.len(),
        replies: if steps_told { steps.len() } else { 0 },
        ttft_error: error(&first_tokens(&prefills, &profile), &curve.prices()),
        itl_error: steps_told.then(|| error(&gaps(&steps, &curve), &prices)),
        overhead_ms: profile.overhead_ms,
        prefill_ms: profile.prefill_ms,
        attention_ms: profile.attention_ms,
        step_ms: profile.step_ms,
        sequence_ms: profile.sequence_ms,
        kv_token_ms: profile.kv_token_ms,
    };
    Ok(FitResult { profile, report })
}

/// Whether there is enough to go by.
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

/// What each first token would have taken alone on an engine that does nothing.
fn first_tokens(prefills: &[&ObservedRequest], profile: &Profile) -> Vec<TimeSample> {
    let sample = |one: &&ObservedRequest| {
        let tokens = f64::from(one.computed_tokens());
        let decoding =
            profile.sequence_ms * one.decoding + profile.kv_token_ms * one.context_tokens;
        let further_steps = (tokens / MAX_BATCHED_TOKENS).ceil() - 1.0;
        // On average half a step is still under way when a request comes.
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

/// What a step took, made up of its sequences, itself and their contexts.
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

/// The middle one of the relative differences.
fn error(samples: &[TimeSample], prices: &[f64; 3]) -> f64 {
    median(
        samples
            .iter()
            .map(|sample| (sample.ratio(prices) - 1.0).abs()),
    )
}
