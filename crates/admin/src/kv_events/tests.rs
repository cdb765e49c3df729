//! A subscriber from its reader's side.

mod follower_index;

use std::{sync::Arc, time::Duration};

use contract_id::contract;
use futures_util::{Stream, StreamExt};
use kv_blocks::{
    BlockSize, DpRank, EngineHash, IndexUpdate, NamedBlocks, RemovedBlocks, StoredBlocks, Target,
    Tier, WorkerId,
};
use kv_index::{IndexSettings, KvIndex};
use net::Clock;
use serde_json::{Value, json};

use super::*;

const FORMATS: [&str; 2] = ["continuum", "rfc1527"];

pub(super) fn target(worker: u32) -> Target {
    Target {
        worker: WorkerId(worker),
        rank: DpRank(0),
    }
}

/// An index with workers 0 to 2.
pub(super) fn index() -> Arc<KvIndex> {
    let index = KvIndex::new(IndexSettings {
        memory_budget: 256 << 20,
        ..IndexSettings::default()
    });
    for worker in 0..3 {
        index.register(target(worker), "m".into());
    }
    Arc::new(index)
}

/// Blocks of 4 tokens of a sequence per salt; the engine hash of block n is `n + 1`, with the
/// salt's number beside it.
pub(super) fn stored(salt: u32, blocks: std::ops::Range<u32>, tier: Tier) -> IndexUpdate {
    IndexUpdate::Stored(StoredBlocks {
        hashes: blocks.clone().map(|block| name(salt, block)).collect(),
        parent: blocks.start.checked_sub(1).map(|before| name(salt, before)),
        tokens: (blocks.start * 4..blocks.end * 4).collect(),
        block_size: BlockSize::new(4).unwrap(),
        lora: None,
        media: Vec::new(),
        salt: (salt > 0).then(|| format!("secret{salt}").into()),
        tier,
    })
}

pub(super) fn removed(salt: u32, blocks: std::ops::Range<u32>, tier: Tier) -> IndexUpdate {
    IndexUpdate::Removed(RemovedBlocks {
        hashes: blocks.map(|block| name(salt, block)).collect(),
        tier,
    })
}

fn name(salt: u32, block: u32) -> EngineHash {
    EngineHash(u64::from(salt) << 32 | u64::from(block + 1))
}

/// The stream of a subscriber with this query; worker 3 is unknown.
pub(super) fn subscribe_to(
    index: &Arc<KvIndex>,
    query: &[(&str, &str)],
) -> impl Stream<Item = String> + use<> {
    let raw = json!(
        query
            .iter()
            .copied()
            .collect::<std::collections::HashMap<_, _>>()
    );
    let query =
        StreamQuery::try_from(serde_json::from_value::<RawStreamQuery>(raw).unwrap()).unwrap();
    let list_workers = || {
        (0..3)
            .map(|worker| (WorkerId(worker), format!("w{worker}").into()))
            .collect()
    };
    let names = SubscriberNames::new(Box::new(list_workers), query.worker.clone());
    let [subscribers, snapshots] = [(); 2].map(|()| Arc::new(Semaphore::new(1)));
    let permit = SubscriberPermit::new(subscribers.try_acquire_owned().unwrap(), snapshots);
    let follower = Follower::new(index, Clock::system(), names, &query, permit).unwrap();
    events(follower).map(|bytes| String::from_utf8(bytes.unwrap().to_vec()).unwrap())
}

/// Collects events until there is none for a second; the flag is true at the end of the stream.
pub(super) async fn all_of(events: &mut (impl Stream<Item = String> + Unpin)) -> (String, bool) {
    let mut text = String::new();
    loop {
        match tokio::time::timeout(Duration::from_secs(1), events.next()).await {
            Ok(Some(chunk)) => text.push_str(&chunk),
            Ok(None) => return (text, true),
            Err(_) => return (text, false),
        }
    }
}

/// Name and data of each event, after a check of its form.
pub(super) fn parsed(text: &str) -> Vec<(String, Value)> {
    let mut seen = std::collections::BTreeMap::<String, u64>::new();
    let events = text
        .split_terminator("\n\n")
        .filter(|event| !event.starts_with(':'));
    events
        .map(|event| {
            let lines: Vec<_> = event.lines().collect();
            let (id, lines) = match &lines[..] {
                [id, rest @ ..] if id.starts_with("id: ") => (Some(&id[4..]), rest),
                rest => (None, rest),
            };
            let [name, data] = lines else {
                panic!("a name and data: {event}")
            };
            let (name, data) = (
                name.strip_prefix("event: ").unwrap(),
                data.strip_prefix("data: ").unwrap(),
            );
            if let Some(id) = id {
                let (stream, number) = id.rsplit_once('/').unwrap();
                let next = seen.entry(stream.to_owned()).or_default();
                assert_eq!(
                    number.parse(),
                    Ok(*next),
                    "events of {stream} are numbered in a row"
                );
                *next += 1;
            }
            (name.to_owned(), serde_json::from_str(data).unwrap())
        })
        .collect()
}

