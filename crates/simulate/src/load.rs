//! The load of a trace on a fleet, and the share of it that a cache could save.
//!
//! The load index is the share of its time that a fleet with one pooled cache would spend on useful
//! work: prefill of the blocks that such a cache does not hold, and decoding in batches of 32. It
//! is an index, not a utilisation: engines that queue or batch badly are busier. Source: the
//! definition of load that published comparisons of routing policies use.

use std::collections::{BTreeMap, HashMap};

use engine_model::Profile;
use kv_blocks::EngineHash;

use crate::{Trace, figures::ratio};

/// Sequences per batch in the cost of decoding.
const BATCH: f64 = 32.0;

/// Returns the share of all prompts' blocks that an unbounded cache would already hold at their
/// arrival.
pub fn infinite_hit_ratio(trace: &Trace) -> f64 {
    let hits: u64 = pooled_hits(trace, usize::MAX)
        .into_iter()
        .map(u64::from)
        .sum();
    ratio(hits, trace.blocks() as u64)
}

/// Returns the leading tokens of each prompt that an unbounded cache would hold at its arrival, as far
/// as an engine can use them: it computes the last token of a prompt again.
pub(crate) fn reusable_tokens(trace: &Trace) -> Vec<u32> {
    let size = trace.block_size;
    trace
        .requests
        .iter()
        .zip(pooled_hits(trace, usize::MAX))
        .map(|(request, hits)| {
            let usable = size.whole_blocks(request.prompt_tokens.saturating_sub(1));
            hits.min(usable) * size.tokens()
        })
        .collect()
}

/// Returns the speed-up of `trace` at which `workers` engines have this load index.
pub fn speedup_for(trace: &Trace, profile: &Profile, workers: u32, load: f64) -> f64 {
    let size = trace.block_size.tokens();
    let capacity = (profile.kv_tokens / size) as usize * workers as usize;
    let work_ms: f64 = trace
        .requests
        .iter()
        .zip(pooled_hits(trace, capacity))
        .map(|(request, hits)| {
            let cached = hits.saturating_mul(size).min(request.prompt_tokens - 1);
            let context = f64::from(request.prompt_tokens);
            let token_ms =
                profile.step_ms / BATCH + profile.sequence_ms + profile.kv_token_ms * context;
            profile.prefill_ms_of(cached, request.prompt_tokens)
                + f64::from(request.output_tokens) * token_ms
        })
        .sum();
    let duration_ms = trace
        .requests
        .last()
        .map_or(0.0, |last| last.arrival_s)
        .max(1.0)
        * 1e3;
    load * f64::from(workers) * duration_ms / work_ms
}

/// Returns the leading blocks of each request that one cache of `capacity` blocks would hold, with
/// least-recently-used eviction.
fn pooled_hits(trace: &Trace, capacity: usize) -> Vec<u32> {
    let mut cache = PooledCache::default();
    trace
        .requests
        .iter()
        .map(|request| {
            let hits = request
                .names
                .iter()
                .take_while(|name| cache.last_use.contains_key(name))
                .count();
            // Inserts the end of a prompt first, so that it is also evicted first.
            request
                .names
                .iter()
                .rev()
                .for_each(|name| cache.touch(*name));
            cache.shrink_to(capacity);
            // At most the blocks of a prompt, whose tokens are a u32.
            u32::try_from(hits).unwrap_or(u32::MAX)
        })
        .collect()
}

/// One cache that stands for all engines' caches.
#[derive(Debug, Default)]
struct PooledCache {
    last_use: HashMap<EngineHash, u64>,
    by_use: BTreeMap<u64, EngineHash>,
    uses: u64,
}

impl PooledCache {
    fn touch(&mut self, name: EngineHash) {
        self.uses += 1;
        if let Some(before) = self.last_use.insert(name, self.uses) {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.uses, name);
    }

    fn shrink_to(&mut self, capacity: usize) {
        while self.by_use.len() > capacity {
            if let Some((_, name)) = self.by_use.pop_first() {
                self.last_use.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kv_blocks::BlockSize;

    use super::*;

    fn trace(prompts: &[&[u64]]) -> Trace {
        let lines: Vec<String> = prompts
            .iter()
            .enumerate()
            .map(|(second, ids)| {
                format!(
                    r#"{{"timestamp": {}, "input_length": {}, "output_length": 10, "hash_ids": {ids:?}}}"#,
                    second * 1000,
                    ids.len() * 16,
                )
            })
            .collect();
        Trace::read(&lines.join("\n"), BlockSize::new(16).unwrap()).unwrap()
    }

    #[test]
    fn an_unbounded_cache_hits_every_earlier_prefix() {
        let trace = trace(&[&[1, 2, 3], &[1, 2, 4], &[5, 2, 3], &[1, 2, 3]]);
        assert_eq!(pooled_hits(&trace, usize::MAX), [0, 2, 0, 3]);
        assert_eq!(infinite_hit_ratio(&trace), 5.0 / 12.0);
    }

    #[test]
    fn the_block_of_a_prompts_last_token_cannot_be_reused() {
        let trace = trace(&[&[1, 2, 3], &[1, 2, 3], &[1, 2, 3, 4]]);
        assert_eq!(reusable_tokens(&trace), [0, 32, 48]);
    }

    #[test]
    fn a_small_cache_evicts_the_ends_of_old_prompts_first() {
        let trace = trace(&[&[1, 2, 3], &[4, 5], &[1, 2, 3]]);
        assert_eq!(pooled_hits(&trace, 4), [0, 0, 2]);
        assert_eq!(pooled_hits(&trace, 2), [0, 0, 0]);
    }

    #[test]
    fn speed_doubles_with_the_load_and_with_the_workers_for_unshared_prompts() {
        let trace = trace(&[&[1, 2], &[3, 4], &[5, 6]]);
        let profile = Profile::named("8b-h200").unwrap();
        let speed = |workers, load| speedup_for(&trace, &profile, workers, load);
        assert!((speed(4, 0.6) / speed(4, 0.3) - 2.0).abs() < 1e-12);
        assert!((speed(8, 0.3) / speed(4, 0.3) - 2.0).abs() < 1e-12);
        // Three prompts of 32 tokens in two seconds, computed by hand.
        let prompt_ms = 0.014_109_7 * 32.0 + 4.919e-7 * 1024.0;
        let token_ms = 4.452 / 32.0 + 0.022_24 + 3.159_6e-5 * 32.0;
        let by_hand = 0.5 * 2000.0 / (3.0 * (prompt_ms + 10.0 * token_ms));
        assert!(
            (speed(1, 0.5) - by_hand).abs() < 1e-9,
            "{} is not {by_hand}",
            speed(1, 0.5)
        );
    }
}
