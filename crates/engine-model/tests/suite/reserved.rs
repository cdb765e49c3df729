//! Sequences that get all blocks at once, and prompts given by the names of their blocks.

use engine_model::{Allocation, CacheEvent, EngineSettings, NamedRequest, RequestId, SubmitError};
use kv_blocks::EngineHash;

use crate::support::{BLOCK, EngineBench, settings};

fn reserving(device_blocks: u32) -> EngineBench {
    EngineBench::new(EngineSettings {
        allocation: Allocation::Reserved,
        ..settings(device_blocks)
    })
}

/// A prompt of whole blocks with these names.
fn named(id: u64, names: &[u64], output_tokens: u32) -> NamedRequest {
    let prompt_tokens = u32::try_from(names.len()).unwrap() * BLOCK;
    NamedRequest {
        id: RequestId(id),
        prompt_tokens,
        blocks: names.iter().copied().map(EngineHash).collect(),
        priority: 0,
        fetch: None,
        output_tokens,
    }
}

/// Names stored according to the engine's events; a duplicate name fails.
fn announced(bench: &EngineBench) -> Vec<u64> {
    let mut blocks = std::collections::BTreeSet::new();
    for event in bench.batches.iter().flatten() {
        match event {
            CacheEvent::Stored { hashes, .. } => {
                assert!(
                    hashes.iter().all(|hash| blocks.insert(hash.0)),
                    "stored twice: {event:?}"
                );
            }
            CacheEvent::Removed { hash, .. } => {
                assert!(blocks.remove(&hash.0), "was not there: {event:?}")
            }
            CacheEvent::Cleared => blocks.clear(),
        }
    }
    blocks.into_iter().collect()
}

fn cached(bench: &EngineBench) -> Vec<u64> {
    bench
        .engine
        .cached_blocks()
        .into_iter()
        .map(|(_, hash)| hash.0)
        .collect()
}

#[test]
fn a_prompt_finds_the_blocks_of_its_names_and_its_reply_caches_none() {
    let mut bench = reserving(64);
    bench
        .engine
        .submit_named(bench.now, named(1, &[1, 2], 9))
        .unwrap();
    bench.run();
    bench
        .engine
        .submit_named(bench.now, named(2, &[1, 2, 3], 1))
        .unwrap();
    bench.run();
    assert_eq!(bench.cached_tokens(2), 2 * BLOCK);
    assert_eq!(cached(&bench), [1, 2, 3]);
    assert_eq!(announced(&bench), [1, 2, 3]);
}

#[test]
fn a_partial_last_block_can_have_a_name_and_is_never_a_hit_on_its_own() {
    let mut bench = reserving(64);
    let short = |id| NamedRequest {
        prompt_tokens: BLOCK + 1,
        ..named(id, &[1, 2], 1)
    };
    bench.engine.submit_named(bench.now, short(1)).unwrap();
    bench.run();
    assert_eq!(announced(&bench), [1, 2]);
    bench.engine.submit_named(bench.now, short(2)).unwrap();
    bench.run();
    assert_eq!(bench.cached_tokens(2), BLOCK);
}

#[test]
fn a_request_waits_until_prompt_and_reply_fit_and_is_never_preempted() {
    let mut bench = reserving(4);
    bench
        .engine
        .submit_named(bench.now, named(1, &[1], 2 * BLOCK))
        .unwrap();
    bench
        .engine
        .submit_named(bench.now, named(2, &[2], BLOCK))
        .unwrap();
    while bench.engine.stats().finished == 0 {
        assert!(bench.step());
        assert!(
            bench.reply(2).is_empty(),
            "one block is left and it needs two"
        );
    }
    bench.run();
    assert_eq!(bench.reply(2).len(), BLOCK as usize);
    assert_eq!(bench.engine.stats().preemptions, 0);
}

#[test]
fn a_block_computed_twice_at_once_is_stored_once() {
    let mut bench = reserving(64);
    bench
        .engine
        .submit_named(bench.now, named(1, &[1, 2, 3], 2))
        .unwrap();
    bench
        .engine
        .submit_named(bench.now, named(2, &[1, 2, 4], 2))
        .unwrap();
    bench.run();
    assert_eq!(
        (bench.cached_tokens(1), bench.cached_tokens(2)),
        (0, 0),
        "neither was there when the other began"
    );
    assert_eq!(cached(&bench), [1, 2, 3, 4]);
    assert_eq!(announced(&bench), [1, 2, 3, 4]);
}

#[test]
fn blocks_of_finished_replies_are_reused_before_cached_blocks() {
    let mut bench = reserving(6);
    bench
        .engine
        .submit_named(bench.now, named(1, &[1, 2], 4 * BLOCK))
        .unwrap();
    bench.run();
    bench
        .engine
        .submit_named(bench.now, named(2, &[3, 4], 2 * BLOCK))
        .unwrap();
    bench.run();
    assert_eq!(cached(&bench), [1, 2, 3, 4]);
    bench
        .engine
        .submit_named(bench.now, named(3, &[5], 2 * BLOCK))
        .unwrap();
    bench.run();
    assert_eq!(
        cached(&bench),
        [1, 3, 4, 5],
        "the end of the oldest prompt went first"
    );
    assert_eq!(announced(&bench), [1, 3, 4, 5]);
}

#[test]
fn a_request_that_can_never_run_is_rejected() {
    let mut bench = reserving(2);
    let refused = |bench: &mut EngineBench, request| {
        bench.engine.submit_named(bench.now, request).unwrap_err()
    };
    assert_eq!(refused(&mut bench, named(1, &[], 1)), SubmitError::Empty);
    assert_eq!(refused(&mut bench, named(2, &[1], 0)), SubmitError::Empty);
    assert_eq!(
        refused(&mut bench, named(3, &[1, 2], 1)),
        SubmitError::TooLong {
            tokens: 9,
            capacity: 8
        }
    );
}
