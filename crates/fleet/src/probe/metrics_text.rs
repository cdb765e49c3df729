//! `GET /metrics` of a worker: extracts the few relevant samples from the Prometheus text format.
//!
//! Tolerant on purpose: lines that do not parse as samples are skipped. Labels decide the rank of a
//! sample.

use kv_blocks::BlockSize;

use super::{
    engine_figures::{EngineFigures, InvalidFigure},
    prefix_cache::{MOST_RANKS, PrefixCache},
};
use crate::EngineLoad;

/// Longest line that is read, in bytes. The configuration of vLLM's cache takes two thousand.
const LONGEST_LINE: usize = 64 << 10;

/// An engine's metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EngineMetrics {
    /// Whether some family carries vLLM's prefix.
    pub(crate) is_vllm: bool,
    /// `block_size` of the cache configuration.
    pub(crate) block_size: Option<BlockSize>,
    /// `num_gpu_blocks` of the cache configuration, per rank.
    pub(crate) num_blocks: Option<u32>,
    /// `enable_prefix_caching` of the cache configuration.
    pub(crate) prefix_caching: Option<bool>,
    /// Ranks seen in the `engine` label.
    pub(crate) ranks: u32,
    /// Running and waiting requests summed over ranks, and the highest usage of them.
    pub(crate) load: EngineLoad,
    pub(crate) prefix_cache: PrefixCache,
    /// Whether it is a page of SGLang or TensorRT-LLM.
    pub(crate) is_other_engine: bool,
    /// The first figure of these engines that cannot be used.
    pub(crate) invalid: Option<InvalidFigure>,
}

/// The part that changes while the engine works.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scrape {
    pub(crate) load: EngineLoad,
    pub(crate) prefix_cache: PrefixCache,
    pub(crate) invalid: Option<InvalidFigure>,
}

impl EngineMetrics {
    /// Returns whether the page is that of an engine whose metrics are read.
    pub(crate) fn is_known(&self) -> bool {
        self.is_vllm || self.is_other_engine
    }

    pub(crate) fn scrape(&self) -> Scrape {
        Scrape {
            load: self.load,
            prefix_cache: self.prefix_cache.clone(),
            invalid: self.invalid.clone(),
        }
    }
}

/// Reads the text; never fails.
pub(crate) fn read(text: &str) -> EngineMetrics {
    let mut found = EngineMetrics::default();
    let mut figures = EngineFigures::default();
    for line in text.lines().filter(|line| line.len() <= LONGEST_LINE) {
        let Some(sample) = MetricSample::read(line) else {
            continue;
        };
        let Some(name) = sample.name.strip_prefix("vllm:") else {
            figures.add_sample(&sample);
            continue;
        };
        found.is_vllm = true;
        match name {
            "cache_config_info" => {
                if let Some(rank) = sample
                    .label("engine")
                    .and_then(|rank| rank.parse::<u32>().ok())
                {
                    found.ranks = found.ranks.max(rank.min(MOST_RANKS - 1) + 1);
                }
                found.prefix_caching =
                    found
                        .prefix_caching
                        .or(match sample.label("enable_prefix_caching") {
                            Some("True") => Some(true),
                            Some("False") => Some(false),
                            _ => None,
                        });
                let number = |label| {
                    sample
                        .label(label)
                        .and_then(|value| value.parse::<u64>().ok())
                };
                let size = number("block_size").and_then(|tokens| BlockSize::new(tokens).ok());
                found.block_size = found.block_size.or(size);
                let blocks = number("num_gpu_blocks").and_then(|blocks| u32::try_from(blocks).ok());
                found.num_blocks = found.num_blocks.or(blocks.filter(|blocks| *blocks > 0));
            }
            "num_requests_running" => add(&mut found.load.running, sample.value),
            "num_requests_waiting" => add(&mut found.load.waiting, sample.value),
            // The second name is the one of releases before 0.9.
            "kv_cache_usage_perc" | "gpu_cache_usage_perc"
                if (0.0..=1.0).contains(&sample.value) =>
            {
                let ratio = found.load.kv_usage_ratio.get_or_insert(0.0);
                *ratio = ratio.max(sample.value);
            }
            name => found
                .prefix_cache
                .add(name, sample.label("engine"), sample.value),
        }
    }
    if !found.is_vllm && figures.is_known {
        found.load = figures.load();
        found.is_other_engine = true;
        found.invalid = figures.invalid;
    }
    found
}

