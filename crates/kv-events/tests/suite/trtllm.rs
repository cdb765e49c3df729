//! TensorRT-LLM's event lists: decoding, and the state across lists.

use contract_id::contract;
use kv_blocks::{
    BlockSize, EngineHash, IndexUpdate, NamedBlocks, RemovedBlocks, StoredBlocks, Tier,
};
use kv_events::trtllm::{TrtAction, TrtCounts, TrtData, TrtStream, decode};
use proptest::prelude::*;
use serde_json::{Value, json};

fn event(event_id: u64, data: Value) -> Value {
    json!({"event_id": event_id, "data": data, "window_size": 4096})
}

fn block(hash: u64, tokens: std::ops::Range<u32>) -> Value {
    let token = |id| json!({"type": "unique_token", "token_id": id, "token_extra_id": 0});
    let tokens: Vec<Value> = tokens.map(token).collect();
    json!({"type": "stored_block", "block_hash": hash, "tokens": tokens, "cache_level": 0, "priority": 35})
}

fn stored(parent: Value, blocks: &[Value]) -> Value {
    json!({"type": "stored", "parent_hash": parent, "blocks": blocks})
}

fn removed(hashes: &[u64]) -> Value {
    json!({"type": "removed", "block_hashes": hashes})
}

fn moved(hash: u64, old: u32, new: u32) -> Value {
    let level = json!({"type": "event_diff", "new_value": new, "old_value": old});
    json!({"type": "updated", "block_hash": hash, "cache_level": level, "priority": null})
}

fn created() -> Value {
    json!({"type": "created", "num_blocks_per_cache_level": [100, 50]})
}

fn store_of(
    hashes: &[u64],
    parent: Option<u64>,
    tokens: std::ops::Range<u32>,
    tier: Tier,
) -> IndexUpdate {
    IndexUpdate::Stored(StoredBlocks {
        hashes: hashes.iter().copied().map(EngineHash).collect(),
        parent: parent.map(EngineHash),
        tokens: tokens.collect(),
        block_size: BlockSize::new(4).unwrap(),
        lora: None,
        media: Vec::new(),
        salt: None,
        tier,
    })
}

fn removal_of(hash: u64, tier: Tier) -> IndexUpdate {
    IndexUpdate::Removed(RemovedBlocks {
        hashes: vec![EngineHash(hash)],
        tier,
    })
}

struct TrtEngine(TrtStream);

impl TrtEngine {
    fn new() -> Self {
        Self(TrtStream::new(BlockSize::new(4).unwrap()))
    }

    fn take(&mut self, events: &[Value]) -> Vec<TrtAction> {
        self.0
            .take(Value::from(events).to_string().as_bytes())
            .unwrap()
    }

    /// Returns the updates of events; asserts that there are no other actions.
    fn updates(&mut self, events: &[Value]) -> Vec<IndexUpdate> {
        let update = |action| match action {
            TrtAction::Apply { rank: None, update } => update,
            other => panic!("{other:?}"),
        };
        self.take(events).into_iter().map(update).collect()
    }

    fn counts(&self) -> TrtCounts {
        self.0.counts()
    }
}

const CLEAR: TrtAction = TrtAction::Clear { rank: None };
const HOLE: TrtAction = TrtAction::Hole { rank: None };

#[test]
#[contract("DY18", "DY19")]
fn stored_blocks_have_their_tokens_and_their_parent() {
    let mut engine = TrtEngine::new();
    let root = stored(Value::Null, &[block(u64::MAX, 0..4), block(2, 4..8)]);
    let child = stored(json!(2), &[block(3, 8..12)]);
    let updates = engine.updates(&[event(0, created()), event(1, root), event(2, child)]);
    let expected = [
        store_of(&[u64::MAX, 2], None, 0..8, Tier::Device),
        store_of(&[3], Some(2), 8..12, Tier::Device),
    ];
    assert_eq!(updates, expected);
    assert_eq!(
        engine.updates(&[]),
        [],
        "an idle engine answers with an empty list"
    );
    assert_eq!(
        engine.updates(&[event(3, removed(&[3]))]),
        [removal_of(3, Tier::Device)]
    );
    let expected = TrtCounts {
        events: 4,
        applied: 3,
        no_effect: 1,
        ..TrtCounts::default()
    };
    assert_eq!(engine.counts(), expected);
}

#[test]
fn a_partial_trailing_block_is_skipped() {
    let mut engine = TrtEngine::new();
    let data = stored(Value::Null, &[block(1, 0..4), block(2, 4..7)]);
    assert_eq!(
        engine.updates(&[event(0, data)]),
        [store_of(&[1], None, 0..4, Tier::Device)]
    );
    let only = stored(json!(1), &[block(2, 4..7)]);
    assert_eq!(engine.updates(&[event(1, only)]), []);
    assert_eq!(
        (
            engine.counts().partial_blocks,
            engine.counts().no_effect,
            engine.counts().applied
        ),
        (2, 1, 1)
    );
    // In the middle, or if longer than a block, it is no block of this size.
    for (id, blocks) in [
        (2, [block(3, 0..3), block(4, 0..4)]),
        (3, [block(3, 0..4), block(4, 0..5)]),
    ] {
        assert_eq!(
            engine.updates(&[event(id, stored(Value::Null, &blocks))]),
            []
        );
    }
    let twice = stored(json!(9), &[block(5, 0..4), block(9, 4..8)]);
    assert_eq!(
        engine.updates(&[event(4, twice), event(5, stored(Value::Null, &[]))]),
        []
    );
    assert_eq!(engine.counts().unusable, 4);
}

