//! Cache hits under round robin do not depend on timing, so simulator and real router must agree
//! exactly.

use routing::Policy;
use simulate::Trace;

use super::{
    fleet::{AgreementFleet, ENGINES, seen},
    workload::AgreementWorkload,
};
use crate::harness::{RawClient, RoutedFleet, eventually};

fn chat() -> AgreementWorkload {
    AgreementWorkload::of(
        "chat?sessions=60&turns=4&system_tokens=400&user_tokens=150&output_tokens=8&minutes=1",
        90,
    )
}

/// Prompt tokens and cached tokens according to the simulator.
fn expected(fleet: AgreementFleet, trace: &Trace) -> (u64, u64) {
    let prompts: u64 = trace
        .requests
        .iter()
        .map(|request| u64::from(request.prompt_tokens))
        .sum();
    let computed: u64 = fleet
        .simulated(trace)
        .iter()
        .map(|request| u64::from(request.computed_tokens))
        .sum();
    (prompts, prompts - computed)
}

fn found(routed: &RoutedFleet) -> (u64, u64) {
    let seen = seen(routed);
    (seen.prompt_tokens, seen.cached_tokens)
}

#[test]
fn overtaking_requests_hit_the_caches_as_the_simulator_predicts() {
    let fleet = AgreementFleet {
        policy: Policy::RoundRobin,
        blocks: 65_536,
    };
    let workload = chat();
    let routed = fleet.started("20", "");
    let clients: Vec<RawClient> = (0..workload.len())
        .map(|request| {
            let client = sent(&routed, &workload, request);
            // The order is part of the workload; a request that has reached its engine cannot be
            // overtaken.
            eventually("the request to reach its engine", || {
                (seen(&routed).executions > request as u64).then_some(())
            });
            client
        })
        .collect();
    for mut client in clients {
        assert_eq!(client.reply().status, 200);
    }
    let (prompts, hits) = expected(fleet, &workload.trace());
    assert!(
        hits * 5 > prompts,
        "a fifth at least, or it proves little: {hits} of {prompts}"
    );
    assert_eq!(found(&routed), (prompts, hits));
}

#[test]
fn undersized_caches_lose_hits_as_the_simulator_predicts() {
    let workload = chat().one_by_one();
    let small = AgreementFleet {
        policy: Policy::RoundRobin,
        blocks: 200,
    };
    let large = AgreementFleet {
        blocks: 65_536,
        ..small
    };
    let trace = workload.trace();
    let (prompts, hits) = expected(small, &trace);
    let (_, without_loss) = expected(large, &trace);
    assert!(
        hits * 10 < without_loss * 9,
        "a tenth is lost at least, or it proves little: {hits} of {without_loss}"
    );
    let routed = small.started("100", "");
    for request in 0..workload.len() {
        assert_eq!(sent(&routed, &workload, request).reply().status, 200);
    }
    assert_eq!(found(&routed), (prompts, hits), "{ENGINES} engines");
}

fn sent(routed: &RoutedFleet, workload: &AgreementWorkload, request: usize) -> RawClient {
    let mut client = RawClient::connect(&routed.router.data());
    client.send(
        "POST",
        "/v1/completions",
        &[],
        workload.body(request).to_string().as_bytes(),
    );
    client
}
