//! The gate: `warm` beside the best other contender of each cell.

use std::fmt;

use serde::Serialize;

use super::{
    ComparedPace, Contender,
    report::{ComparisonCell, ComparisonRow},
};

/// By how much `warm` may be worse than the best other contender. A single run says a difference of
/// about 3 % only.
pub const BOUNDS: [Bound; 4] = [
    Bound {
        figure: ComparedFigure::Reuse,
        percent: 5.0,
        beyond_caches: true,
    },
    Bound {
        figure: ComparedFigure::Turns,
        percent: 5.0,
        beyond_caches: true,
    },
    Bound {
        figure: ComparedFigure::TtftP95,
        percent: 10.0,
        beyond_caches: false,
    },
    // Round robin computes the most, and the same on every engine.
    Bound {
        figure: ComparedFigure::Imbalance,
        percent: 25.0,
        beyond_caches: false,
    },
];

/// A bound of the gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The figure.
    pub figure: ComparedFigure,
    /// How much worse it may be, in percent of the best.
    pub percent: f64,
    /// Whether it holds where the sessions exceed the caches, too: there only for the contender with
    /// admission, which is made for that.
    pub beyond_caches: bool,
}

/// A figure of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ComparedFigure {
    /// Share of the available reuse.
    #[serde(rename = "reuse_ratio")]
    Reuse,
    /// Turns per minute within the SLO.
    #[serde(rename = "turns_per_minute")]
    Turns,
    /// The 95th percentile of the time to first token.
    #[serde(rename = "ttft_p95_ms")]
    TtftP95,
    /// Imbalance of the computed prompt tokens.
    #[serde(rename = "prefill_imbalance")]
    Imbalance,
}

impl ComparedFigure {
    /// Returns the name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reuse => "share of available reuse",
            Self::Turns => "turns per minute within the SLO",
            Self::TtftP95 => "TTFT p95 in ms",
            Self::Imbalance => "imbalance",
        }
    }

    /// Returns the figure of a row; `None` if it has none.
    pub fn of(self, row: &ComparisonRow) -> Option<f64> {
        match self {
            Self::Reuse => row.reuse_ratio,
            Self::Turns => Some(row.turns_per_minute),
            Self::TtftP95 => Some(row.ttft_p95_ms),
            Self::Imbalance => Some(row.prefill_imbalance),
        }
    }

    /// Returns how much worse `found` is than `best`, in percent of `best`; below 0 if it is better.
    fn loss_percent(self, best: f64, found: f64) -> f64 {
        let difference = match self {
            Self::Reuse | Self::Turns => best - found,
            Self::TtftP95 | Self::Imbalance => found - best,
        };
        if difference == 0.0 {
            0.0
        } else {
            100.0 * difference / best
        }
    }
}

impl Bound {
    /// Returns whether it holds for a contender at a pace. Where each contender has its own number of
    /// sessions only the turns can be compared.
    fn holds_for(&self, contender: &Contender, pace: ComparedPace) -> bool {
        match pace {
            ComparedPace::MostSessions => self.figure == ComparedFigure::Turns,
            pace if pace.exceeds_caches() => self.beyond_caches && contender.admits(),
            _ => true,
        }
    }
}

/// A figure of `warm` that is worse than the gate allows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GateLoss {
    /// Name of the trace.
    pub trace: String,
    /// How it was played.
    pub pace: ComparedPace,
    /// The contender that is worse.
    pub contender: Contender,
    /// The figure.
    pub figure: ComparedFigure,
    /// Its value.
    pub found: f64,
    /// The value of the best other contender.
    pub best: f64,
    /// That contender.
    pub best_contender: Contender,
    /// How much worse it is, in percent.
    pub loss_percent: f64,
    /// How much worse it may be, in percent.
    pub allowed_percent: f64,
}

impl fmt::Display for GateLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}: {} of {} is {}, of {} {}: {:.1} % worse, allowed {:.1} %",
            self.trace,
            self.pace,
            self.figure.name(),
            self.contender.name,
            self.found,
            self.best_contender.name,
            self.best,
            self.loss_percent,
            self.allowed_percent
        )
    }
}

/// Returns every figure that is worse than its bound, in the order of the cells.
pub(super) fn losses(cells: &[ComparisonCell]) -> Vec<GateLoss> {
    let mut losses = Vec::new();
    for cell in cells {
        for bound in &BOUNDS {
            let gated = cell.rows.iter().filter(|row| {
                row.contender.is_gated() && bound.holds_for(&row.contender, cell.pace)
            });
            losses.extend(gated.filter_map(|row| loss(cell, bound, row)));
        }
    }
    losses
}

/// Returns the loss of a row, if it is more than its bound.
fn loss(cell: &ComparisonCell, bound: &Bound, row: &ComparisonRow) -> Option<GateLoss> {
    let figure = bound.figure;
    let (best_contender, best) = best_other(cell, figure)?;
    let found = figure.of(row)?;
    let loss_percent = figure.loss_percent(best, found);
    (loss_percent.is_nan() || loss_percent > bound.percent).then(|| GateLoss {
        trace: cell.trace.clone(),
        pace: cell.pace,
        contender: row.contender,
        figure,
        found,
        best,
        best_contender,
        loss_percent,
        allowed_percent: bound.percent,
    })
}