#[tokio::test(start_paused = true)]
#[contract("CK44")]
async fn a_block_is_created_offloaded_reloaded_evicted_and_purged() {
    let index = index();
    let mut events = Box::pin(subscribe_to(&index, &[]));
    index.apply(target(1), &stored(0, 0..1, Tier::Device));
    index.apply(
        target(1),
        &IndexUpdate::Named(NamedBlocks {
            hashes: vec![name(0, 0)],
            tier: Tier::Host,
        }),
    );
    index.apply(target(1), &removed(0, 0..1, Tier::Device));
    index.apply(target(1), &stored(0, 0..1, Tier::Device));
    index.apply(target(1), &removed(0, 0..1, Tier::Host));
    index.apply(target(1), &removed(0, 0..1, Tier::Device));
    index.apply(target(1), &stored(0, 0..1, Tier::Device));
    index.clear(target(1));
    let (text, _) = all_of(&mut events).await;
    let names: Vec<_> = parsed(&text).into_iter().map(|(name, _)| name).collect();
    let kinds = [
        "created",
        "offloaded",
        "reloaded",
        "evicted",
        "created",
        "purged",
    ];
    assert_eq!(names, kinds.map(|kind| format!("cache_{kind}")));
}

#[tokio::test(start_paused = true)]
#[contract("CK45")]
async fn a_block_event_has_its_prefix_hash_and_the_tokens_up_to_its_end() {
    let index = index();
    index.apply(target(1), &stored(0, 0..2, Tier::Device));
    let mut events = Box::pin(subscribe_to(&index, &[]));
    index.apply(target(1), &stored(0, 2..3, Tier::Device));
    let (text, ended) = all_of(&mut events).await;
    let hash = kv_blocks::HashScheme::default().chain(
        None,
        &(0..12).collect::<Vec<_>>(),
        BlockSize::new(4).unwrap(),
    )[2];
    let data = format!(
        r#"{{"event":"cache_created","backend":"w1","dp_rank":0,"prefix_hash":"{hash}","token_count":12}}"#
    );
    assert_eq!(
        text,
        format!("id: w1/0/0\nevent: cache_created\ndata: {data}\n\n")
    );
    assert!(!ended);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_was_never_on_the_device_is_reported_as_moved() {
    let index = index();
    let mut events = Box::pin(subscribe_to(&index, &[]));
    index.apply(target(0), &stored(0, 0..1, Tier::Disk));
    let names: Vec<_> = parsed(&all_of(&mut events).await.0)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["cache_created", "cache_offloaded"]);
}

#[tokio::test(start_paused = true)]
#[contract("MC8")]
async fn an_envelope_has_all_fields_of_the_contract() {
    let index = index();
    let mut events = Box::pin(subscribe_to(&index, &[("format", "rfc1527")]));
    index.apply(target(2), &stored(5, 0..2, Tier::Host));
    index.apply(target(2), &removed(5, 1..2, Tier::Host));
    let received = parsed(&all_of(&mut events).await.0);
    let chain = kv_blocks::HashScheme::default().chain(
        None,
        &(0..8).collect::<Vec<_>>(),
        BlockSize::new(4).unwrap(),
    );
    // Keyed by the salt, which this subscriber does not see.
    let namespace = kv_blocks::Namespace {
        model: "m".into(),
        lora: None,
        salt: Some("secret5".into()),
        block_size: BlockSize::new(4).unwrap(),
        identity: kv_blocks::PromptIdentity::Tokens,
    };
    let shown = [0, 1].map(|block| kv_index::shown_hash(&namespace, chain[block]));
    assert_ne!(shown[0], chain[0]);
    let envelope = |id: u64, kind: &str, timestamp: &Value| {
        json!({
            "event_id": id, "timestamp": timestamp, "event_type": kind, "model_name": "m", "block_size": 4,
            "additional_salt": kv_index::salt_digest("secret5"), "lora_name": null, "tenant_id": "default",
            "backend_id": "w2", "medium": "cpu", "dp_rank": 0,
        })
    };
    let mut store = envelope(0, "stored", &received[0].1["timestamp"]);
    store["seq_hashes"] = json!([shown[0].0, shown[1].0]);
    store["base_block_idx"] = json!(0);
    store["parent_hash"] = Value::Null;
    store["token_ids"] = Value::Null;
    let mut removal = envelope(1, "removed", &received[1].1["timestamp"]);
    removal["seq_hashes"] = json!([shown[1].0]);
    removal["base_block_idx"] = json!(1);
    assert_eq!(
        received,
        [
            ("cache_created".to_owned(), store),
            ("cache_evicted".to_owned(), removal)
        ]
    );
    assert!(received[0].1["timestamp"].as_u64() > Some(1_600_000_000_000));
}

