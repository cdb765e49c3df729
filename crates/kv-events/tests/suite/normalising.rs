//! The index updates of events, for cases without a fixture.

use contract_id::contract;
use kv_blocks::{EngineHash, IndexUpdate, MediaHash, NamedBlocks, Tier};
use kv_events::vllm::{
    BlockLocation, BlockRemoved, BlockStored, ExtraKey, IgnoredReason, Medium, Normaliser,
    VllmEvent, WireTokens, to_update,
};

fn store(blocks: u64) -> BlockStored {
    BlockStored {
        block_hashes: (1..=blocks).map(EngineHash).collect(),
        token_ids: WireTokens::Flat((0..u32::try_from(blocks).unwrap() * 4).collect()),
        block_size: 4,
        ..BlockStored::default()
    }
}

fn update(event: BlockStored) -> Result<kv_blocks::StoredBlocks, IgnoredReason> {
    match to_update(&VllmEvent::Stored(Box::new(event))) {
        Ok(IndexUpdate::Stored(stored)) => Ok(stored),
        Ok(other) => panic!("{other:?}"),
        Err(ignored) => Err(ignored.reason),
    }
}

fn text(text: &str) -> ExtraKey {
    ExtraKey::Text(text.into())
}

#[test]
fn removals_follow_the_kind_of_their_group_at_the_store() {
    let kind = |group, kind: &str| {
        let mut event = store(1);
        event.group.idx = Some(group);
        event.group.spec_kind = Some(kind.into());
        VllmEvent::Stored(Box::new(event))
    };
    let removal = |group| {
        VllmEvent::Removed(Box::new(BlockRemoved {
            block_hashes: vec![EngineHash(1)],
            group_idx: group,
            ..BlockRemoved::default()
        }))
    };
    // Nothing is known: the first group counts, others do not.
    let mut stream = Normaliser::default();
    assert!(stream.update(&removal(None)).is_ok());
    assert!(stream.update(&removal(Some(0))).is_ok());
    assert!(stream.update(&removal(Some(1))).is_err());
    // Here the main group is the second.
    assert!(stream.update(&kind(0, "sliding_window")).is_err());
    assert!(stream.update(&kind(1, "mla_attention")).is_ok());
    assert!(stream.update(&removal(Some(0))).is_err());
    assert!(stream.update(&removal(None)).is_err());
    assert!(stream.update(&removal(Some(1))).is_ok());
    // A store without a kind is treated like a removal.
    let mut plain = store(1);
    plain.group.idx = Some(2);
    assert_eq!(update(plain), Err(IgnoredReason::NotFullAttention));
}

#[test]
#[contract("D2")]
fn the_multimodal_items_of_each_block_are_part_of_its_identity() {
    let item = |place| ExtraKey::Item("image".into(), place);
    let mut event = store(4);
    event.extra_keys = Some(vec![
        vec![item(3), text("salt")],
        vec![item(-1), ExtraKey::Item("audio".into(), 2)],
        vec![],
        vec![],
        // Behind the last block.
        vec![item(0)],
    ]);
    let stored = update(event).unwrap();
    assert_eq!(stored.hashes.len(), 4);
    assert_eq!(stored.salt.as_deref(), Some("salt"));
    assert_eq!(
        stored.media,
        [
            MediaHash::of([("image", 3)]),
            MediaHash::of([("image", -1), ("audio", 2)]),
            None,
            None
        ]
    );

    let mut event = store(3);
    event.parent_block_hash = Some(EngineHash(9));
    event.lora.name = Some("ad1".into());
    event.extra_keys = Some(vec![
        vec![text("ad1")],
        vec![text("ad1"), item(0)],
        vec![text("ad1")],
    ]);
    let stored = update(event).unwrap();
    assert_eq!(stored.media, [None, MediaHash::of([("image", 0)])]);
    assert_eq!(update(store(2)).unwrap().media, []);
}

#[test]
fn blocks_before_an_unknown_input_count() {
    for unknown in [ExtraKey::Digest(vec![7]), ExtraKey::Other] {
        let mut event = store(3);
        event.extra_keys = Some(vec![
            vec![text("salt")],
            vec![ExtraKey::Item("image".into(), 3)],
            vec![ExtraKey::Item("image".into(), -1), unknown],
        ]);
        let stored = update(event).unwrap();
        assert_eq!(stored.hashes, [EngineHash(1), EngineHash(2)]);
        assert_eq!(stored.tokens.len(), 8);
        assert_eq!(stored.media, [None, MediaHash::of([("image", 3)])]);
        assert_eq!(stored.salt.as_deref(), Some("salt"));
    }
}

