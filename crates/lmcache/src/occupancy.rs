//! The controller's answers by worker.

use std::collections::{BTreeMap, HashMap};

use crate::reply::RankChunks;

/// Workers by the ids of LMCache instances (`lmcache_instance_id`): names, or `host:port`.
type WorkerMap = BTreeMap<String, String>;

/// Returns the worker that the instance belongs to; without a mapping, the instance's own id.
fn worker_of<'a>(map: &'a WorkerMap, instance: &'a str) -> &'a str {
    map.get(instance).map_or(instance, String::as_str)
}

/// Number of chunks that each worker holds, over all prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy(HashMap<Box<str>, u64>);

impl Occupancy {
    /// Aggregates by worker: over several instances of one worker the sum; over the ranks of one
    /// instance, which hold parts of the same chunks, the largest.
    pub(crate) fn of(chunks: &[RankChunks], map: &WorkerMap) -> Self {
        let mut largest: HashMap<&str, u64> = HashMap::new();
        for RankChunks { instance, keys } in chunks {
            let known = largest.entry(instance).or_default();
            *known = (*known).max(*keys);
        }
        let mut by_worker: HashMap<Box<str>, u64> = HashMap::new();
        for (instance, keys) in largest {
            let sum = by_worker
                .entry(worker_of(map, instance).into())
                .or_default();
            *sum = sum.saturating_add(keys);
        }
        Self(by_worker)
    }

    /// Returns the chunks of the worker with this name, or at this `host:port`; `None`: the
    /// controller does not know it.
    pub fn keys(&self, name: &str, host_port: &str) -> Option<u64> {
        self.0.get(name).or_else(|| self.0.get(host_port)).copied()
    }

    /// Returns the number of workers in the answer, whether or not they are ours.
    pub fn workers(&self) -> usize {
        self.0.len()
    }
}

/// Number of leading tokens of one prompt that each worker holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchedTokens(HashMap<Box<str>, u32>);

impl MatchedTokens {
    /// Aggregates by worker: over several instances of one worker the largest, capped at the
    /// `prompt_tokens` tokens.
    pub(crate) fn of(layout: Vec<(String, u64)>, map: &WorkerMap, prompt_tokens: u32) -> Self {
        let mut by_worker: HashMap<Box<str>, u32> = HashMap::new();
        for (instance, tokens) in layout {
            let tokens = u32::try_from(tokens).unwrap_or(u32::MAX).min(prompt_tokens);
            let known = by_worker
                .entry(worker_of(map, &instance).into())
                .or_default();
            *known = (*known).max(tokens);
        }
        Self(by_worker)
    }

    /// Returns the tokens of the worker with this name, or at this `host:port`; 0 if the answer
    /// does not list it.
    pub fn tokens(&self, name: &str, host_port: &str) -> u32 {
        self.0
            .get(name)
            .or_else(|| self.0.get(host_port))
            .copied()
            .unwrap_or(0)
    }

    /// Returns whether no worker, ours or not, holds any.
    pub fn is_empty(&self) -> bool {
        self.0.values().all(|tokens| *tokens == 0)
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn chunks(of: &[(&str, u64)]) -> Vec<RankChunks> {
        of.iter()
            .map(|(instance, keys)| RankChunks {
                instance: (*instance).to_owned(),
                keys: *keys,
            })
            .collect()
    }

    fn map(pairs: &[(&str, &str)]) -> WorkerMap {
        let owned = |(instance, worker): &(&str, &str)| ((*instance).into(), (*worker).into());
        pairs.iter().map(owned).collect()
    }

    #[test]
    #[contract("V29")]
    fn ranks_of_an_instance_share_chunks_and_instances_of_a_worker_do_not() {
        let instances = map(&[("i0", "a"), ("i1", "a"), ("i2", "h:2")]);
        let of = chunks(&[
            ("i0", 10),
            ("i0", 12),
            ("i1", 5),
            ("i2", 7),
            ("h:3", 1),
            ("else", 9),
        ]);
        let occupancy = Occupancy::of(&of, &instances);
        assert_eq!(occupancy.keys("a", "h:1"), Some(17));
        assert_eq!(occupancy.keys("b", "h:2"), Some(7), "mapped by its address");
        assert_eq!(
            occupancy.keys("c", "h:3"),
            Some(1),
            "an id that is its address"
        );
        assert_eq!(occupancy.keys("d", "h:4"), None);
        assert_eq!(occupancy.workers(), 4);
    }

    #[test]
    #[contract("V30")]
    fn a_match_is_never_longer_than_the_prompt() {
        let layout = vec![
            ("i0".to_owned(), 900),
            ("i1".to_owned(), 20),
            ("b".to_owned(), u64::MAX),
        ];
        let matched = MatchedTokens::of(layout, &map(&[("i0", "a"), ("i1", "a")]), 64);
        assert_eq!(
            (
                matched.tokens("a", "h:1"),
                matched.tokens("b", "h:2"),
                matched.tokens("c", "h:3")
            ),
            (64, 64, 0)
        );
        assert!(!matched.is_empty());
        assert!(
            MatchedTokens::of(vec![("i0".to_owned(), 0)], &WorkerMap::default(), 64).is_empty()
        );
    }
}