#[tokio::test(start_paused = true)]
async fn a_long_chain_is_split_into_bounded_envelopes() {
    let index = index();
    let mut events = Box::pin(subscribe_to(&index, &[("format", "rfc1527")]));
    index.apply(target(0), &stored(0, 0..3000, Tier::Device));
    let (text, _) = all_of(&mut events).await;
    assert!(text.split("\n\n").all(|event| event.len() < 64 << 10));
    let received = parsed(&text);
    let mut depth = 0;
    let mut last = Value::Null;
    for (_, data) in &received {
        assert_eq!(
            (&data["base_block_idx"], &data["parent_hash"]),
            (&json!(depth), &last)
        );
        let hashes = data["seq_hashes"].as_array().unwrap();
        depth += hashes.len();
        last = hashes.last().unwrap().clone();
    }
    assert_eq!(depth, 3000);
}

#[tokio::test(start_paused = true)]
async fn the_initial_state_comes_first_on_request_and_its_end_is_marked() {
    for format in FORMATS {
        let index = index();
        index.apply(target(0), &stored(0, 0..5, Tier::Device));
        index.apply(target(1), &stored(0, 0..3, Tier::Device));
        let mut events = Box::pin(subscribe_to(
            &index,
            &[("format", format), ("snapshot", "true"), ("worker", "w0")],
        ));
        let mut received = parsed(&all_of(&mut events).await.0);
        let end = received.pop().unwrap();
        assert_eq!(
            end,
            (
                "snapshot_end".to_owned(),
                json!({"event": "snapshot_end", "blocks": 5})
            )
        );
        assert!(
            !received.is_empty() && received.iter().all(|(name, _)| name == "cache_created"),
            "{received:?}"
        );
        index.apply(target(1), &stored(0, 3..4, Tier::Device));
        index.apply(target(0), &removed(0, 4..5, Tier::Device));
        let later = parsed_later(&all_of(&mut events).await.0);
        assert_eq!(later, ["cache_evicted"], "{format}: of that worker alone");
    }
}

fn parsed_later(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("event: "))
        .map(str::to_owned)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_falls_behind_is_notified_and_disconnected() {
    for format in FORMATS {
        let index = index();
        let mut events = Box::pin(subscribe_to(&index, &[("format", format)]));
        for round in 0..700 {
            // The feed keeps 16 MiB of changes.
            index.apply(target(0), &stored(0, 0..3000, Tier::Device));
            index.apply(target(0), &removed(0, 0..3000, Tier::Device));
            assert!(round < 699 || index.blocks_per_tier(target(0)) == [0; 4]);
        }
        let (text, ended) = all_of(&mut events).await;
        let received = parsed(&text);
        assert_eq!(received.len(), 1);
        assert_eq!(
            (&*received[0].0, received[0].1["lost"].as_u64() > Some(0)),
            ("lagged", true)
        );
        assert!(ended);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_keeps_up_is_not_disconnected_with_a_slow_one() {
    let index = index();
    let mut slow = Box::pin(subscribe_to(&index, &[]));
    let mut awake = Box::pin(subscribe_to(&index, &[("format", "rfc1527")]));
    for _ in 0..700 {
        index.apply(target(0), &stored(0, 0..3000, Tier::Device));
        index.apply(target(0), &removed(0, 0..3000, Tier::Device));
        let (text, ended) = all_of(&mut awake).await;
        assert!(!ended && !text.contains("lagged") && !text.is_empty());
    }
    assert!(all_of(&mut slow).await.1);
}

#[tokio::test(start_paused = true)]
async fn an_idle_stream_sends_comments() {
    let index = index();
    let mut events = Box::pin(subscribe_to(&index, &[]));
    let before = tokio::time::Instant::now();
    assert_eq!(events.next().await.as_deref(), Some(": keep-alive\n\n"));
    assert_eq!(before.elapsed().as_secs(), 15);
}

#[tokio::test(start_paused = true)]
async fn blocks_of_an_unknown_worker_are_not_sent() {
    let index = index();
    index.register(target(7), "m".into());
    let mut events = Box::pin(subscribe_to(&index, &[("snapshot", "true")]));
    index.apply(target(7), &stored(0, 0..2, Tier::Device));
    let received = parsed(&all_of(&mut events).await.0);
    assert_eq!(received.len(), 1, "{received:?}");
}
