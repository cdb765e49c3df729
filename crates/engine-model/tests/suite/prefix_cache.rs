//! Block reuse, and the events about it.

use std::sync::Arc;

use engine_model::CacheEvent;
use kv_blocks::Tier;
use proptest::prelude::*;

use crate::support::{
    BLOCK, EngineBench, adapted, announced_blocks, request, salted, settings, tokens, transferred,
    with_item,
};

fn stored(event: &CacheEvent) -> (usize, bool, &[u32]) {
    match event {
        CacheEvent::Stored {
            hashes,
            parent,
            tokens,
            tier: Tier::Device,
            ..
        } => (hashes.len(), parent.is_some(), tokens),
        other => panic!("expected a device store, got {other:?}"),
    }
}

#[test]
fn the_full_blocks_of_a_prompt_are_one_event_and_each_decoded_block_is_its_own() {
    let mut bench = EngineBench::new(settings(64));
    let prompt = tokens(1, 10);
    bench.submit(request(1, &prompt, 8));
    let batches = bench.run();
    let sequence: Vec<u32> = prompt.iter().copied().chain(bench.reply(1)).collect();
    // 10 prompt tokens fill two blocks; 7 of the 8 generated tokens are computed: 17 tokens, four
    // blocks.
    assert_eq!(batches.len(), 3);
    assert!(batches.iter().all(|batch| batch.len() == 1));
    assert_eq!(stored(&batches[0][0]), (2, false, &sequence[..8]));
    assert_eq!(stored(&batches[1][0]), (1, true, &sequence[8..12]));
    assert_eq!(stored(&batches[2][0]), (1, true, &sequence[12..16]));
}

#[test]
fn the_next_turn_finds_prompt_and_reply_of_the_turn_before() {
    let mut bench = EngineBench::new(settings(64));
    let first = tokens(1, 10);
    bench.submit(request(1, &first, 8));
    bench.run();
    let second: Vec<u32> = first
        .iter()
        .copied()
        .chain(bench.reply(1))
        .chain(tokens(2, 5))
        .collect();
    bench.submit(request(2, &second, 1));
    bench.run();
    assert_eq!(bench.cached_tokens(1), 0);
    assert_eq!(bench.cached_tokens(2), 16);
    assert_eq!(bench.engine.stats().device_hit_tokens, 16);
    assert_eq!(bench.engine.stats().queried_tokens, 10 + 23);
}

#[test]
fn a_cached_prompt_of_exactly_k_blocks_recomputes_its_last_block_into_a_second_copy() {
    let mut bench = EngineBench::new(settings(4));
    let prompt = tokens(1, 3 * BLOCK);
    bench.submit(request(1, &prompt, 1));
    bench.run();
    bench.submit(request(2, &prompt, 1));
    let again = bench.run();
    assert_eq!(bench.cached_tokens(2), 2 * BLOCK);
    assert_eq!(again.len(), 1);
    assert_eq!(stored(&again[0][0]), (1, true, &prompt[8..]));
    // The eviction of all blocks removes that hash twice.
    bench.submit(request(3, &tokens(2, 4 * BLOCK - 1), 1));
    let evicting = bench.run();
    let removed: Vec<_> = evicting[0]
        .iter()
        .filter_map(|event| match event {
            CacheEvent::Removed { hash, .. } => Some(*hash),
            _ => None,
        })
        .collect();
    let CacheEvent::Stored { hashes, .. } = &again[0][0] else {
        panic!()
    };
    assert_eq!(removed.len(), 4);
    assert_eq!(removed.iter().filter(|hash| **hash == hashes[0]).count(), 2);
}

