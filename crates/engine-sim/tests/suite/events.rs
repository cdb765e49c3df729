//! KV events over real sockets: publication, replay and faults.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use engine_sim::RunningEngine;
use http::Method;
use kv_blocks::{BlockSize, EngineHash, IndexUpdate, Tier};
use kv_events::{
    frames::{self, ReplayFrame},
    vllm,
};
use serde_json::{Value, json};
use zmtp::{Dealer, Limits, Sub, SubEvent};

use crate::support::{chat, engine, eventually, get, long_text, post, request, send, stats};

/// A reader of one rank's live stream.
struct LiveReader {
    sub: Sub,
}

type NumberedBatch = (u64, Bytes);

impl LiveReader {
    /// Waits until the publisher has the subscription: each probe costs one batch, which is read
    /// and dropped.
    async fn connect(engine: &RunningEngine, rank: usize) -> Self {
        let endpoint = engine.events[rank].parse().unwrap();
        let mut reader = Self {
            sub: Sub::connect(&endpoint, &[b""], Limits::default()).unwrap(),
        };
        let mut probes = 0u32;
        loop {
            // A unique prompt makes one batch.
            probes += 1;
            let prompt: Vec<u32> = (0..40).map(|index| 500 + probes * 7 + index).collect();
            let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 1});
            let headers = [("x-data-parallel-rank", rank.to_string())];
            let headers: Vec<_> = headers
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            send(
                engine,
                request(Method::POST, "/v1/completions", &headers, &body),
            )
            .await
            .unwrap();
            let last = stats(engine).await["ranks"][rank]["last_seq"]
                .as_u64()
                .unwrap();
            if let Some((mut seq, _)) = reader.next_within(Duration::from_millis(200)).await {
                while seq < last {
                    seq = reader.next().await.0;
                }
                return reader;
            }
            assert!(probes < 50, "the subscription never took effect");
        }
    }

    async fn next_within(&mut self, time: Duration) -> Option<NumberedBatch> {
        tokio::time::timeout(time, async {
            loop {
                if let SubEvent::Message { frames, .. } = self.sub.next().await {
                    let live = frames::live(&frames).unwrap();
                    return (live.seq.unwrap(), Bytes::copy_from_slice(live.payload));
                }
            }
        })
        .await
        .ok()
    }

    async fn next(&mut self) -> NumberedBatch {
        self.next_within(Duration::from_secs(60))
            .await
            .expect("a batch in time")
    }

    /// Reads up to the last batch that the engine has published.
    async fn up_to(&mut self, last: u64) -> Vec<NumberedBatch> {
        let mut batches: Vec<NumberedBatch> = Vec::new();
        while batches.last().is_none_or(|(seq, _)| *seq < last) {
            batches.push(self.next().await);
        }
        batches
    }
}

async fn replayed(engine: &RunningEngine, rank: usize, start: u64) -> Vec<NumberedBatch> {
    let endpoint = engine.replay[rank].parse().unwrap();
    let mut dealer = Dealer::connect(&endpoint, Limits::default(), Duration::from_secs(60))
        .await
        .unwrap();
    dealer.send(&frames::replay_request(start)).await.unwrap();
    let mut batches = Vec::new();
    loop {
        let answer = tokio::time::timeout(Duration::from_secs(60), dealer.recv())
            .await
            .unwrap()
            .unwrap();
        match frames::replay(&answer).unwrap() {
            ReplayFrame::Batch { seq, payload } => {
                batches.push((seq, Bytes::copy_from_slice(payload)))
            }
            ReplayFrame::End => return batches,
        }
    }
}

fn updates(payload: &[u8]) -> Vec<IndexUpdate> {
    let batch = vllm::decode(payload).unwrap();
    batch
        .events
        .iter()
        .map(|event| vllm::to_update(event.as_ref().unwrap()).unwrap())
        .collect()
}

async fn last_seq(engine: &RunningEngine) -> u64 {
    stats(engine).await["last_seq"]
        .as_u64()
        .expect("something was published")
}

async fn disturb(engine: &RunningEngine, action: &str) {
    let reply = post(engine, "/sim/events", &json!({"action": action})).await;
    assert_eq!(reply.status, 200, "{reply:?}");
}

