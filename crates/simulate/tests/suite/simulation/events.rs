//! The router's knowledge of the caches, and its delay.

use std::time::Duration;

use routing::Policy;
use simulate::{Cell, run};

use super::{cell, line, read};

/// A prompt, another one, and the first one's next turn a second later. In turns the next turn
/// would go to the engine without the cache: only a router that knows the cache sends it back.
fn hit_tokens(change: impl FnOnce(&mut Cell)) -> u64 {
    let lines = [
        line(0, &[1, 2, 3, 4], 1),
        line(100, &[9], 1),
        line(200, &[8], 1),
        line(1_000, &[1, 2, 3, 4, 5], 1),
    ];
    let mut cell = cell(Policy::KvAware, 2);
    // Speculative entries would hide the effect of events.
    cell.routing.section.speculative = false;
    change(&mut cell);
    let report = run(&read(&lines.join("\n")), &cell);
    report
        .per_worker
        .iter()
        .map(|worker| worker.hit_tokens)
        .sum()
}

#[test]
fn a_follow_up_goes_to_the_engine_whose_events_announced_its_prefix() {
    assert_eq!(hit_tokens(|_| ()), 2_048);
}

#[test]
fn an_event_in_transit_is_not_known_yet() {
    assert_eq!(
        hit_tokens(|cell| cell.event_delay = Duration::from_secs(2)),
        0
    );
}

#[test]
fn a_lost_event_is_never_known() {
    assert_eq!(hit_tokens(|cell| cell.event_loss = 1.0), 0);
}

#[test]
fn partial_loss_costs_some_hits_and_no_request() {
    let turns: Vec<String> = (0..400u32)
        .map(|number| {
            let chat = u64::from(number % 20) * 1_000;
            let ids: Vec<u64> = (0..=u64::from(number / 20))
                .map(|turn| chat + turn)
                .collect();
            line(number * 100, &ids, 1)
        })
        .collect();
    let trace = read(&turns.join("\n"));
    let with = |loss: f64| {
        let mut cell = cell(Policy::KvAware, 4);
        cell.routing.section.speculative = false;
        cell.event_loss = loss;
        run(&trace, &cell)
    };
    let (whole, lossy) = (with(0.0), with(0.5));
    assert_eq!((whole.unfinished, lossy.unfinished), (0, 0));
    assert!(
        lossy.block_hit_ratio < whole.block_hit_ratio,
        "{} and {}",
        lossy.block_hit_ratio,
        whole.block_hit_ratio
    );
}