#[test]
fn a_bare_string_is_a_salt_only_in_a_salt_position() {
    // The position behind the adapter's name.
    let mut event = store(1);
    event.lora.name = Some("ad1".into());
    event.extra_keys = Some(vec![vec![text("ad1"), text("salt")]]);
    let stored = update(event).unwrap();
    assert_eq!(
        (stored.lora.as_deref(), stored.salt.as_deref()),
        (Some("ad1"), Some("salt"))
    );
    // A salt that equals an adapter's name is still a salt: no adapter is named.
    let mut event = store(1);
    event.extra_keys = Some(vec![vec![text("ad1")]]);
    let stored = update(event).unwrap();
    assert_eq!(
        (stored.lora.as_deref(), stored.salt.as_deref()),
        (None, Some("ad1"))
    );
    // In the middle of a sequence a string can only be a multimodal item, whose place is unknown.
    let mut event = store(1);
    event.parent_block_hash = Some(EngineHash(9));
    event.extra_keys = Some(vec![vec![text("image")]]);
    assert_eq!(update(event), Err(IgnoredReason::Multimodal));
}

#[test]
fn a_block_that_is_its_own_parent_is_skipped() {
    let mut event = store(2);
    event.block_hashes[1] = event.block_hashes[0];
    assert_eq!(update(event), Err(IgnoredReason::SelfReference));
    let mut event = store(2);
    event.parent_block_hash = Some(event.block_hashes[1]);
    assert_eq!(update(event), Err(IgnoredReason::SelfReference));
}

#[test]
fn a_store_with_more_tokens_than_blocks_is_refused() {
    let mut event = store(2);
    event.block_hashes.pop();
    assert_eq!(update(event), Err(IgnoredReason::SkippedBlocks));
}

#[test]
fn lookahead_changes_only_the_engine_hash() {
    let mut event = store(1);
    event.lookahead_token_ids = Some(vec![vec![17]]);
    assert_eq!(update(event.clone()), update(store(1)));
}

#[test]
#[contract("V20")]
fn remote_media_are_the_remote_tier() {
    assert_eq!(
        Medium::parse(Some("STORAGE"), Some("REMOTE")),
        Medium::Known(Tier::Remote)
    );
    assert_eq!(
        Medium::parse(Some("STORAGE"), Some("LOCAL")),
        Medium::Known(Tier::Disk)
    );
    assert_eq!(
        Medium::parse(Some("GPU"), Some("REMOTE")),
        Medium::Known(Tier::Device)
    );
    assert_eq!(
        Medium::parse(Some("floppy"), Some("REMOTE")),
        Medium::Unlisted
    );
}

#[test]
fn a_placeholder_on_the_device_is_ignored() {
    let placeholder = |medium: Option<&str>, blocks: u64| BlockStored {
        token_ids: WireTokens::default(),
        block_size: 0,
        location: BlockLocation {
            medium: medium.map(Into::into),
            ..BlockLocation::default()
        },
        ..store(blocks)
    };
    for medium in [None, Some("GPU")] {
        assert_eq!(update(placeholder(medium, 2)), Err(IgnoredReason::NoTokens));
    }
    assert_eq!(
        update(placeholder(Some("CPU"), 0)),
        Err(IgnoredReason::NoTokens)
    );
    // In another tier it means that these blocks are also there, whatever its block size.
    for (medium, block_size, tier) in [
        ("CPU", 0, Tier::Host),
        ("FS", 16, Tier::Disk),
        ("tape", 0, Tier::Disk),
    ] {
        let event = BlockStored {
            block_size,
            ..placeholder(Some(medium), 2)
        };
        let named = NamedBlocks {
            hashes: vec![EngineHash(1), EngineHash(2)],
            tier,
        };
        assert_eq!(
            to_update(&VllmEvent::Stored(Box::new(event))),
            Ok(IndexUpdate::Named(named))
        );
    }
    // Of a group that does not hold every token even the hashes are useless.
    let mut event = placeholder(Some("CPU"), 1);
    event.group.idx = Some(3);
    assert_eq!(update(event), Err(IgnoredReason::NotFullAttention));
}