#[test]
fn a_moved_block_is_added_to_its_new_tier_before_it_leaves_the_old() {
    let mut engine = TrtEngine::new();
    let named = |hash, tier| {
        IndexUpdate::Named(NamedBlocks {
            hashes: vec![EngineHash(hash)],
            tier,
        })
    };
    assert_eq!(
        engine.updates(&[event(0, removed(&[1]))]),
        [removal_of(1, Tier::Device)]
    );
    let there = [named(1, Tier::Host), removal_of(1, Tier::Device)];
    assert_eq!(engine.updates(&[event(1, moved(1, 0, 1))]), there);
    let back = [named(1, Tier::Device), removal_of(1, Tier::Host)];
    assert_eq!(engine.updates(&[event(2, moved(1, 1, 0))]), back);
    // A removal has no tier, so from here on the block leaves both.
    let everywhere = [removal_of(1, Tier::Device), removal_of(1, Tier::Host)];
    assert_eq!(engine.updates(&[event(3, removed(&[1]))]), everywhere);
    // An equal level or an empty difference moves nothing.
    let priority = json!({"type": "updated", "block_hash": 1, "cache_level": null, "priority": {"type": "event_diff", "new_value": 1, "old_value": 2}});
    let nothing = json!({"type": "updated", "block_hash": 1});
    assert_eq!(
        engine.updates(&[
            event(4, moved(1, 1, 1)),
            event(5, priority),
            event(6, nothing)
        ]),
        []
    );
    assert_eq!(engine.counts().no_effect, 3);
}

#[test]
fn blocks_of_one_event_in_two_tiers_are_two_updates() {
    let mut engine = TrtEngine::new();
    let mut below = block(3, 8..12);
    below["cache_level"] = json!(1);
    let data = stored(Value::Null, &[block(1, 0..4), block(2, 4..8), below]);
    let expected = [
        store_of(&[1, 2], None, 0..8, Tier::Device),
        store_of(&[3], Some(2), 8..12, Tier::Host),
    ];
    assert_eq!(engine.updates(&[event(0, data)]), expected);
}

#[test]
fn only_blocks_identified_by_their_tokens_alone_count() {
    let mut engine = TrtEngine::new();
    let mut image = block(2, 4..8);
    image["tokens"][3]["token_extra_id"] = json!(77);
    let data = stored(Value::Null, &[block(1, 0..4), image, block(3, 8..12)]);
    assert_eq!(
        engine.updates(&[event(0, data)]),
        [store_of(&[1], None, 0..4, Tier::Device)]
    );
    let mut newer = block(1, 0..4);
    newer["mm_keys"] = json!([{"type": "mm_key", "hash": "ab", "start_offset": 0}]);
    assert_eq!(
        engine.updates(&[event(1, stored(Value::Null, &[newer]))]),
        []
    );
    let mut none = block(1, 0..4);
    none["mm_keys"] = json!([]);
    assert_eq!(
        engine
            .updates(&[event(2, stored(Value::Null, &[none]))])
            .len(),
        1
    );
    assert_eq!(
        (engine.counts().not_plain_blocks, engine.counts().no_effect),
        (3, 1)
    );
}

#[test]
fn missing_numbers_clear_the_target() {
    let mut engine = TrtEngine::new();
    engine.updates(&[event(7, removed(&[1]))]);
    let actions = engine.take(&[event(8, removed(&[1])), event(11, removed(&[2]))]);
    assert_eq!(actions[1], CLEAR);
    assert!(matches!(actions[2], TrtAction::Apply { .. }));
    assert_eq!(
        engine.take(&[event(0, created()), event(1, removed(&[1]))])[0],
        CLEAR,
        "the engine restarted"
    );
    assert_eq!(
        (engine.counts().overflows, engine.counts().restarts),
        (1, 1)
    );
    // An undecodable list is lost, and the next one reveals it.
    let error = engine.0.take(b"{\"error\": \"not enabled\"}").unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("event list of 24 bytes is unusable: "),
        "{error}"
    );
    assert_eq!(engine.take(&[event(5, removed(&[1]))])[0], CLEAR);
}

