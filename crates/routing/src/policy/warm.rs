//! `warm`: the target with the lowest estimated cost in time, to this request and to those it
//! delays.
//!
//! Cost, in milliseconds, the sum of these terms:
//!
//! - `overhead_ms`: the part of the time to first token that does not depend on the prompt;
//! - `queue_ms`: until the prefills already queued there are computed;
//! - `prefill_ms`: to compute the tokens that are not warm there;
//! - `reload_ms`: to load warm tokens from slower tiers;
//! - `interleave_ms`: steps of running sequences between the parts of the prefill;
//! - `others_ms`: the prefill once more, times a weight that grows with utilisation: the cost of a
//!   miss to other requests;
//! - `waiting_ms`: the work that waits before this request in the router's queue for this target,
//!   beyond that for the one with least;
//! - `decode_slowdown_ms`: a share of the time by which the sequences there get slower;
//! - `eviction_ms`: the wait of active blocks beyond the size of its cache;
//! - `home_ms`: for a prompt that is mostly cold there, a share of the time that other requests
//!   recently waited there;
//! - `spread_ms`: positive for cold work on a target that recently got more of it than the others,
//!   negative on one that got less, and positive for a target that has far more requests than the
//!   others: a hot prefix is copied before its holder is overloaded.
//!
//! With `routing.fetch` a candidate may read blocks from another one instead of computing them. Where
//! that is cheaper it does, and has two more terms:
//!
//! - `fetch_ms`: the expected time of the read, and what computing the blocks would cost after all, by
//!   how often reads bring nothing;
//! - `displaced_ms`: to compute the blocks in use again that the copy displaces, at the mean speed and
//!   with the weight of `others_ms`; no more than the read saves, so that a candidate is never more
//!   expensive than it would be without it.
//!
//! The first five are the predicted time to first token. A request's overlap weight multiplies
//! `prefill_ms`, `reload_ms` and `others_ms`: at 0 caches do not count.

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    rule::{PolicyCandidate, PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("warm"),
    facts: &[PolicyFact::BlockOverlap],
    rule: |_| Box::new(Warm),
};

#[derive(Debug, Default)]
pub(super) struct Warm;

const TERMS: [&str; 11] = [
    "prefill_ms",
    "queue_ms",
    "decode_slowdown_ms",
    "reload_ms",
    "eviction_ms",
    "spread_ms",
    "others_ms",
    "interleave_ms",
    "overhead_ms",
    "home_ms",
    "waiting_ms",
];

/// The same for a candidate that reads blocks.
const FETCH_TERMS: [&str; TERMS.len() + 2] = {
    let mut names = ["fetch_ms"; TERMS.len() + 2];
    let mut at = 0;
    while at < TERMS.len() {
        names[at] = TERMS[at];
        at += 1;
    }
    names[TERMS.len() + 1] = "displaced_ms";
    names
};

/// Weight of a request's own prefill on an idle fleet, its growth per unit of load, and its
/// maximum.
const OTHERS_IDLE: f64 = 0.5;
const OTHERS_GAIN: f64 = 2.0;
const OTHERS_MOST: f64 = 12.0;
/// Time over which dispatched work is compared with the capacity, and the highest utilisation that
/// is assumed.
const WORK_MEMORY_MS: f64 = 30_000.0;
const UTILISATION_MOST: f64 = 0.97;
/// Share of the decode slow-down that counts.
const DECODE_SHARE: f64 = 0.05;
/// Cost of active blocks that exceed the cache by its whole size.
const EVICTION_MS: f64 = 5000.0;
/// Upper limit of the unevenness of cold work.
const SHARE_MOST: f64 = 4.0;
/// The weight of the unevenness is 1 where the fleet has recently computed much more than this
/// prompt, and below one half until it has computed this many times as much: a second equal prompt
/// then waits for the first instead of being computed again elsewhere. With a larger volume a hot
/// prompt stays too long on its first target: at 4 times for each target, agents behind one prompt
/// had 1.2 to 1.5 times the mean TTFT with 8 and 16 engines.
const SHARE_VOLUME: f64 = 2.5;
/// Share of a target's mean backlog that counts against a prompt that is mostly cold there: the
/// prompt is cached nowhere yet, and requests that return to that target will wait behind it.
const COLD_BACKLOG_SHARE: f64 = 0.2;
/// Most that the work waiting in the router for a target counts: requests of a lower priority are not
/// before this one, and must not keep it from its cache at any price.
const WAITING_MOST_MS: f64 = 5_000.0;
/// A target may have this many requests, or this multiple of the mean, before its load alone counts
/// against it: a guard against herds, not a balance. On public traces a bound of 16 cost half again
/// the mean TTFT near saturation, where counts are naturally uneven; this one changes nothing.
const FREE_REQUESTS: f64 = 64.0;
const REQUESTS_OVER_MEAN: f64 = 1.5;
/// How fast that cost grows: at a quarter above the bound it outweighs computing the prompt
/// elsewhere.
const EXCESS_GAIN: f64 = 4.0;
/// Time to load a token from a tier, as a share of the time to compute it.
const RELOAD_HOST: f64 = 0.05;
const RELOAD_DISK: f64 = 0.4;
const RELOAD_REMOTE: f64 = 0.5;

