//! The formula, against numbers worked out by hand.

use std::sync::Arc;

use contract_id::contract;
use prefix_view::{
    Candidate, Holder, OverlapMeasure, Scorer, ScoringError, ScoringSettings, StorageTier, StorageTier::*,
};

const PROMPT_TOKENS: u32 = 4_096;

fn holder(backend: &str, tokens: u32, tier: StorageTier) -> Holder {
    Holder { backend: Arc::from(backend), tokens, tier }
}

/// A candidate with so many requests in flight, and (successes, requests) of the last minute.
fn candidate(backend: &str, in_flight: u32, (recent_successes, recent_requests): (u32, u32)) -> Candidate<'_> {
    Candidate { backend, in_flight, recent_requests, recent_successes }
}

fn idle(backend: &str) -> Candidate<'_> {
    candidate(backend, 0, (0, 0))
}

fn scorer(change: impl FnOnce(&mut ScoringSettings)) -> Scorer {
    let mut settings = ScoringSettings::default();
    change(&mut settings);
    Scorer::new(settings).unwrap()
}

#[track_caller]
fn assert_scores(scores: &[f64], expected: &[f64]) {
    assert_eq!(scores.len(), expected.len());
    for (score, expected) in scores.iter().zip(expected) {
        assert!((score - expected).abs() < 1e-12, "{scores:?}, expected {expected}");
    }
}

#[test]
#[contract("CK57", "CK58", "CK59", "CK60", "CK61")]
fn scores_equal_those_worked_out_by_hand() {
    let holders = [holder("a", 2_048, GpuHot), holder("b", 2_048, StorageWarm), holder("c", 512, GpuHot)];
    let candidates = [
        // 0.6 * (2048/2048 * 1.0) + 0.3 * (1 - 4/4) + 0.1 * 10/10
        candidate("a", 4, (10, 10)),
        // 0.6 * (2048/2048 * 0.6) + 0.3 * (1 - 2/4) + 0.1 * 1.0, for nothing was sent there yet
        candidate("b", 2, (0, 0)),
        // 0.6 * (512/2048 * 1.0) + 0.3 * (1 - 1/4) + 0.1 * 9/10
        candidate("c", 1, (9, 10)),
        // 0.6 * 0 + 0.3 * (1 - 0/4) + 0.1 * 0/3
        candidate("d", 0, (0, 3)),
    ];
    let verdict = scorer(|_| {}).score(&holders, PROMPT_TOKENS, &candidates);
    assert_scores(&verdict.scores, &[0.7, 0.61, 0.465, 0.3]);
    assert!(verdict.decides);
    assert_eq!(verdict.overlap, 0.5);
    // Other weights: 0.5 * 1 * 0.9 + 0.5 * 0, 0.5 * 1 * 0.2 + 0.5 * 0.5, 0.5 * 0.25 * 0.9 + 0.5 * 0.75, 0.5 * 1
    let other = scorer(|settings| {
        (settings.overlap_weight, settings.load_weight, settings.health_weight) = (0.5, 0.5, 0.0);
        (settings.gpu_tier_weight, settings.storage_tier_weight) = (0.9, 0.2);
    });
    assert_scores(&other.score(&holders, PROMPT_TOKENS, &candidates).scores, &[0.45, 0.35, 0.4875, 0.5]);
}

#[test]
#[contract("CK61")]
fn equal_tokens_score_higher_in_the_accelerators_memory() {
    let holders = [holder("warm", 100, StorageWarm), holder("hot", 100, GpuHot)];
    let verdict = scorer(|_| {}).score(&holders, 100, &[idle("warm"), idle("hot")]);
    assert!(verdict.scores[1] > verdict.scores[0]);
}

#[test]
#[contract("CK58")]
fn nothing_of_nothing_counts_as_nothing() {
    let any = scorer(|settings| settings.min_overlap_threshold = 0.0);
    // No tokens, no load, no requests: 0.6 * 0 + 0.3 * (1 - 0) + 0.1 * 1.
    assert_scores(&any.score(&[], 0, &[idle("a"), idle("b")]).scores, &[0.4, 0.4]);
    assert_scores(&any.score(&[holder("a", 0, GpuHot)], 0, &[idle("a")]).scores, &[0.4]);
    assert_eq!(any.score(&[holder("a", 64, GpuHot)], 64, &[]).scores, [] as [f64; 0]);
}

#[test]
#[contract("CK58")]
fn who_cannot_take_the_request_is_no_measure_for_the_others() {
    let holders = [holder("gone", 4_096, GpuHot), holder("a", 1_024, GpuHot)];
    let any = scorer(|settings| settings.min_overlap_threshold = 0.25);
    let verdict = any.score(&holders, PROMPT_TOKENS, &[idle("a")]);
    assert_eq!(verdict.overlap, 0.25);
    assert_scores(&verdict.scores, &[1.0]);
}

