//! Recovers a profile from the outcomes of requests on engines of that profile.

use engine_model::Profile;
use kv_blocks::BlockSize;
use proptest::prelude::*;
use routing::Policy;
use simulate::{
    Cell, FitError, FitResult, ServedRequest, Synthetic, Trace, TracePace, fit, run_in_detail,
};

use super::cell;

const ENGINES: u32 = 4;

/// The log of a workload on four engines of this profile.
fn served(profile: Profile, workload: &str, load: f64) -> Vec<ServedRequest> {
    let size = BlockSize::new(64).unwrap();
    let trace = Trace::read(
        &workload.parse::<Synthetic>().unwrap().text(size).unwrap(),
        size,
    )
    .unwrap();
    let pace = TracePace::for_load(&trace, &profile, ENGINES, load);
    let cell = Cell {
        pace,
        profile,
        ..cell(Policy::RoundRobin, ENGINES)
    };
    let requests = run_in_detail(&trace, &cell).1;
    requests
        .iter()
        .zip(&trace.requests)
        .map(|(request, traced)| {
            let sent_ms = request.arrival_s * 1e3;
            ServedRequest {
                engine: request.worker.unwrap(),
                sent_ms,
                first_token_ms: request.ttft_ms.map(|ms| sent_ms + ms),
                end_ms: sent_ms + request.e2e_ms.unwrap(),
                prompt_tokens: traced.prompt_tokens,
                cached_tokens: traced.prompt_tokens - request.computed_tokens,
                output_tokens: Some(traced.output_tokens),
            }
        })
        .collect()
}

fn base() -> Profile {
    Profile::named("toy").unwrap()
}

/// Arrival times in whole milliseconds, as in a log; durations are more precise.
fn in_whole_ms(mut served: Vec<ServedRequest>) -> Vec<ServedRequest> {
    for one in &mut served {
        let earlier = one.sent_ms.fract();
        one.sent_ms -= earlier;
        one.end_ms -= earlier;
        one.first_token_ms = one.first_token_ms.map(|ms| ms - earlier);
    }
    served
}

#[track_caller]
fn close(what: &str, got: f64, want: f64, share: f64) {
    assert!(
        (got - want).abs() <= share * want,
        "{what}: {got} is not within {share} of {want}"
    );
}

#[test]
fn a_known_profile_is_recovered() {
    // The cost per sequence is separable from that of context only as far as the two vary, so
    // contexts keep their lengths.
    for (name, workload, context_tokens) in [
        ("8b-h200", "chat?sessions=200", 3_000.0),
        ("70b-h100x2", "chat?sessions=200", 3_000.0),
        ("70b-h100x2", "agents?runs=60&steps=6", 12_000.0),
        ("32b-h100x2", "tenants?requests=800", 7_000.0),
    ] {
        let profile = Profile::named(name).unwrap();
        for load in [0.15, 0.4] {
            let fitted = fit(&in_whole_ms(served(profile, workload, load)), &base()).unwrap();
            let found = fitted.profile;
            for tokens in [500, 2_000, 10_000] {
                let (got, want) = (
                    found.prefill_ms_of(0, tokens),
                    profile.prefill_ms_of(0, tokens),
                );
                close(
                    &format!("{name} {workload} {load}, {tokens} tokens"),
                    got,
                    want,
                    0.05,
                );
            }
            close(
                "overhead and one step",
                found.overhead_ms + found.step_ms,
                profile.overhead_ms + profile.step_ms,
                0.1,
            );
            close("a step", found.step_ms, profile.step_ms, 0.1);
            for sequences in [4.0, 16.0] {
                let of_one = |of: &Profile| of.sequence_ms + of.kv_token_ms * context_tokens;
                let step = |of: &Profile| of.step_ms + of_one(of) * sequences;
                close(
                    &format!("{name} {workload} {load}, {sequences} sequences"),
                    step(&found),
                    step(&profile),
                    0.1,
                );
            }
            assert_eq!(
                (found.kv_tokens, found.reload_ms),
                (base().kv_tokens, base().reload_ms)
            );
        }
    }
}

