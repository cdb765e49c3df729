//! The whole product in simulated time: engines, router and clients of a round on one thread.

use std::time::Duration;

use routing::Policy;
use runtime::SimulatedWorld;

use super::{
    DemoOutput,
    result::{PolicyRun, RunCounters},
    round,
};

const WORKERS: u32 = 3;

/// Runs one round in a simulation; returns its results and the virtual time it took.
fn simulated(seed: u64, policy: Policy) -> (PolicyRun, Duration) {
    let in_order = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    in_order.block_on(async {
        let _simulation = SimulatedWorld::enter(seed);
        let started = tokio::time::Instant::now();
        let counters: RunCounters = round::run(WORKERS, seed, policy, DemoOutput::Silent)
            .await
            .expect("a round");
        (counters.run(policy.as_str(), WORKERS), started.elapsed())
    })
}

#[test]
fn a_whole_round_runs_in_simulated_time() {
    let (warm, took) = simulated(7, Policy::Warm);
    assert_eq!((warm.requests, warm.errors), (180, 0));
    assert!(
        took > Duration::from_secs(6),
        "{took:?}: chats begin within 6 s"
    );
    let (round_robin, _) = simulated(7, Policy::RoundRobin);
    assert_eq!((round_robin.requests, round_robin.errors), (180, 0));
    assert!(
        warm.block_hit_ratio > 1.4 * round_robin.block_hit_ratio,
        "{warm:?} {round_robin:?}"
    );
}

#[test]
fn a_simulated_round_repeats_exactly() {
    let (first, first_took) = simulated(3, Policy::Warm);
    let (second, second_took) = simulated(3, Policy::Warm);
    assert_eq!(format!("{first:?}"), format!("{second:?}"));
    assert_eq!(first_took, second_took);
}
