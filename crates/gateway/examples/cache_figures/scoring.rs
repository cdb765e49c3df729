//! The score of cache, load and health.

use std::hint::black_box;

use routing::{ScoringInput, ScoringSettings};

use crate::{figures::BoundedFigure, stopwatch::us_per_call};

/// Candidates of one request.
const CANDIDATES: u32 = 8;
const CALLS: u32 = 10_000;

pub(crate) fn figures() -> Vec<BoundedFigure> {
    let settings = ScoringSettings::default();
    let candidates: Vec<ScoringInput> = (0..CANDIDATES)
        .map(|n| ScoringInput {
            cached: Some((128 * n, n % 2 == 0)),
            in_flight: n,
            health: 1.0 - f64::from(n) / 100.0,
        })
        .collect();
    let scored = |candidates: &[ScoringInput]| {
        us_per_call(CALLS, |n| {
            black_box(settings.scores(black_box(1024 + n % 7), black_box(candidates)));
        })
    };
    let (all, one) = (scored(&candidates), scored(&candidates[..1]));
    let figure = |what: String, measured, at_most, unit| BoundedFigure {
        contract: "CK80",
        what,
        measured,
        at_most,
        unit,
    };
    vec![
        figure("score of one candidate".to_owned(), one, 1.0, "us"),
        figure(
            format!("score of one candidate among {CANDIDATES}"),
            all / f64::from(CANDIDATES),
            1.0,
            "us",
        ),
        figure(
            format!("1000 scorings of {CANDIDATES} candidates"),
            all,
            100.0,
            "ms",
        ),
    ]
}
