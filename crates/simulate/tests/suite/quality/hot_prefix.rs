//! One beginning that all prompts share, and more requests than one engine can serve: it is copied
//! before its holder is overloaded.

use std::{collections::BTreeSet, fmt::Write};

use engine_model::Profile;
use kv_blocks::BlockSize;
use routing::{Policy, RoutingSettings};
use simulate::{Cell, RequestReport, Trace, TracePace, run_in_detail};

const WORKERS: u32 = 4;
/// The work of so many engines, if no beginning is computed twice.
const BUSY_WORKERS: f64 = 1.5;
const BLOCK: u64 = 512;
/// Blocks of the shared beginning, and of what follows it.
const SHARED: u64 = 8;
const OWN: u64 = 2;
const REQUESTS: u64 = 1_500;
/// As in the quality gate: single runs have different histories.
const PACES: [f64; 5] = [-0.008, -0.004, 0.0, 0.004, 0.008];

/// Requests at irregular times.
fn trace() -> Trace {
    let (mut text, mut at_ms, mut dice) = (String::new(), 0, 1u64);
    for number in 0..REQUESTS {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        at_ms += 1 + (dice >> 33) % 200;
        let first = 1_000 + OWN * number;
        let ids: Vec<u64> = (0..SHARED).chain(first..first + OWN).collect();
        let tokens = (SHARED + OWN) * BLOCK;
        writeln!(
            text,
            r#"{{"timestamp": {at_ms}, "input_length": {tokens}, "output_length": 16, "hash_ids": {ids:?}}}"#
        )
        .unwrap();
    }
    Trace::read(&text, BlockSize::new(BLOCK).unwrap()).unwrap()
}

/// All requests of all paces.
fn played(trace: &Trace, policy: Policy) -> Vec<Vec<RequestReport>> {
    let profile = Profile::named("70b-h100x2").unwrap();
    let play = |faster: f64| {
        let load = BUSY_WORKERS / f64::from(WORKERS);
        let mut pace = TracePace::for_load(trace, &profile, WORKERS, load);
        pace.speedup *= 1.0 + faster;
        let routing = RoutingSettings {
            policy,
            ..RoutingSettings::default()
        };
        run_in_detail(trace, &Cell::new(routing, WORKERS, pace, profile)).1
    };
    PACES.into_iter().map(play).collect()
}

/// Returns the number of engines that found the shared beginning in their cache.
fn holders(requests: &[RequestReport]) -> usize {
    let own_tokens = BLOCK * OWN;
    let warm = requests
        .iter()
        .filter(|request| u64::from(request.computed_tokens) <= own_tokens);
    let workers: BTreeSet<usize> = warm.filter_map(|request| request.worker).collect();
    workers.len()
}

fn p95_ttft(runs: &[Vec<RequestReport>]) -> f64 {
    let requests = runs.iter().flatten();
    let mut times: Vec<f64> = requests.map(|request| request.ttft_ms.unwrap()).collect();
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() * 95 / 100]
}

#[test]
fn a_hot_beginning_is_copied_and_waits_no_longer_than_if_all_engines_held_it() {
    let trace = trace();
    let (warm, least_loaded) = (
        played(&trace, Policy::Warm),
        played(&trace, Policy::LeastLoaded),
    );
    for run in &warm {
        assert!(holders(run) >= 2, "{} of {WORKERS} hold it", holders(run));
    }
    let (warm, least_loaded) = (p95_ttft(&warm), p95_ttft(&least_loaded));
    assert!(
        warm <= 1.05 * least_loaded,
        "p95 of TTFT {warm:.0} ms, {least_loaded:.0} ms under least_loaded"
    );
}