/// Makes the engine publish one batch.
async fn one_batch(engine: &RunningEngine, kind: u32) {
    let prompt: Vec<u32> = (0..40).map(|index| 1_000 + kind * 10 + index).collect();
    post(
        engine,
        "/v1/completions",
        &json!({"model": "sim", "prompt": prompt, "max_tokens": 1}),
    )
    .await;
}

#[tokio::test]
async fn a_chats_blocks_are_published_and_decode_to_its_tokens() {
    for format in ["map", "array"] {
        for hashes in ["int", "bytes"] {
            let engine = engine(&format!("--event-format {format} --hash-format {hashes}")).await;
            let mut reader = LiveReader::connect(&engine, 0).await;
            let before = last_seq(&engine).await;
            let mut body = chat(&long_text(50), 20);
            body["return_token_ids"] = json!(true);
            body["cache_salt"] = json!("tenant-a");
            let reply = post(&engine, "/v1/chat/completions", &body).await.json();
            let batches = reader.up_to(last_seq(&engine).await).await;
            let seqs: Vec<u64> = batches.iter().map(|(seq, _)| *seq).collect();
            assert_eq!(
                seqs,
                (before + 1..=before + seqs.len() as u64).collect::<Vec<_>>()
            );

            let (mut tokens, mut parent) = (Vec::new(), None);
            for update in batches.iter().flat_map(|(_, payload)| updates(payload)) {
                let IndexUpdate::Stored(stored) = update else {
                    panic!("nothing was evicted: {update:?}")
                };
                assert_eq!((stored.parent, stored.tier), (parent, Tier::Device));
                assert_eq!(stored.block_size, BlockSize::new(16).unwrap());
                assert_eq!(
                    stored.salt.as_deref(),
                    parent.is_none().then_some("tenant-a")
                );
                tokens.extend(stored.tokens);
                parent = stored.hashes.last().copied();
            }
            let ids = |value: &Value| -> Vec<u32> {
                value
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
                    .collect()
            };
            let mut sequence = ids(&reply["prompt_token_ids"]);
            sequence.extend(ids(&reply["choices"][0]["token_ids"]));
            // The last token's KV is never computed.
            sequence.truncate((sequence.len() - 1) / 16 * 16);
            assert_eq!(tokens, sequence, "{format} {hashes}");
            engine.stop().await;
        }
    }
}

#[tokio::test]
async fn replay_from_zero_equals_the_live_batches() {
    for form in ["new", "old"] {
        let engine = engine(&format!("--replay-format {form} --topic kv@sim")).await;
        let mut reader = LiveReader::connect(&engine, 0).await;
        let first = last_seq(&engine).await + 1;
        for kind in 0..5 {
            one_batch(&engine, kind).await;
        }
        let live = reader.up_to(last_seq(&engine).await).await;
        let all = replayed(&engine, 0, 0).await;
        assert_eq!(all.first().unwrap().0, 0);
        assert_eq!(all[usize::try_from(first).unwrap()..], live);
        assert_eq!(replayed(&engine, 0, first).await, live);
        assert_eq!(replayed(&engine, 0, 1_000).await, []);
        engine.stop().await;
    }
}

#[tokio::test]
async fn the_buffer_keeps_the_last_batches_only() {
    let engine = engine("--buffer-steps 3").await;
    for kind in 0..6 {
        one_batch(&engine, kind).await;
    }
    let seqs: Vec<u64> = replayed(&engine, 0, 0)
        .await
        .iter()
        .map(|(seq, _)| *seq)
        .collect();
    assert_eq!(seqs, [3, 4, 5]);
    engine.stop().await;
}

/// A counting listener ends with exactly the blocks that the engine reports.
async fn counted(engine: &RunningEngine) -> BTreeMap<(Tier, EngineHash), i64> {
    let mut counts = BTreeMap::<_, i64>::new();
    for update in replayed(engine, 0, 0)
        .await
        .iter()
        .flat_map(|(_, payload)| updates(payload))
    {
        match update {
            IndexUpdate::Stored(stored) => {
                for hash in stored.hashes {
                    *counts.entry((stored.tier, hash)).or_default() += 1;
                }
            }
            IndexUpdate::Removed(removed) => {
                for hash in removed.hashes {
                    let count = counts
                        .get_mut(&(removed.tier, hash))
                        .expect("only stored blocks are removed");
                    *count -= 1;
                }
            }
            IndexUpdate::Cleared => counts.clear(),
            IndexUpdate::Named(_) | IndexUpdate::ClearedTier(_) => {
                panic!("the engine describes whatever it stores")
            }
        }
    }
    counts.retain(|_, count| *count > 0);
    counts
}