#[test]
fn removals_precede_the_store_that_needed_the_room() {
    let mut bench = EngineBench::new(settings(4));
    bench.submit(request(1, &tokens(1, 12), 1));
    bench.run();
    bench.submit(request(2, &tokens(2, 8), 1));
    let batch = &bench.run()[0];
    // Three blocks of the first prompt are cached, one is free: two prompt blocks use that one and
    // the oldest tail.
    assert_eq!(batch.len(), 2);
    assert!(matches!(
        batch[0],
        CacheEvent::Removed {
            tier: Tier::Device,
            ..
        }
    ));
    assert_eq!(stored(&batch[1]).0, 2);
}

#[test]
fn a_sequences_tail_is_evicted_before_its_head() {
    let mut bench = EngineBench::new(settings(4));
    let prompt = tokens(1, 15);
    bench.submit(request(1, &prompt, 1));
    bench.run();
    bench.submit(request(2, &tokens(2, 7), 1));
    bench.run();
    bench.submit(request(3, &prompt, 1));
    bench.run();
    assert_eq!(
        bench.cached_tokens(3),
        2 * BLOCK,
        "one of three cached blocks went, the last one"
    );
}

#[test]
fn identical_prompts_in_one_step_are_stored_once() {
    let mut bench = EngineBench::new(settings(64));
    for id in 1..=3 {
        bench.submit(request(id, &tokens(1, 18), 1));
    }
    let batches = bench.run();
    assert_eq!(batches.concat().len(), 1);
    assert_eq!([1, 2, 3].map(|id| bench.cached_tokens(id)), [0, 16, 16]);
}

