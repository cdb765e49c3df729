//! The figures that are compared with the golden values.

use simulate::CellReport;

/// A figure of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellFigure {
    TtftMean,
    TtftP99,
    BlockHits,
    Imbalance,
    ItlMean,
}

impl CellFigure {
    pub(crate) const ALL: [Self; 5] = [
        Self::TtftMean,
        Self::TtftP99,
        Self::BlockHits,
        Self::Imbalance,
        Self::ItlMean,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TtftMean => "ttft_mean_ms",
            Self::TtftP99 => "ttft_p99_ms",
            Self::BlockHits => "block_hit_ratio",
            Self::Imbalance => "prefill_imbalance",
            Self::ItlMean => "itl_mean_ms",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|figure| figure.name() == name)
    }

    pub(crate) fn of(self, report: &CellReport) -> f64 {
        match self {
            Self::TtftMean => report.ttft_ms.mean,
            Self::TtftP99 => report.ttft_ms.p99,
            Self::BlockHits => report.block_hit_ratio,
            Self::Imbalance => report.prefill_imbalance,
            Self::ItlMean => report.itl_ms.mean,
        }
    }

    /// How much worse `found` is than `golden`, in percent; below 0 if it is better.
    pub(crate) fn loss(self, golden: f64, found: f64) -> f64 {
        match self {
            Self::BlockHits => 100.0 * (1.0 - found / golden),
            _ => 100.0 * (found / golden - 1.0),
        }
    }

    /// The smallest tolerance, in percent. The 99th percentile of some hundred requests is the time
    /// of a handful.
    pub(crate) fn least_tolerance(self) -> f64 {
        if self == Self::TtftP99 { 5.0 } else { 2.0 }
    }
}