#[test]
fn a_bad_event_is_skipped_and_counts_as_a_loss() {
    let mut engine = TrtEngine::new();
    let bad = [
        json!({"type": "removed", "block_hashes": "all"}),
        json!({"type": "stored", "parent_hash": null, "blocks": [{"block_hash": 1, "tokens": [{"token_id": -1}]}]}),
        json!({"no": "type"}),
    ];
    let events: Vec<_> = (0..).zip(bad).map(|(id, data)| event(id, data)).collect();
    assert_eq!(engine.take(&events), [HOLE, HOLE, HOLE]);
    // Their numbers were read, so none is missing.
    assert_eq!(engine.updates(&[event(3, removed(&[1]))]).len(), 1);
    assert_eq!(
        engine.take(&[json!({"data": removed(&[1])}), json!(5)]),
        [HOLE, HOLE]
    );
    assert_eq!(
        engine
            .updates(&[event(6, removed(&[1])), event(7, json!({"type": "shrunk"}))])
            .len(),
        1
    );
    let counts = engine.counts();
    assert_eq!(
        (
            counts.malformed,
            counts.overflows,
            counts.applied,
            counts.no_effect
        ),
        (5, 0, 2, 1)
    );
    assert!(engine.0.last_error().unwrap().reason.contains("5"));
}

#[test]
fn the_largest_attention_window_counts() {
    let mut engine = TrtEngine::new();
    let of = |window: Value, id: u64, data: Value| json!({"event_id": id, "data": data, "window_size": window});
    let pools = [of(json!(512), 0, created()), of(json!(4096), 1, created())];
    assert_eq!(engine.take(&pools), []);
    let both = [
        of(json!(512), 2, removed(&[1])),
        of(json!(4096), 3, removed(&[1])),
    ];
    assert_eq!(engine.updates(&both).len(), 1);
    assert_eq!(engine.counts().other_window, 1);
    // In the middle of a stream, the first events may belong to a smaller window.
    let mut engine = TrtEngine::new();
    engine.updates(&[of(json!(512), 5, removed(&[1]))]);
    assert_eq!(engine.take(&[of(json!(4096), 6, removed(&[2]))])[0], CLEAR);
    // After a restart it may serve a model with another window.
    assert_eq!(engine.take(&[of(json!(2048), 0, removed(&[1]))]).len(), 2);
    assert_eq!(
        engine.updates(&[of(json!(2048), 1, removed(&[1]))]).len(),
        1
    );
    // Older releases do not report it.
    let mut engine = TrtEngine::new();
    assert_eq!(
        engine
            .updates(&[json!({"event_id": 0, "data": removed(&[1])})])
            .len(),
        1
    );
}

#[test]
fn every_rank_has_its_own_numbers() {
    let mut engine = TrtEngine::new();
    let of = |rank: u32, id: u64| {
        let mut event = event(id, removed(&[id]));
        event["attention_dp_rank"] = json!(rank);
        event
    };
    let ranks = |actions: Vec<TrtAction>| -> Vec<_> {
        let rank = |action: &TrtAction| match action {
            TrtAction::Apply { rank, .. } => ("apply", *rank),
            TrtAction::Clear { rank } => ("clear", *rank),
            TrtAction::Hole { rank } => ("hole", *rank),
        };
        actions.iter().map(rank).collect()
    };
    let actions = engine.take(&[of(0, 0), of(1, 0), of(0, 1), of(1, 1), of(1, 9)]);
    let (zero, one) = (Some(0), Some(1));
    let expected = [
        ("apply", zero),
        ("apply", one),
        ("apply", zero),
        ("apply", one),
        ("clear", one),
        ("apply", one),
    ];
    assert_eq!(ranks(actions), expected);
    // A hostile list cannot create unbounded ranks.
    let many: Vec<_> = (2..3_000).map(|rank| of(rank, 0)).collect();
    assert_eq!(engine.take(&many).len(), 1_022);
    assert_eq!(engine.counts().unusable, 3_000 - 1_024);
}

#[test]
fn hashes_are_exact_in_every_form() {
    let hash = |hash: Value| {
        let list =
            json!([event(0, json!({"type": "removed", "block_hashes": [hash]}))]).to_string();
        match decode(list.as_bytes()).unwrap().remove(0).unwrap().data {
            Ok(TrtData::Removed { hashes }) => Some(hashes[0].0),
            _ => None,
        }
    };
    assert_eq!(hash(json!(u64::MAX)), Some(u64::MAX));
    assert_eq!(hash(json!(-2)), Some(u64::MAX - 1));
    assert_eq!(hash(json!("9007199254740993")), Some(9_007_199_254_740_993));
    assert_eq!(hash(json!(1e19)), None);
}

#[test]
fn a_list_longer_than_an_engine_keeps_is_refused() {
    let many = format!("[{}0]", "0,".repeat(1 << 17));
    assert!(
        decode(many.as_bytes())
            .unwrap_err()
            .reason
            .contains("more than 131072 events: poll more often")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_list_is_handled(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let list = json!([event(0, stored(Value::Null, &[block(1, 0..4)])), event(1, moved(1, 0, 1))]);
        let mut bytes = list.to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let mut engine = TrtEngine::new();
        let _ = engine.0.take(&bytes);
        prop_assert!(engine.0.take(&bytes[..cut.index(bytes.len())]).is_err());
        prop_assert!(engine.0.take(b"[]").is_ok());
    }
}