#[test]
fn one_outlier_in_ten_requests_does_no_harm() {
    let profile = Profile::named("70b-h100x2").unwrap();
    let mut served = served(profile, "chat?sessions=200", 0.2);
    for one in served.iter_mut().step_by(10) {
        let late = 3_000.0;
        one.first_token_ms = one.first_token_ms.map(|ms| ms + late);
        one.end_ms += 2.0 * late;
    }
    let found = fit(&served, &base()).unwrap().profile;
    close(
        "2000 tokens",
        found.prefill_ms_of(0, 2_000),
        profile.prefill_ms_of(0, 2_000),
        0.1,
    );
    close("a step", found.step_ms, profile.step_ms, 0.1);
}

#[test]
fn replies_of_one_token_give_no_step_time() {
    let mut served = served(Profile::named("8b-h200").unwrap(), "chat?sessions=60", 0.2);
    served
        .iter_mut()
        .for_each(|one| one.output_tokens = Some(1));
    let fitted = fit(&served, &base()).unwrap();
    assert_eq!((fitted.report.replies, fitted.report.itl_error), (0, None));
    assert_eq!(fitted.profile.step_ms, base().step_ms);
    assert!(
        fitted.report.to_string().contains("as in the profile"),
        "{}",
        fitted.report
    );
}

#[test]
fn too_little_data_is_rejected() {
    let profile = Profile::named("8b-h200").unwrap();
    let good = served(profile, "chat?sessions=60", 0.2);
    let refused = |served: &[ServedRequest]| fit(served, &base()).unwrap_err();
    assert_eq!(
        refused(&[]),
        FitError::TooFew {
            requests: 0,
            usable: 0,
            needed: 20
        }
    );
    assert!(matches!(
        refused(&good[..15]),
        FitError::TooFew { requests: 15, .. }
    ));
    let whole: Vec<_> = good
        .iter()
        .map(|one| ServedRequest {
            first_token_ms: None,
            ..*one
        })
        .collect();
    assert!(matches!(
        refused(&whole),
        FitError::TooFew { usable: 0, .. }
    ));

    let alike: Vec<_> = good
        .iter()
        .map(|one| ServedRequest {
            prompt_tokens: 1_000,
            cached_tokens: 0,
            ..*one
        })
        .collect();
    assert_eq!(refused(&alike), FitError::OneLength { tokens: 1_000 });

    // A time between 20 ms and a second for any prompt.
    let garbage: Vec<_> = (0..)
        .zip(&good)
        .map(|(index, one)| {
            let took = 20.0 + f64::from(index * 7919 % 983);
            ServedRequest {
                first_token_ms: Some(one.sent_ms + took),
                end_ms: one.sent_ms + took,
                ..*one
            }
        })
        .collect();
    assert!(matches!(refused(&garbage), FitError::Noise { .. }));
}

proptest! {
    #[test]
    fn any_log_yields_a_valid_profile(
        logged in prop::collection::vec(
            (0usize..3, 0.0..1e4f64, 0.0..1e5f64, -10.0..1e6f64, 0u32..40_000, 0u32..40_000, prop::option::of(0u32..9_000)),
            0..120,
        ),
    ) {
        let served: Vec<ServedRequest> = logged
            .into_iter()
            .map(|(engine, sent_ms, ttft_ms, reply_ms, prompt_tokens, cached_tokens, output_tokens)| ServedRequest {
                engine,
                sent_ms,
                first_token_ms: Some(sent_ms + ttft_ms),
                end_ms: sent_ms + ttft_ms + reply_ms,
                prompt_tokens,
                cached_tokens,
                output_tokens,
            })
            .collect();
        if let Ok(FitResult { profile, .. }) = fit(&served, &base()) {
            let times = [profile.overhead_ms, profile.attention_ms, profile.sequence_ms, profile.kv_token_ms];
            prop_assert!(times.iter().all(|ms| ms.is_finite() && *ms >= 0.0), "{profile:?}");
            prop_assert!(profile.prefill_ms > 0.0 && profile.step_ms > 0.0, "{profile:?}");
        }
    }
}