#[tokio::test]
async fn eviction_publishes_removals_and_the_host_tier_takes_over() {
    for (flags, host) in [
        ("--kv-blocks 12", false),
        ("--kv-blocks 12 --host-blocks 100", true),
    ] {
        let engine = engine(flags).await;
        let prompt = |kind: u32| -> Vec<u32> { (0..100).map(|index| kind * 300 + index).collect() };
        let complete = async |kind: u32| {
            let body = json!({"model": "sim", "prompt": prompt(kind), "max_tokens": 1});
            let reply = post(&engine, "/v1/completions", &body).await.json();
            reply["usage"]["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .unwrap()
        };
        for kind in 0..5 {
            assert_eq!(complete(kind).await, 0);
        }
        assert_eq!(
            complete(0).await > 0,
            host,
            "only the host tier still has it"
        );
        let counts = counted(&engine).await;
        let device = counts
            .iter()
            .filter(|((tier, _), _)| *tier == Tier::Device)
            .map(|(_, count)| *count)
            .sum::<i64>();
        assert_eq!(
            device,
            stats(&engine).await["blocks_cached"].as_i64().unwrap()
        );
        assert!(device <= 12);
        assert_eq!(counts.keys().any(|(tier, _)| *tier == Tier::Host), host);
        engine.stop().await;
    }
}

#[tokio::test]
async fn a_clear_is_published_with_the_next_request() {
    let engine = engine("").await;
    one_batch(&engine, 0).await;
    assert_eq!(
        post(&engine, "/reset_prefix_cache", &Value::Null)
            .await
            .json(),
        json!({"success": true})
    );
    assert_eq!(last_seq(&engine).await, 0);
    one_batch(&engine, 0).await;
    let all = replayed(&engine, 0, 1).await;
    assert_eq!(all.len(), 1);
    let updates = updates(&all[0].1);
    assert_eq!(updates[0], IndexUpdate::Cleared);
    assert!(matches!(updates[1], IndexUpdate::Stored(_)));
    engine.stop().await;
}

#[tokio::test]
async fn the_endpoints_are_reported_and_each_rank_has_its_own() {
    let engine = engine("--dp-size 2 --topic t").await;
    let sources = get(&engine, "/kv_event_sources").await.json();
    for rank in 0..2 {
        let source = &sources[rank.to_string()];
        assert_eq!(source["endpoint"], engine.events[rank]);
        assert_eq!(source["replay_endpoint"], engine.replay[rank]);
        assert_eq!(
            (&source["topic"], &source["buffer_steps"]),
            (&json!("t"), &json!(10_000))
        );
    }
    assert_ne!(engine.events[0], engine.events[1]);
    let mut reader = LiveReader::connect(&engine, 1).await;
    let headers = [("x-data-parallel-rank", "1")];
    let body = chat(&long_text(50), 1);
    send(
        &engine,
        request(Method::POST, "/v1/chat/completions", &headers, &body),
    )
    .await
    .unwrap();
    assert_eq!(
        vllm::decode(&reader.next().await.1).unwrap().dp_rank,
        Some(1)
    );
    engine.stop().await;
}

#[tokio::test]
async fn unix_sockets_carry_events_too() {
    let dir = std::env::temp_dir().join(format!("engine-sim-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (events, replay) = (dir.join("events"), dir.join("replay"));
    let flags = format!(
        "--kv-events ipc://{} --replay ipc://{}",
        events.display(),
        replay.display()
    );
    let engine = engine(&flags).await;
    let mut reader = LiveReader::connect(&engine, 0).await;
    one_batch(&engine, 0).await;
    let (seq, _) = reader.next().await;
    assert_eq!(seq, last_seq(&engine).await);
    assert!(!replayed(&engine, 0, 0).await.is_empty());
    engine.stop().await;
    let _ = std::fs::remove_dir_all(dir);
}

#[tokio::test]
async fn live_messages_can_be_lost_doubled_swapped_corrupted_and_held_but_replay_has_them_all() {
    let engine = engine("").await;
    let mut reader = LiveReader::connect(&engine, 0).await;
    let base = last_seq(&engine).await + 1;
    let mut kind = 0;
    let mut batches = async |count: u32| {
        for _ in 0..count {
            kind += 1;
            one_batch(&engine, kind).await;
        }
    };
    disturb(&engine, "drop:1").await;
    batches(2).await;
    assert_eq!(reader.next().await.0, base + 1, "one is lost");
    disturb(&engine, "duplicate:1").await;
    batches(1).await;
    assert_eq!(reader.next().await, reader.next().await);
    disturb(&engine, "reorder:2").await;
    batches(2).await;
    assert_eq!(
        (reader.next().await.0, reader.next().await.0),
        (base + 4, base + 3)
    );
    disturb(&engine, "corrupt:1").await;
    batches(1).await;
    let (seq, payload) = reader.next().await;
    assert_eq!(seq, base + 5);
    assert!(vllm::decode(&payload).is_err());
    disturb(&engine, "pause").await;
    batches(2).await;
    assert!(
        reader
            .next_within(Duration::from_millis(100))
            .await
            .is_none()
    );
    disturb(&engine, "resume").await;
    assert_eq!(
        (reader.next().await.0, reader.next().await.0),
        (base + 6, base + 7)
    );

    let all = replayed(&engine, 0, base).await;
    assert_eq!(
        all.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(),
        (base..base + 8).collect::<Vec<_>>()
    );
    assert!(all.iter().all(|(_, payload)| vllm::decode(payload).is_ok()));
    assert_eq!(
        post(&engine, "/sim/events", &json!({"action": "explode"}))
            .await
            .status,
        400
    );
    engine.stop().await;
}

#[tokio::test]
async fn a_restart_disconnects_readers_empties_the_cache_and_counts_from_zero() {
    let engine = engine("").await;
    let mut reader = LiveReader::connect(&engine, 0).await;
    one_batch(&engine, 0).await;
    reader.next().await;
    disturb(&engine, "restart").await;
    let gone = async { while !matches!(reader.sub.next().await, SubEvent::Disconnected { .. }) {} };
    tokio::time::timeout(Duration::from_secs(60), gone)
        .await
        .expect("the connection was cut");
    assert_eq!(stats(&engine).await["blocks_cached"], 0);
    one_batch(&engine, 0).await;
    assert_eq!(last_seq(&engine).await, 0);
    eventually("replay answers again", || async {
        replayed(&engine, 0, 0).await.len() == 1
    })
    .await;
    engine.stop().await;
}

#[tokio::test]
async fn steps_that_finish_while_the_engine_restarts_are_in_the_new_stream() {
    let engine = engine("").await;
    for round in 0..20 {
        // A request that runs while the engine dies is cut off.
        let send = async |kind: u32| {
            let prompt: Vec<u32> = (0..40)
                .map(|index| 1_000 + (round * 100 + kind) * 10 + index)
                .collect();
            let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 1});
            let _ = send(
                &engine,
                request(Method::POST, "/v1/completions", &[], &body),
            )
            .await;
        };
        let requests = (0..8).map(&send);
        // The restart happens during the requests, and some of them follow it.
        tokio::join!(
            futures_util::future::join_all(requests),
            disturb(&engine, "restart"),
            async {
                for kind in 50..58 {
                    send(kind).await;
                }
            }
        );
        let counts = counted(&engine).await;
        let announced = counts.values().sum::<i64>();
        assert_eq!(
            announced,
            stats(&engine).await["blocks_cached"].as_i64().unwrap(),
            "round {round}"
        );
    }
    engine.stop().await;
}

#[tokio::test]
async fn events_are_published_before_the_last_byte_of_the_reply() {
    let engine = engine("").await;
    one_batch(&engine, 0).await;
    assert_eq!(stats(&engine).await["published_batches"], 1);
    assert_eq!(replayed(&engine, 0, 0).await.len(), 1);
    engine.stop().await;
}