#[test]
fn salts_and_adapters_do_not_share_blocks() {
    let mut bench = EngineBench::new(settings(64));
    let prompt = tokens(1, 9);
    let plain = |id| request(id, &prompt, 1);
    for request in [
        plain(1),
        salted("a", plain(2)),
        adapted("a", plain(3)),
        salted("b", adapted("a", plain(4))),
    ] {
        bench.submit(request);
        bench.run();
    }
    bench.submit(salted("a", plain(5)));
    bench.run();
    assert_eq!(
        [1, 2, 3, 4, 5].map(|id| bench.cached_tokens(id)),
        [0, 0, 0, 0, 8]
    );
    let salts: Vec<_> = bench
        .batches
        .concat()
        .iter()
        .map(|event| match event {
            CacheEvent::Stored { salt, lora, .. } => (salt.clone(), lora.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    let some = |name: &str| Some(Arc::from(name));
    assert_eq!(
        salts,
        [
            (None, None),
            (some("a"), None),
            (None, some("a")),
            (some("b"), some("a"))
        ]
    );
}

#[test]
fn blocks_with_tokens_of_another_item_or_of_one_at_another_place_are_not_found() {
    let mut bench = EngineBench::new(settings(64));
    let prompt = tokens(1, 17);
    // Tokens 6 to 10: of the second and the third of four whole blocks.
    for (id, identifier, place) in [
        (1, "a", (6, 5)),
        (2, "a", (6, 5)),
        (3, "b", (6, 5)),
        (4, "a", (5, 5)),
    ] {
        bench.submit(with_item(identifier, place, request(id, &prompt, 1)));
        bench.run();
    }
    bench.submit(request(5, &prompt, 1));
    bench.run();
    assert_eq!(
        [1, 2, 3, 4, 5].map(|id| bench.cached_tokens(id)),
        [0, 16, 4, 4, 4]
    );
    let media: Vec<_> = bench
        .batches
        .concat()
        .into_iter()
        .map(|event| match event {
            CacheEvent::Stored { media, .. } => media,
            other => panic!("{other:?}"),
        })
        .collect();
    let item = |name: &str, place: i64| vec![(Arc::<str>::from(name), place)];
    assert_eq!(
        media,
        [
            vec![vec![], item("a", 2), item("a", -2), vec![]],
            vec![item("b", 2), item("b", -2), vec![]],
            vec![item("a", 1), item("a", -3), vec![]],
            vec![],
        ]
    );
}

#[test]
fn an_item_is_announced_again_with_its_block_in_the_host_tier() {
    let mut bench = EngineBench::new(engine_model::EngineSettings {
        host_blocks: 16,
        ..settings(4)
    });
    bench.submit(with_item("a", (2, 4), request(1, &tokens(1, 13), 1)));
    bench.run();
    bench.submit(request(2, &tokens(2, 15), 1));
    let to_host: Vec<_> = bench
        .run()
        .concat()
        .into_iter()
        .filter_map(|event| match event {
            CacheEvent::Stored {
                media,
                tier: Tier::Host,
                ..
            } => Some(media),
            _ => None,
        })
        .collect();
    let item = |place: i64| vec![vec![(Arc::<str>::from("a"), place)]];
    assert_eq!(to_host, [vec![], item(-2), item(2)], "tail first");
}

#[test]
fn the_salt_is_named_only_where_a_sequence_starts() {
    let mut bench = EngineBench::new(settings(64));
    bench.submit(salted("a", request(1, &tokens(1, 8), 6)));
    let events = bench.run().concat();
    let salts: Vec<bool> = events
        .iter()
        .map(|event| matches!(event, CacheEvent::Stored { salt: Some(_), .. }))
        .collect();
    assert_eq!(salts, [true, false]);
}

#[test]
fn a_clear_is_published_with_the_next_step_before_its_stores() {
    let mut bench = EngineBench::new(settings(64));
    bench.submit(request(1, &tokens(1, 8), 1));
    bench.run();
    assert!(bench.engine.reset_cache());
    assert!(bench.run().is_empty(), "an idle engine sends no events");
    bench.submit(request(2, &tokens(1, 8), 1));
    let batch = &bench.run()[0];
    assert_eq!(batch[0], CacheEvent::Cleared);
    assert_eq!(stored(&batch[1]).0, 2);
    assert_eq!(bench.cached_tokens(2), 0);
}

#[test]
fn without_prefix_caching_there_are_no_hits_and_no_events() {
    let mut bench = EngineBench::new(engine_model::EngineSettings {
        prefix_caching: false,
        ..settings(64)
    });
    let prompt = tokens(1, 4 * BLOCK);
    for id in 1..=2 {
        bench.submit(request(id, &prompt, 6));
        assert!(bench.run().concat().is_empty());
    }
    assert!(bench.engine.reset_cache());
    bench.submit(request(3, &prompt, 1));
    assert!(bench.run().concat().is_empty());
    assert_eq!(bench.cached_tokens(2), 0);
    assert_eq!(bench.reply(1), bench.reply(2));
    let stats = bench.engine.stats();
    assert_eq!(
        (
            stats.queried_tokens,
            stats.device_hit_tokens,
            stats.blocks.cached
        ),
        (0, 0, 0)
    );
}

#[test]
fn a_reset_is_refused_while_blocks_are_in_use() {
    let mut bench = EngineBench::new(settings(64));
    bench.submit(request(1, &tokens(1, 8), 5));
    bench.step();
    assert!(!bench.engine.reset_cache());
    assert!(!bench.run().concat().contains(&CacheEvent::Cleared));
}

#[test]
fn a_block_evicted_from_the_device_moves_to_the_host_and_returns_on_a_hit() {
    let mut bench = EngineBench::new(engine_model::EngineSettings {
        host_blocks: 16,
        ..settings(4)
    });
    let prompt = tokens(1, 13);
    bench.submit(request(1, &prompt, 1));
    bench.run();
    bench.submit(request(2, &tokens(2, 15), 1));
    let offloading = bench.run().concat();
    let to_host: Vec<_> = offloading
        .iter()
        .filter_map(|event| match event {
            CacheEvent::Stored {
                tokens,
                tier: Tier::Host,
                ..
            } => Some(tokens.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(
        to_host,
        [&prompt[8..12], &prompt[4..8], &prompt[..4]],
        "tail first, each with its tokens"
    );
    bench.submit(request(3, &prompt, 1));
    let reloading = bench.run().concat();
    assert_eq!(bench.cached_tokens(3), 12);
    assert_eq!(bench.engine.stats().host_hit_tokens, 12);
    let (blocks, has_parent, announced) = stored(reloading.last().unwrap());
    assert_eq!((blocks, has_parent, announced), (3, false, &prompt[..12]));
    assert_eq!(
        announced_blocks(&bench.batches),
        bench.engine.cached_blocks()
    );
}

#[test]
fn a_full_host_tier_drops_its_oldest_block() {
    let mut bench = EngineBench::new(engine_model::EngineSettings {
        host_blocks: 2,
        ..settings(4)
    });
    for kind in 1..=3 {
        bench.submit(request(u64::from(kind), &tokens(kind, 13), 1));
        bench.run();
    }
    assert_eq!(bench.engine.stats().blocks.host, 2);
    assert!(bench.batches.concat().iter().any(|event| matches!(
        event,
        CacheEvent::Removed {
            tier: Tier::Host,
            ..
        }
    )));
    assert_eq!(
        announced_blocks(&bench.batches),
        bench.engine.cached_blocks()
    );
}

#[derive(Clone, Debug)]
enum CacheAction {
    Submit {
        kind: u32,
        len: u32,
        output: u32,
        salted: bool,
    },
    Step,
    Abort(u64),
    Reset,
}

fn action() -> impl Strategy<Value = CacheAction> {
    prop_oneof![
        4 => (1u32..4, 1u32..30, 1u32..12, any::<bool>())
            .prop_map(|(kind, len, output, salted)| CacheAction::Submit { kind, len, output, salted }),
        8 => Just(CacheAction::Step),
        1 => (0u64..20).prop_map(CacheAction::Abort),
        1 => Just(CacheAction::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The crate's invariant, under preemption, aborts and resets.
    #[test]
    fn a_listener_that_counts_copies_knows_the_exact_cache_content(
        actions in prop::collection::vec(action(), 1..120),
        device_blocks in 11u32..24,
        host_blocks in 0u32..6,
        batched in 3u32..40,
    ) {
        let mut bench = EngineBench::new(engine_model::EngineSettings {
            host_blocks,
            max_num_batched_tokens: batched,
            ..settings(device_blocks)
        });
        let mut next = 0;
        for action in actions {
            match action {
                CacheAction::Submit { kind, len, output, salted: with_salt } => {
                    let plain = request(next, &tokens(kind, len), output);
                    bench.submit(if with_salt { salted("s", plain) } else { plain });
                    next += 1;
                }
                CacheAction::Step => { bench.step(); }
                CacheAction::Abort(id) => { bench.engine.abort(engine_model::RequestId(id)); }
                CacheAction::Reset => { bench.engine.reset_cache(); }
            }
        }
        bench.run();
        prop_assert_eq!(bench.engine.stats().blocks.used, 0);
        // Changes since the last step are published with the next one.
        bench.submit(request(9_999, &[1], 1));
        bench.run();
        prop_assert_eq!(announced_blocks(&bench.batches), bench.engine.cached_blocks());
    }
}

#[test]
fn a_transferred_prompt_computes_one_token_and_is_announced_and_cached() {
    let mut bench = EngineBench::new(settings(64));
    let prompt = tokens(1, 10 * BLOCK + 3);
    bench.submit(transferred(request(1, &prompt, 1)));
    let batches = bench.run();
    assert_eq!(bench.engine.stats().computed_tokens, 1);
    assert_eq!(
        bench.cached_tokens(1),
        10 * BLOCK + 2,
        "as engines count what they did not compute"
    );
    assert_eq!(
        stored(&batches[0][0]),
        (10, false, &prompt[..10 * BLOCK as usize])
    );
    bench.submit(request(2, &prompt, 1));
    bench.run();
    assert_eq!(bench.cached_tokens(2), 10 * BLOCK);
}
