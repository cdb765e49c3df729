//! Tenants in front of the same engines, in virtual time: every figure is the same in each run.

use std::{collections::BTreeMap, time::Duration};

use engine_model::Profile;
use kv_blocks::BlockSize;
use routing::{Policy, RoutingSettings};
use simulate::{Cell, RequestReport, Synthetic, Trace, TracePace, run_in_detail};

/// The tenant that asks; those with agents follow.
const ASKING: u64 = 1;

fn trace(name: &str) -> Trace {
    let size = BlockSize::new(64).unwrap();
    let workload: Synthetic = name.parse().unwrap();
    Trace::read(&workload.text(size).unwrap(), size).unwrap()
}

fn profile() -> Profile {
    Profile::named("8b-h200").unwrap()
}

fn played(trace: &Trace, workers: u32, tenants: Option<BTreeMap<u64, f64>>) -> Vec<RequestReport> {
    let routing = RoutingSettings {
        policy: Policy::Warm,
        ..RoutingSettings::default()
    };
    let cell = Cell {
        tenants,
        wait: Duration::from_secs(600),
        ..Cell::new(routing, workers, TracePace::faster(1.0), profile())
    };
    run_in_detail(trace, &cell).1
}

/// The 95th percentile of the questions' times to first token, of those after the first seconds.
fn p95_ms(requests: &[RequestReport]) -> f64 {
    let asked = requests
        .iter()
        .filter(|request| request.tenant == Some(ASKING) && request.arrival_s >= 5.0);
    let mut ttft: Vec<f64> = asked.filter_map(|request| request.ttft_ms).collect();
    ttft.sort_by(f64::total_cmp);
    ttft[ttft.len() * 95 / 100]
}

/// When the last reply ended.
fn end_s(requests: &[RequestReport]) -> f64 {
    let ends = requests
        .iter()
        .map(|request| request.arrival_s + request.e2e_ms.expect("it ended") / 1e3);
    ends.fold(0.0, f64::max)
}

#[test]
fn questions_beside_the_agents_of_another_tenant_start_nearly_as_fast_as_alone() {
    const SHAPE: &str = "rounds=60&round_ms=1500&questions=90";
    let alone = p95_ms(&played(
        &trace(&format!("fanout?agents=0&{SHAPE}")),
        4,
        None,
    ));
    let beside = trace(&format!("fanout?{SHAPE}"));
    let (one, two) = (
        played(&beside, 4, None),
        played(&beside, 4, Some(BTreeMap::new())),
    );
    let (shared, own) = (p95_ms(&one), p95_ms(&two));
    assert!(own <= 1.3 * alone, "{own} ms, alone {alone} ms");
    assert!(own < shared, "{own} ms, as one tenant {shared} ms");
    // The same work is done in the same time.
    let (one, two) = (end_s(&one), end_s(&two));
    assert!((two / one - 1.0).abs() < 0.02, "{two} s and {one} s");
}

/// The work of each tenant while all wait, over its weight, and Jain's index of these.
fn shares(weights: [f64; 4]) -> (Vec<f64>, f64) {
    let trace =
        trace("fanout?agents=150&tenants=4&rounds=1&questions=0&system_tokens=1&task_tokens=4000");
    let numbered = (2..).zip(weights).collect();
    let requests = played(&trace, 2, Some(numbered));
    let of = |tenant: u64| {
        let all = requests.iter().zip(&trace.requests);
        all.filter(move |(request, _)| request.tenant == Some(tenant))
    };
    let last_bound = |tenant| {
        of(tenant)
            .filter_map(|(request, _)| request.bound_s)
            .fold(0.0, f64::max)
    };
    let until = (2..6).map(last_bound).fold(f64::INFINITY, f64::min);
    let work_ms = |tenant| -> f64 {
        let bound = of(tenant).filter(|(request, _)| request.bound_s.is_some_and(|at| at <= until));
        bound
            .map(|(request, traced)| {
                let cached = traced.prompt_tokens - request.computed_tokens;
                profile().prefill_ms_of(cached, traced.prompt_tokens)
                    + f64::from(traced.output_tokens) * profile().sequence_ms
            })
            .sum()
    };
    let shares: Vec<f64> = (2..6)
        .zip(weights)
        .map(|(tenant, weight)| work_ms(tenant) / weight)
        .collect();
    let (sum, squares): (f64, f64) = (
        shares.iter().sum(),
        shares.iter().map(|share| share * share).sum(),
    );
    let index = sum * sum / (4.0 * squares);
    (shares, index)
}

#[test]
fn tenants_that_wait_get_work_by_their_weights() {
    for weights in [[1.0; 4], [1.0, 1.0, 2.0, 4.0]] {
        let (shares, index) = shares(weights);
        assert!(index >= 0.95, "{weights:?}: {shares:?}, {index}");
    }
}

#[test]
fn sharing_by_tenant_changes_nothing_for_one_tenant() {
    let trace = trace("fanout?rounds=5&round_ms=1000&questions=0");
    let bound = |tenants| -> Vec<Option<f64>> {
        let requests = played(&trace, 2, tenants);
        requests.iter().map(|request| request.bound_s).collect()
    };
    assert_eq!(bound(None), bound(Some(BTreeMap::new())));
}
