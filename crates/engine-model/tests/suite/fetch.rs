//! Leading blocks that another engine sends.

use std::time::Duration;

use engine_model::{FetchedPrefix, GenerationRequest, NextAction, RequestId};
use kv_blocks::Moment;

use crate::support::{BLOCK, EngineBench, announced_blocks, request, settings, tokens};

/// The request, for which another engine sends this many tokens within so many milliseconds.
fn fetching(tokens: u32, ms: u64, request: GenerationRequest) -> GenerationRequest {
    GenerationRequest {
        fetch: Some(FetchedPrefix {
            tokens,
            time: Duration::from_millis(ms),
        }),
        ..request
    }
}

#[test]
fn blocks_that_another_engine_sends_are_not_computed_and_are_cached_and_announced() {
    let mut bench = EngineBench::new(settings(64));
    let prompt = tokens(1, 10 * BLOCK + 1);
    bench.submit(fetching(10 * BLOCK, 50, request(1, &prompt, 1)));
    let batches = bench.run();
    assert_eq!(bench.cached_tokens(1), 10 * BLOCK);
    let stats = bench.engine.stats();
    assert_eq!((stats.fetched_tokens, stats.computed_tokens), (40, 1));
    assert_eq!(announced_blocks(&batches), bench.engine.cached_blocks());
    bench.submit(request(2, &prompt, 1));
    bench.run();
    assert_eq!(bench.cached_tokens(2), 10 * BLOCK);
    assert_eq!(bench.engine.stats().fetched_tokens, 40);
}

#[test]
fn a_request_waits_for_its_blocks_while_others_are_computed() {
    let mut bench = EngineBench::new(settings(64));
    bench.submit(fetching(8, 500, request(1, &tokens(1, 9), 1)));
    bench.submit(request(2, &tokens(2, 9), 1));
    assert!(matches!(
        bench.engine.begin(bench.now),
        NextAction::Step(length) if length < Duration::from_millis(500)
    ));
    bench.run();
    let order: Vec<RequestId> = bench.emitted.iter().map(|token| token.id).collect();
    assert_eq!(order, [RequestId(2), RequestId(1)]);
    assert!(bench.now > Moment::at(Duration::from_millis(500)));
}

#[test]
fn only_whole_blocks_beyond_its_own_are_taken_and_the_last_token_is_computed() {
    for (sent, own_blocks, fetched, cached) in [
        (0, 0, 0, 0),
        (BLOCK - 1, 0, 0, 0),
        (2 * BLOCK + 1, 0, 2 * BLOCK, 2 * BLOCK),
        (5 * BLOCK, 0, 4 * BLOCK, 4 * BLOCK),
        (3 * BLOCK, 2, BLOCK, 3 * BLOCK),
        (2 * BLOCK, 3, 0, 3 * BLOCK),
    ] {
        let mut bench = EngineBench::new(settings(64));
        let prompt = tokens(1, 5 * BLOCK);
        if own_blocks > 0 {
            let own = &prompt[..(own_blocks * BLOCK) as usize];
            bench.submit(request(1, own, 1));
            bench.run();
        }
        bench.submit(fetching(sent, 1, request(2, &prompt, 1)));
        bench.run();
        let found = (bench.engine.stats().fetched_tokens, bench.cached_tokens(2));
        assert_eq!(found, (u64::from(fetched), cached), "{sent} {own_blocks}");
    }
}

#[test]
fn an_engine_tells_how_many_leading_blocks_of_a_prompt_it_holds() {
    let mut bench = EngineBench::new(settings(64));
    let held = request(1, &tokens(1, 5 * BLOCK), 1);
    let names = bench.engine.prompt_names(&held);
    assert_eq!(
        names.len(),
        4,
        "the block of the last token is computed again"
    );
    assert_eq!(bench.engine.held_blocks(&names), 0);
    bench.submit(held);
    bench.run();
    assert_eq!(bench.engine.held_blocks(&names), 4);
    let other = bench
        .engine
        .prompt_names(&request(2, &tokens(2, 5 * BLOCK), 1));
    let mixed = [&names[..2], &other[2..]].concat();
    assert_eq!(bench.engine.held_blocks(&mixed), 2);
    assert!(bench.engine.prompt_names(&request(3, &[], 1)).is_empty());
}