#[test]
#[contract("CK62", "A1")]
fn at_the_threshold_the_scorer_decides_and_below_it_every_score_is_zero() {
    let candidates = [idle("a"), idle("b")];
    let at = scorer(|_| {}).score(&[holder("a", 300, GpuHot)], 1_000, &candidates);
    assert_eq!((at.overlap, at.decides), (0.3, true));
    assert_scores(&at.scores, &[1.0, 0.4]);
    let below = scorer(|_| {}).score(&[holder("a", 299, GpuHot)], 1_000, &candidates);
    assert_eq!((below.overlap, below.decides, below.scores), (0.299, false, vec![0.0, 0.0]));
    let nobody = scorer(|_| {}).score(&[], 1_000, &candidates);
    assert_eq!((nobody.overlap, nobody.decides, nobody.scores), (0.0, false, vec![0.0, 0.0]));
    // Events may know of more than this prompt has.
    assert_eq!(scorer(|_| {}).score(&[holder("a", 5_000, GpuHot)], 1_000, &candidates).overlap, 1.0);
}

#[test]
#[contract("CK62", "A1")]
fn the_documents_measure_compares_with_the_most_that_any_backend_holds() {
    let relative = |storage_tier_weight| {
        scorer(|settings| {
            settings.overlap_measure = OverlapMeasure::Relative;
            settings.storage_tier_weight = storage_tier_weight;
        })
    };
    let little = relative(0.6).score(&[holder("a", 1, GpuHot)], 1_000, &[idle("a")]);
    assert_eq!((little.overlap, little.decides), (1.0, true));
    let stored = [holder("a", 1_000, StorageWarm)];
    assert_eq!(relative(0.6).score(&stored, 1_000, &[idle("a")]).overlap, 0.6);
    assert!(!relative(0.2).score(&stored, 1_000, &[idle("a")]).decides);
    assert_eq!(relative(0.6).score(&[], 1_000, &[idle("a")]).overlap, 0.0);
}

#[test]
#[contract("CK59", "CK60")]
fn defaults_are_the_documents_and_tier_weights_do_not_count_in_the_sum() {
    let settings = ScoringSettings::default();
    assert_eq!((settings.overlap_weight, settings.load_weight, settings.health_weight), (0.6, 0.3, 0.1));
    assert_eq!((settings.gpu_tier_weight, settings.storage_tier_weight), (1.0, 0.6));
    assert_eq!(settings.min_overlap_threshold, 0.3);
    assert_eq!(settings.overlap_measure, OverlapMeasure::PromptFraction);
    Scorer::new(ScoringSettings { gpu_tier_weight: 0.0, storage_tier_weight: 1.0, ..settings }).unwrap();
}

#[test]
#[contract("CK59")]
fn weights_must_make_one_to_a_millionth() {
    let with_load = |load_weight| Scorer::new(ScoringSettings { load_weight, ..ScoringSettings::default() });
    for load_weight in [0.3, 0.300_000_9, 0.299_999_1] {
        with_load(load_weight).unwrap();
    }
    for load_weight in [0.300_002, 0.299_998, 0.0] {
        assert!(matches!(with_load(load_weight).unwrap_err()[..], [ScoringError::Sum { .. }]), "{load_weight}");
    }
    assert_eq!(
        with_load(0.5).unwrap_err()[0].to_string(),
        "kv_cache_index.scoring: overlap_weight + load_weight + health_weight is 1.200000: expected 1.0; raise or lower one of them"
    );
}

#[test]
#[contract("CK59")]
fn every_number_out_of_range_is_named() {
    let settings = ScoringSettings {
        overlap_weight: 1.5,
        load_weight: -0.5,
        health_weight: 0.0,
        min_overlap_threshold: f64::NAN,
        gpu_tier_weight: f64::INFINITY,
        storage_tier_weight: -0.1,
        ..ScoringSettings::default()
    };
    let problems: Vec<String> = Scorer::new(settings).unwrap_err().iter().map(ToString::to_string).collect();
    let keys = ["overlap_weight", "load_weight", "min_overlap_threshold", "gpu_tier_weight", "storage_tier_weight"];
    let values = ["1.5", "-0.5", "NaN", "inf", "-0.1"];
    let expected: Vec<String> = keys
        .iter()
        .zip(values)
        .map(|(key, value)| format!("kv_cache_index.scoring.{key} is {value}: expected 0 to 1"))
        .collect();
    assert_eq!(problems, expected);
    // What is no number makes no sum either.
    let nan = ScoringSettings { overlap_weight: f64::NAN, ..ScoringSettings::default() };
    assert!(!Scorer::new(nan).unwrap_err().is_empty());
}
