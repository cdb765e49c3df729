//! The formula, against numbers computed by hand.

use contract_id::contract;
use routing::{OverlapMeasure, ScoringInput, ScoringSettings};

const PROMPT_TOKENS: u32 = 4_096;
const HOT: bool = true;
const STORED: bool = false;

/// A candidate with `tokens` cached, its requests in flight, and (successes, requests) of the last
/// minute.
fn busy(
    cached: Option<(u32, bool)>,
    in_flight: u32,
    (successes, requests): (u32, u32),
) -> ScoringInput {
    let health = if requests == 0 {
        1.0
    } else {
        f64::from(successes) / f64::from(requests)
    };
    ScoringInput {
        cached,
        in_flight,
        health,
    }
}

fn idle(cached: Option<(u32, bool)>) -> ScoringInput {
    busy(cached, 0, (0, 0))
}

fn settings(change: impl FnOnce(&mut ScoringSettings)) -> ScoringSettings {
    let mut settings = ScoringSettings::default();
    change(&mut settings);
    settings
}

#[track_caller]
fn assert_scores(scores: &[f64], expected: &[f64]) {
    assert_eq!(scores.len(), expected.len());
    for (score, expected) in scores.iter().zip(expected) {
        assert!(
            (score - expected).abs() < 1e-12,
            "{scores:?}, expected {expected}"
        );
    }
}

#[test]
#[contract("CK57", "CK58", "CK59", "CK60", "CK61")]
fn scores_equal_those_computed_by_hand() {
    let candidates = [
        // 0.6 * (2048/2048 * 1.0) + 0.3 * (1 - 4/4) + 0.1 * 10/10
        busy(Some((2_048, HOT)), 4, (10, 10)),
        // 0.6 * (2048/2048 * 0.6) + 0.3 * (1 - 2/4) + 0.1 * 1.0, without any request so far
        busy(Some((2_048, STORED)), 2, (0, 0)),
        // 0.6 * (512/2048 * 1.0) + 0.3 * (1 - 1/4) + 0.1 * 9/10
        busy(Some((512, HOT)), 1, (9, 10)),
        // 0.6 * 0 + 0.3 * (1 - 0/4) + 0.1 * 0/3
        busy(None, 0, (0, 3)),
    ];
    let verdict = ScoringSettings::default().scores(PROMPT_TOKENS, &candidates);
    assert_scores(&verdict.scores, &[0.7, 0.61, 0.465, 0.3]);
    assert!(verdict.decides);
    assert_eq!(verdict.overlap, 0.5);
    // Other weights: 0.5 * 1 * 0.9 + 0.5 * 0, 0.5 * 1 * 0.2 + 0.5 * 0.5,
    // 0.5 * 0.25 * 0.9 + 0.5 * 0.75, 0.5 * 1
    let other = settings(|settings| {
        (
            settings.overlap_weight,
            settings.load_weight,
            settings.health_weight,
        ) = (0.5, 0.5, 0.0);
        (settings.gpu_tier_weight, settings.storage_tier_weight) = (0.9, 0.2);
    });
    assert_scores(
        &other.scores(PROMPT_TOKENS, &candidates).scores,
        &[0.45, 0.35, 0.4875, 0.5],
    );
}

#[test]
#[contract("CK61")]
fn equal_tokens_score_higher_in_the_accelerators_memory() {
    let verdict = ScoringSettings::default()
        .scores(100, &[idle(Some((100, STORED))), idle(Some((100, HOT)))]);
    assert!(verdict.scores[1] > verdict.scores[0]);
}

#[test]
#[contract("CK58")]
fn scores_without_tokens_load_and_requests_are_finite() {
    let any = settings(|settings| settings.min_overlap_threshold = 0.0);
    // No tokens, no load, no requests: 0.6 * 0 + 0.3 * (1 - 0) + 0.1 * 1.
    assert_scores(
        &any.scores(0, &[idle(None), idle(None)]).scores,
        &[0.4, 0.4],
    );
    assert_scores(&any.scores(0, &[idle(Some((0, HOT)))]).scores, &[0.4]);
    assert_eq!(any.scores(64, &[]).scores, [] as [f64; 0]);
}

#[test]
#[contract("CK62", "A1")]
fn at_the_threshold_the_scores_decide_and_below_it_every_score_is_zero() {
    let of = |cached| ScoringSettings::default().scores(1_000, &[idle(cached), idle(None)]);
    let at = of(Some((300, HOT)));
    assert_eq!((at.overlap, at.decides), (0.3, true));
    assert_scores(&at.scores, &[1.0, 0.4]);
    let below = of(Some((299, HOT)));
    assert_eq!(
        (below.overlap, below.decides, below.scores),
        (0.299, false, vec![0.0, 0.0])
    );
    let nobody = of(None);
    assert_eq!(
        (nobody.overlap, nobody.decides, nobody.scores),
        (0.0, false, vec![0.0, 0.0])
    );
    // Streams may announce more tokens than this prompt has.
    assert_eq!(of(Some((5_000, HOT))).overlap, 1.0);
}

#[test]
#[contract("CK62", "A1")]
fn the_documented_overlap_is_relative_to_the_largest_of_any_worker() {
    let relative = |storage_tier_weight| {
        settings(|settings| {
            settings.overlap_measure = OverlapMeasure::Relative;
            settings.storage_tier_weight = storage_tier_weight;
        })
    };
    let little = relative(0.6).scores(1_000, &[idle(Some((1, HOT)))]);
    assert_eq!((little.overlap, little.decides), (1.0, true));
    let stored = [idle(Some((1_000, STORED)))];
    assert_eq!(relative(0.6).scores(1_000, &stored).overlap, 0.6);
    assert!(!relative(0.2).scores(1_000, &stored).decides);
    assert_eq!(relative(0.6).scores(1_000, &[idle(None)]).overlap, 0.0);
}

#[test]
#[contract("CK59", "CK60")]
fn defaults_are_the_documented_ones() {
    let settings = ScoringSettings::default();
    assert_eq!(
        (
            settings.overlap_weight,
            settings.load_weight,
            settings.health_weight
        ),
        (0.6, 0.3, 0.1)
    );
    assert_eq!(
        (settings.gpu_tier_weight, settings.storage_tier_weight),
        (1.0, 0.6)
    );
    assert_eq!(settings.min_overlap_threshold, 0.3);
    assert_eq!(settings.overlap_measure, OverlapMeasure::PromptFraction);
}

#[test]
#[contract("CK80")]
#[expect(
    clippy::disallowed_methods,
    reason = "it measures real time, within a bound that a busy machine keeps"
)]
fn a_thousand_scorings_take_less_than_a_tenth_of_a_second() {
    let settings = ScoringSettings::default();
    let candidates: Vec<ScoringInput> = (0..8)
        .map(|n| ScoringInput {
            cached: Some((128 * n, true)),
            in_flight: n,
            health: 1.0,
        })
        .collect();
    let took = [(); 10].map(|()| {
        let started = std::time::Instant::now();
        for n in 0..1_000 {
            assert!(settings.scores(1_000 + n, &candidates).decides);
        }
        started.elapsed()
    });
    // A machine that stands still delays single ones.
    let most = std::time::Duration::from_millis(100);
    assert!(took.iter().any(|took| *took < most), "{took:?}");
}