/// Returns the first of the best contenders that are not gated, with its value.
fn best_other(cell: &ComparisonCell, figure: ComparedFigure) -> Option<(Contender, f64)> {
    cell.rows
        .iter()
        .filter(|row| !row.contender.is_gated())
        .filter_map(|row| Some((row.contender, figure.of(row)?)))
        .reduce(|best, other| {
            if figure.loss_percent(best.1, other.1) < 0.0 {
                other
            } else {
                best
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::CONTENDERS;

    const LOAD: ComparedPace = ComparedPace::Load(0.55);
    const BEYOND: ComparedPace = ComparedPace::CapacityRatio(1.5);

    /// A cell in which all contenders have the same figures.
    fn even(pace: ComparedPace) -> ComparisonCell {
        let row = |contender| ComparisonRow {
            contender,
            sessions: None,
            reuse_ratio: Some(0.8),
            turns_per_minute: 100.0,
            ttft_p95_ms: 1_000.0,
            prefill_imbalance: 1.2,
        };
        ComparisonCell {
            trace: "chat".to_owned(),
            requests: 100,
            pace,
            rows: CONTENDERS.map(row).into(),
        }
    }

    /// The losses of a cell after a change of the row of each named contender.
    fn lost(
        pace: ComparedPace,
        names: &[&str],
        change: fn(&mut ComparisonRow),
    ) -> Vec<(&'static str, ComparedFigure)> {
        let mut cell = even(pace);
        let rows = cell.rows.iter_mut();
        rows.filter(|row| names.contains(&row.contender.name))
            .for_each(change);
        losses(&[cell])
            .iter()
            .map(|loss| (loss.contender.name, loss.figure))
            .collect()
    }

    #[test]
    fn equal_figures_and_better_ones_of_warm_are_no_loss() {
        for pace in [LOAD, BEYOND, ComparedPace::MostSessions] {
            assert!(lost(pace, &[], |_| ()).is_empty());
            let better = |row: &mut ComparisonRow| {
                row.reuse_ratio = Some(1.0);
                row.turns_per_minute = 300.0;
                row.ttft_p95_ms = 1.0;
                row.prefill_imbalance = 1.0;
            };
            assert!(lost(pace, &["warm", "warm + live_set"], better).is_empty());
        }
    }

    #[test]
    fn each_figure_is_a_loss_beyond_its_bound_and_not_within_it() {
        type Change = fn(&mut ComparisonRow);
        let cases: [(ComparedFigure, Change, Change); 4] = [
            (
                ComparedFigure::Reuse,
                |row| row.reuse_ratio = Some(0.761),
                |row| row.reuse_ratio = Some(0.759),
            ),
            (
                ComparedFigure::Turns,
                |row| row.turns_per_minute = 95.1,
                |row| row.turns_per_minute = 94.9,
            ),
            (
                ComparedFigure::TtftP95,
                |row| row.ttft_p95_ms = 1_099.0,
                |row| row.ttft_p95_ms = 1_101.0,
            ),
            (
                ComparedFigure::Imbalance,
                |row| row.prefill_imbalance = 1.49,
                |row| row.prefill_imbalance = 1.51,
            ),
        ];
        for (figure, within, beyond) in cases {
            assert!(lost(LOAD, &["warm"], within).is_empty(), "{figure:?}");
            assert_eq!(lost(LOAD, &["warm"], beyond), [("warm", figure)]);
        }
    }

    #[test]
    fn warm_is_held_against_the_best_of_the_others_and_not_against_itself_with_admission() {
        let more = |row: &mut ComparisonRow| row.turns_per_minute = 120.0;
        assert!(lost(LOAD, &["warm + live_set"], more).is_empty());
        assert_eq!(
            lost(LOAD, &["sticky"], more),
            [
                ("warm", ComparedFigure::Turns),
                ("warm + live_set", ComparedFigure::Turns)
            ]
        );
    }

    #[test]
    fn where_sessions_exceed_the_caches_only_admission_is_gated_by_reuse_and_turns() {
        let worse = |row: &mut ComparisonRow| {
            row.reuse_ratio = Some(0.1);
            row.turns_per_minute = 10.0;
            row.ttft_p95_ms = 90_000.0;
            row.prefill_imbalance = 4.0;
        };
        assert_eq!(
            lost(BEYOND, &["warm", "warm + live_set"], worse),
            [
                ("warm + live_set", ComparedFigure::Reuse),
                ("warm + live_set", ComparedFigure::Turns)
            ]
        );
    }

    #[test]
    fn where_each_contender_has_its_own_number_of_sessions_only_turns_are_compared() {
        let worse = |row: &mut ComparisonRow| {
            row.reuse_ratio = Some(0.1);
            row.turns_per_minute = 10.0;
            row.ttft_p95_ms = 1_900.0;
        };
        assert_eq!(
            lost(ComparedPace::MostSessions, &["warm"], worse),
            [("warm", ComparedFigure::Turns)]
        );
    }

    #[test]
    fn a_nan_figure_is_a_loss_and_a_trace_without_reuse_has_none_to_lose() {
        let nan = |row: &mut ComparisonRow| row.ttft_p95_ms = f64::NAN;
        assert_eq!(
            lost(LOAD, &["warm"], nan),
            [("warm", ComparedFigure::TtftP95)]
        );
        let names = CONTENDERS.map(|contender| contender.name);
        assert!(lost(LOAD, &names, |row| row.reuse_ratio = None).is_empty());
    }

    #[test]
    fn a_loss_names_the_cell_both_contenders_and_the_bound() {
        let mut cell = even(LOAD);
        cell.rows[0].turns_per_minute = 50.0;
        let losses = losses(&[cell]);
        assert_eq!(
            losses[0].to_string(),
            "chat, load 0.55: turns per minute within the SLO of warm is 50, of lmetric 100: \
             50.0 % worse, allowed 5.0 %"
        );
    }
}
