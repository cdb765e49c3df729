//! The load that SGLang and TensorRT-LLM report, by data-parallel rank.

use std::collections::BTreeMap;

use super::{metrics_text::MetricSample, prefix_cache::MOST_RANKS};
use crate::EngineLoad;

/// Longest part of an invalid value that is reported.
const LONGEST_VALUE: usize = 40;

/// A figure of an engine's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// Requests being computed.
    Running,
    /// Requests waiting in the engine.
    Waiting,
    /// Share of the KV cache in use.
    Usage,
}

/// A figure that cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InvalidFigure {
    /// Its name in the engine's metrics.
    pub(crate) name: String,
    /// The reported value.
    pub(crate) value: String,
}

/// The figures of one page, at most [`MOST_RANKS`] ranks of them.
#[derive(Debug, Default)]
pub(super) struct EngineFigures {
    ranks: BTreeMap<u32, RankFigures>,
    /// Whether the page is one of these engines, with figures or without.
    pub(super) is_known: bool,
    /// The first figure that cannot be used.
    pub(super) invalid: Option<InvalidFigure>,
}

/// The figures of one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankFigures {
    running: Option<f64>,
    waiting: Option<f64>,
    usage: Option<f64>,
}

impl EngineFigures {
    /// Returns the figures of a page that is one of these engines' and has none yet.
    pub(super) fn of_known_engine() -> Self {
        Self {
            is_known: true,
            ..Self::default()
        }
    }

    /// Adds one sample of a Prometheus page if it is one of the figures.
    pub(super) fn add_sample(&mut self, sample: &MetricSample<'_>) {
        let Some(figure) = figure(sample.name) else {
            return;
        };
        self.is_known = true;
        // The sample without a priority is the sum of those with one.
        if sample.label("priority").is_some_and(|it| !it.is_empty()) {
            return;
        }
        let rank = sample.label("dp_rank").and_then(|rank| rank.parse().ok());
        self.add(rank.unwrap_or(0), figure, (sample.name, sample.value));
    }

    /// Adds one figure of a rank. The members of a tensor-parallel group report the same requests,
    /// so the highest value counts.
    pub(super) fn add(&mut self, rank: u32, figure: Figure, (name, value): (&str, f64)) {
        let most = match figure {
            Figure::Running | Figure::Waiting => f64::from(u32::MAX),
            Figure::Usage => 1.0,
        };
        // False for what is not a number, too.
        if !(0.0..=most).contains(&value) || rank >= MOST_RANKS {
            self.reject(name, value);
            return;
        }
        let figures = self.ranks.entry(rank).or_default();
        let field = match figure {
            Figure::Running => &mut figures.running,
            Figure::Waiting => &mut figures.waiting,
            Figure::Usage => &mut figures.usage,
        };
        *field = Some(field.map_or(value, |before| before.max(value)));
    }

    /// Drops a rank's figures: later ones replace them.
    pub(super) fn forget(&mut self, rank: u32) {
        self.ranks.remove(&rank);
    }

    /// Records a figure that cannot be used.
    pub(super) fn reject(&mut self, name: &str, value: impl std::fmt::Display) {
        let value = value.to_string().chars().take(LONGEST_VALUE).collect();
        let name = name.to_owned();
        self.invalid.get_or_insert(InvalidFigure { name, value });
    }

    /// Returns requests summed over the ranks, and the highest usage of them.
    pub(super) fn load(&self) -> EngineLoad {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`as` saturates, and none is negative"
        )]
        let sum = |figure: fn(&RankFigures) -> Option<f64>| {
            let values = self.ranks.values().filter_map(figure);
            values
                .reduce(|one, other| one + other)
                .map(|sum| sum as u32)
        };
        EngineLoad {
            running: sum(|rank| rank.running),
            waiting: sum(|rank| rank.waiting),
            kv_usage_ratio: self
                .ranks
                .values()
                .filter_map(|rank| rank.usage)
                .reduce(f64::max),
        }
    }
}

/// Returns the figure of a metric. SGLang's names have a colon, or an underscore where an exporter
/// stands between.
fn figure(name: &str) -> Option<Figure> {
    let own = name
        .strip_prefix("sglang:")
        .or_else(|| name.strip_prefix("sglang_"));
    match (own, name) {
        (Some("num_running_reqs"), _) | (None, "trtllm_num_requests_running") => {
            Some(Figure::Running)
        }
        (Some("num_queue_reqs"), _) | (None, "trtllm_num_requests_waiting") => {
            Some(Figure::Waiting)
        }
        (Some("token_usage"), _) | (None, "trtllm_kv_cache_utilization") => Some(Figure::Usage),
        _ => None,
    }
}