impl PolicyRule for Warm {
    fn unit(&self) -> CostUnit {
        CostUnit::Ms
    }

    fn draws(&self) -> bool {
        true
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let fleet = FleetTotals::of(input);
        input
            .candidates
            .iter()
            .map(|contender| price(input, contender, &fleet))
            .collect()
    }
}

/// The figures that are equal for all candidates.
struct FleetTotals {
    /// Weight of a request's own prefill.
    others: f64,
    /// Recent cold tokens of all targets, and the mean over the targets of the time that they take
    /// there.
    cold_tokens: f64,
    cold_s: f64,
    /// Most requests of a target without extra cost.
    allowed_requests: f64,
    /// Mean speed of the targets, in tokens per second.
    tokens_per_s: f64,
    /// The least work that waits in the router for any of the targets.
    least_waiting_ms: f64,
}

impl FleetTotals {
    fn of(input: &PolicyInput<'_>) -> Self {
        let count = input.candidates.len().max(1) as f64;
        let sum =
            |part: fn(&PolicyCandidate<'_>) -> f64| input.candidates.iter().map(part).sum::<f64>();
        let work_ms = sum(|contender| contender.state.work_ms);
        let utilisation = (work_ms / (WORK_MEMORY_MS * count)).min(UTILISATION_MOST);
        let in_flight = sum(|contender| f64::from(contender.state.load.in_flight));
        let waiting = input.candidates.iter();
        let waiting = waiting.map(|contender| contender.state.waiting_ms);
        Self {
            others: (OTHERS_IDLE + OTHERS_GAIN * utilisation / (1.0 - utilisation))
                .min(OTHERS_MOST),
            cold_tokens: sum(|contender| contender.state.cold_tokens),
            cold_s: sum(cold_s) / count,
            allowed_requests: (REQUESTS_OVER_MEAN * (in_flight + 1.0) / count).max(FREE_REQUESTS),
            tokens_per_s: sum(|contender| contender.state.rates.prefill_tokens_per_s) / count,
            least_waiting_ms: waiting.fold(f64::INFINITY, f64::min),
        }
    }
}

/// Returns the cost of a candidate, which reads blocks from another one if that is cheaper than to
/// compute them.
fn price(
    input: &PolicyInput<'_>,
    contender: &PolicyCandidate<'_>,
    fleet: &FleetTotals,
) -> CandidateCost {
    let uncached_tokens = contender.overlap.uncached_tokens;
    let computed = own_terms(input, contender, fleet, uncached_tokens);
    let read = contender.fetch.and_then(|fetch| {
        let left = uncached_tokens.saturating_sub(fetch.tokens);
        let rest = own_terms(input, contender, fleet, left);
        let (without, with) = (computed.cost(), rest.cost());
        let fetch_ms = fetch.ms + fetch.missed * (without - with);
        let saved_ms = without - with - fetch_ms;
        (saved_ms > 0.0).then_some((fetch, rest, fetch_ms, saved_ms))
    });
    // Of equals the target that was idle longest: the first requests of a day rotate.
    let tie = contender.state.last_dispatch;
    let Some((fetch, rest, fetch_ms, saved_ms)) = read else {
        return CandidateCost {
            predicted_ttft_ms: Some(computed.ttft_ms),
            tie,
            terms: Terms::new(&TERMS, computed.terms),
            ..CandidateCost::of(computed.cost())
        };
    };
    let again_ms = fetch.displaced_tokens * 1e3 / fleet.tokens_per_s;
    let displaced_ms = ((1.0 + fleet.others) * again_ms).clamp(0.0, saved_ms);
    let missed_ms = fetch.missed * (computed.ttft_ms - rest.ttft_ms);
    let ttft_ms = rest.ttft_ms + fetch.ms + missed_ms;
    let mut terms = [0.0; FETCH_TERMS.len()];
    terms[..TERMS.len()].copy_from_slice(&rest.terms);
    terms[TERMS.len()..].copy_from_slice(&[fetch_ms, displaced_ms]);
    CandidateCost {
        predicted_ttft_ms: Some(ttft_ms),
        tie,
        terms: Terms::new(&FETCH_TERMS, terms),
        fetches: true,
        ..CandidateCost::of(terms.iter().sum())
    }
}

/// The terms of a candidate but for those of a read.
struct OwnTerms {
    terms: [f64; TERMS.len()],
    ttft_ms: f64,
}

impl OwnTerms {
    fn cost(&self) -> f64 {
        self.terms.iter().sum()
    }
}

/// Returns the terms of a candidate that computes this many tokens.
fn own_terms(
    input: &PolicyInput<'_>,
    contender: &PolicyCandidate<'_>,
    fleet: &FleetTotals,
    uncached_tokens: u32,
) -> OwnTerms {
    let (surveyed, state) = (&contender.overlap, &contender.state);
    let (rates, load) = (&state.rates, &state.load);
    let prompt = f64::from(input.prompt_tokens);
    let output = input.expected_output_tokens;

    let uncached = f64::from(uncached_tokens);
    let prefill = rates.prefill_ms((prompt - uncached).max(0.0), uncached);
    let warm = surveyed.warm;
    let reload = rates.prefill_ms(
        0.0,
        RELOAD_HOST * f64::from(warm.host)
            + RELOAD_DISK * f64::from(warm.disk)
            + RELOAD_REMOTE * f64::from(warm.remote),
    );
    let step = rates.step_ms(load.decode_sequences, state.decode_tokens);
    let interleave = state.interleave_ms(uncached_tokens);
    let ttft_ms = rates.overhead_ms + state.backlog_ms + prefill + reload + interleave;

    let others = fleet.others * prefill;
    let joining = rates.sequence_ms(prompt);
    let slowdown = DECODE_SHARE * output * (step + f64::from(load.decode_sequences) * joining);
    let eviction = eviction_ms(contender, output);
    let weight = input.overlap_weight;
    let spread = weight * share(contender, fleet, prompt) * prefill
        + excess_weight(contender, fleet) * rates.prefill_ms(0.0, prompt);

    let cold_backlog = if 2.0 * uncached > prompt {
        COLD_BACKLOG_SHARE * state.mean_backlog_ms
    } else {
        0.0
    };

    let terms = [
        weight * prefill,
        state.backlog_ms,
        slowdown,
        weight * reload,
        eviction,
        spread,
        weight * others,
        interleave,
        rates.overhead_ms,
        cold_backlog,
        waiting_ms(state.waiting_ms, fleet.least_waiting_ms),
    ];
    OwnTerms { terms, ttft_ms }
}

fn eviction_ms(contender: &PolicyCandidate<'_>, output: f64) -> f64 {
    let candidate = contender.overlap.candidate;
    let Some(total) = candidate.total_blocks else {
        return 0.0;
    };
    let (after, total) = (contender.state.blocks_after, f64::from(total.max(1)));
    let sequences = f64::from(contender.state.load.in_flight) + 1.0;
    let growth = sequences * output / f64::from(candidate.namespace.block_size.tokens());
    EVICTION_MS * ((after as f64 + growth - total) / total).max(0.0)
}

/// Returns the cost of the work that waits in the router for one target. What waits for every target
/// alike is no reason to prefer one.
fn waiting_ms(waiting_ms: f64, least_ms: f64) -> f64 {
    (waiting_ms - least_ms).clamp(0.0, WAITING_MOST_MS)
}

/// Returns the time that the recent cold tokens take on their target: a slow target reaches its
/// share with fewer.
fn cold_s(contender: &PolicyCandidate<'_>) -> f64 {
    contender.state.cold_tokens / contender.state.rates.prefill_tokens_per_s
}

/// Returns the weight on cold work by the target's recent share of it: negative below the mean.
fn share(contender: &PolicyCandidate<'_>, fleet: &FleetTotals, prompt: f64) -> f64 {
    if fleet.cold_s <= 0.0 {
        return 0.0;
    }
    let uneven = (cold_s(contender) / fleet.cold_s - 1.0).min(SHARE_MOST);
    uneven * fleet.cold_tokens / (fleet.cold_tokens + SHARE_VOLUME * prompt)
}

/// Returns the weight on the whole prompt by how far the target exceeds its allowed requests.
fn excess_weight(contender: &PolicyCandidate<'_>, fleet: &FleetTotals) -> f64 {
    let over = (f64::from(contender.state.load.in_flight) + 1.0) / fleet.allowed_requests - 1.0;
    EXCESS_GAIN * over.max(0.0) * (1.0 + fleet.others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_waits_for_a_target_beyond_the_least_counts_and_no_more_than_its_bound() {
        assert_eq!(waiting_ms(0.0, 0.0), 0.0);
        assert_eq!(waiting_ms(700.0, 700.0), 0.0);
        let (some, more) = (waiting_ms(900.0, 700.0), waiting_ms(1_100.0, 700.0));
        assert!(some > 0.0);
        assert_eq!(more, 2.0 * some);
        assert_eq!(waiting_ms(86_400_000.0, 0.0), WAITING_MOST_MS);
        assert_eq!(waiting_ms(f64::INFINITY, 0.0), WAITING_MOST_MS);
    }
}
