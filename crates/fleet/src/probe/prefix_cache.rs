//! An engine's counters of its prefix cache, by rank.

use std::collections::BTreeMap;

use kv_blocks::{DpRank, Moment};

use crate::PrefixCacheCounters;

/// Highest accepted rank; a label beyond it is nonsense.
pub(crate) const MOST_RANKS: u32 = 1024;

/// The counters of one page of metrics, at most [`MOST_RANKS`] ranks of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PrefixCache(BTreeMap<u32, RankCounters>);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RankCounters {
    now: NamedCounters,
    /// Under the names of releases before 0.9. Some releases serve both: they count the same.
    previous: NamedCounters,
    /// Hits outside the device, in a connector's storage.
    external_hits: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct NamedCounters {
    queries: Option<f64>,
    hits: f64,
}

impl PrefixCache {
    /// Adds one sample if it is one of these counters. `name` is without vLLM's prefix; without a
    /// label the rank is the first.
    pub(crate) fn add(&mut self, name: &str, rank: Option<&str>, value: f64) {
        let field: fn(&mut RankCounters, f64) = match name {
            "prefix_cache_queries_total" => |it, value| *it.now.queries.get_or_insert(0.0) += value,
            "prefix_cache_hits_total" => |it, value| it.now.hits += value,
            "gpu_prefix_cache_queries_total" => {
                |it, value| *it.previous.queries.get_or_insert(0.0) += value
            }
            "gpu_prefix_cache_hits_total" => |it, value| it.previous.hits += value,
            "external_prefix_cache_hits_total" => |it, value| it.external_hits += value,
            _ => return,
        };
        let rank = rank.map_or(Ok(0), str::parse::<u32>);
        let Some(rank) = rank.ok().filter(|rank| *rank < MOST_RANKS) else {
            return;
        };
        if value.is_finite() && value >= 0.0 {
            field(self.0.entry(rank).or_default(), value);
        }
    }

    /// Returns the counters by rank, read `at`.
    pub(crate) fn counters(&self, at: Moment) -> Vec<(DpRank, PrefixCacheCounters)> {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`as` saturates, and none is negative"
        )]
        let whole = |value: f64| value as u64;
        let counters = |(rank, it): (&u32, &RankCounters)| {
            let names = if it.now.queries.is_some() {
                it.now
            } else {
                it.previous
            };
            let (queries, hits) = (whole(names.queries?), whole(names.hits + it.external_hits));
            Some((DpRank(*rank), PrefixCacheCounters { at, queries, hits }))
        };
        self.0.iter().filter_map(counters).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::metrics_text;

    fn read(page: &str) -> Vec<(u32, u64, u64)> {
        let counters = metrics_text::read(page)
            .prefix_cache
            .counters(Moment::START);
        counters
            .into_iter()
            .map(|(rank, it)| (rank.0, it.queries, it.hits))
            .collect()
    }

    #[test]
    fn a_real_engines_counters_are_found() {
        let page = include_str!("../../../../tests/fixtures/vllm-real/0.32.0-metrics.txt");
        assert_eq!(read(page), [(0, 734_318, 496_384)]);
    }

    #[test]
    fn each_rank_has_its_own_counters_and_a_page_without_ranks_means_the_first() {
        let page = "vllm:prefix_cache_queries_total{engine=\"1\"} 10\nvllm:prefix_cache_hits_total{engine=\"1\"} 4\n\
                    vllm:external_prefix_cache_hits_total{engine=\"1\"} 2\nvllm:prefix_cache_queries_total{engine=\"0\"} 7\n";
        assert_eq!(read(page), [(0, 7, 0), (1, 10, 6)]);
        assert_eq!(
            read("vllm:prefix_cache_queries_total 3\nvllm:prefix_cache_hits_total 1\n"),
            [(0, 3, 1)]
        );
    }

    #[test]
    fn older_names_are_read_if_the_newer_ones_are_missing() {
        let older = "vllm:gpu_prefix_cache_queries_total 5\nvllm:gpu_prefix_cache_hits_total 2\n";
        assert_eq!(read(older), [(0, 5, 2)]);
        let both =
            format!("{older}vllm:prefix_cache_queries_total 80\nvllm:prefix_cache_hits_total 32\n");
        assert_eq!(read(&both), [(0, 80, 32)]);
    }

    #[test]
    fn invalid_lines_are_skipped() {
        for page in [
            "vllm:prefix_cache_hits_total 4",
            "vllm:prefix_cache_queries_total NaN",
            "vllm:prefix_cache_queries_total -1",
            "vllm:prefix_cache_queries_total{engine=\"x\"} 1",
            "vllm:prefix_cache_queries_total{engine=\"4096\"} 1",
            "sglang:cache_hit_rate 0.5",
        ] {
            assert_eq!(read(page), [], "{page}");
        }
        let endless = "vllm:prefix_cache_queries_total 1e300";
        assert_eq!(read(endless), [(0, u64::MAX, 0)]);
    }
}
