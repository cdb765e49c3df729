//! What each candidate could read, and what that would cost and displace.

use kv_blocks::Moment;

use super::{
    FetchOption,
    sources::{Source, Sources},
};
use crate::{
    ledger::KnownBlocks,
    policy::rule::{PolicyCandidate, PolicyInput},
    state::RouterState,
};

impl RouterState {
    /// Offers to each candidate to read the blocks that it lacks from another one.
    pub(crate) fn offer_fetches(&mut self, now: Moment, input: &mut PolicyInput<'_>) {
        self.fetches.expire(now);
        let fetches = &self.fetches;
        let prompts = input.prompts.len();
        let sources = Sources::of(&input.candidates, prompts, |target| fetches.reads(target));
        if sources.is_empty() {
            return;
        }
        let known: Vec<Option<KnownBlocks>> = input
            .prompts
            .iter()
            .map(|prompt| Some(self.ledger.live.known(prompt.footprint.as_ref()?)))
            .collect();
        let output = input.expected_output_tokens;
        for contender in &mut input.candidates {
            let prompt = contender.overlap.prompt;
            let Some(offered) = self.fetch_option(now, contender, &sources, input.prompt_tokens)
            else {
                continue;
            };
            let footprint = input.prompts[prompt].footprint.as_ref();
            let displaced_blocks = footprint.zip(known[prompt].as_ref()).map_or(0.0, |of| {
                self.displaced_blocks(now, contender.overlap.candidate, of, output)
            });
            let block_tokens = contender.overlap.candidate.namespace.block_size.tokens();
            contender.fetch = Some(FetchOption {
                displaced_tokens: displaced_blocks * f64::from(block_tokens),
                ..offered
            });
        }
    }

    /// Returns what a candidate could read, without what that would displace: from the source with
    /// which it is expected to save most time.
    fn fetch_option(
        &self,
        now: Moment,
        contender: &PolicyCandidate<'_>,
        sources: &Sources,
        prompt_tokens: u32,
    ) -> Option<FetchOption> {
        let (surveyed, target) = (&contender.overlap, contender.target());
        if !surveyed.candidate.fetches {
            return None;
        }
        let cached = f64::from(surveyed.predicted_cached_tokens);
        let rates = &contender.state.rates;
        let saved_ms = |option: &FetchOption| {
            let computed_ms = rates.prefill_ms(cached, f64::from(option.tokens));
            (1.0 - option.missed) * computed_ms - option.ms
        };
        sources
            .others(surveyed.prompt, target)
            .filter_map(|source| self.option_from(now, source, contender, prompt_tokens))
            .reduce(|best, other| {
                if saved_ms(&other) > saved_ms(&best) {
                    other
                } else {
                    best
                }
            })
    }

    /// Returns what a candidate could read from this source.
    fn option_from(
        &self,
        now: Moment,
        source: Source,
        contender: &PolicyCandidate<'_>,
        prompt_tokens: u32,
    ) -> Option<FetchOption> {
        let tokens = contender.overlap.lacks_of(source.tokens, prompt_tokens);
        if tokens == 0 {
            return None;
        }
        let pair = (source.target.worker, contender.target().worker);
        let reads = self.fetches.reads(source.target);
        let price = self.fetches.rates.price(now, pair, tokens, reads);
        Some(FetchOption {
            source: source.target,
            tokens,
            ms: price.ms,
            missed: price.missed,
            displaced_tokens: 0.0,
        })
    }
}