fn add(sum: &mut Option<u32>, value: f64) {
    if value.is_finite() && value >= 0.0 {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to u32 just here"
        )]
        let value = value.min(f64::from(u32::MAX)) as u32;
        *sum = Some(sum.unwrap_or(0).saturating_add(value));
    }
}

/// One sample of a page.
pub(super) struct MetricSample<'a> {
    pub(super) name: &'a str,
    labels: &'a str,
    pub(super) value: f64,
}

impl<'a> MetricSample<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let line = line.trim();
        if line.starts_with('#') {
            return None;
        }
        let name_ends = line.find(|c: char| c == '{' || c.is_whitespace())?;
        let (name, rest) = line.split_at(name_ends);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(inside) => {
                let end = end_of_labels(inside)?;
                (&inside[..end], &inside[end + 1..])
            }
            None => ("", rest),
        };
        let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Self {
            name,
            labels,
            value,
        })
    }

    /// Returns the value of a label as written: none of the used labels contains escapes.
    pub(super) fn label(&self, key: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (name, after) = rest.split_once("=\"")?;
            let end = end_of_string(after)?;
            if name.trim_start_matches([',', ' ']) == key {
                return Some(&after[..end]);
            }
            rest = &after[end + 1..];
        }
    }
}

/// Returns the position of the brace that closes the labels; braces inside quoted values do not
/// count.
fn end_of_labels(text: &str) -> Option<usize> {
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

fn end_of_string(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_engines_metrics_give_block_size_blocks_and_load() {
        let found = read(include_str!(
            "../../../../tests/fixtures/vllm-real/0.32.0-metrics.txt"
        ));
        assert!(found.is_vllm);
        assert_eq!(found.block_size.unwrap().tokens(), 32);
        assert_eq!(found.num_blocks, Some(512));
        assert_eq!(found.prefix_caching, Some(true));
        assert_eq!(found.ranks, 1);
        assert_eq!(found.load.running, Some(0));
        assert_eq!(found.load.waiting, Some(0));
        assert!(found.load.kv_usage_ratio.is_some());
    }

    #[test]
    fn ranks_are_counted_and_their_load_added() {
        let found = read(
            "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1.0\n\
             vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"100\"} 1.0\n\
             vllm:num_requests_running{engine=\"0\"} 2.0\nvllm:num_requests_running{engine=\"1\"} 3\n\
             vllm:num_requests_waiting{engine=\"0\"} 1\n\
             vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n",
        );
        assert_eq!(found.ranks, 2);
        assert_eq!(found.num_blocks, Some(100));
        let want = EngineLoad {
            running: Some(5),
            waiting: Some(1),
            kv_usage_ratio: Some(0.5),
        };
        assert_eq!(found.load, want);
    }

    #[test]
    fn braces_and_quotes_in_label_values_are_parsed() {
        let found = read(
            r#"vllm:cache_config_info{a="}\"{",dtype="x,block_size=",block_size="64",b="["} 1"#,
        );
        assert_eq!(found.block_size.unwrap().tokens(), 64);
    }

    #[test]
    fn invalid_lines_are_skipped() {
        for nonsense in [
            "",
            "vllm:num_requests_running",
            "vllm:num_requests_running{",
            "vllm:num_requests_running{a=\"} 1",
            "vllm:num_requests_running NaN",
            "vllm:num_requests_running -1",
            "vllm:kv_cache_usage_perc 7",
            "vllm:cache_config_info{block_size=\"0\",num_gpu_blocks=\"None\",engine=\"x\"} 1",
            "{} 1",
            "# vllm:num_requests_running 1",
        ] {
            let found = read(nonsense);
            assert_eq!(
                EngineMetrics {
                    is_vllm: false,
                    ..found
                },
                EngineMetrics::default(),
                "{nonsense}"
            );
        }
        assert!(!read("python_info 1").is_vllm);
    }
}
