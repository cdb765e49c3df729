//! `warmroute indexer` beside two publishers of one instance, an engine and a store, whose streams
//! hold the same blocks in one tier.

use std::{collections::BTreeMap, time::Duration};

use contract_id::contract;
use kv_blocks::{BlockSize, HashScheme};
use kv_events::{
    frames,
    standard::{StandardChange, StandardEvent, StreamKey, encode_msgpack},
};
use serde_json::{Value, json};
use zmtp::{Pub, PubSettings};

use crate::harness::{Program, RawClient, eventually};

const TIMEOUT: Duration = Duration::from_secs(120);

/// A publisher of envelopes of one backend, each medium with numbers of its own.
struct Backend {
    socket: Pub,
    endpoint: String,
    id: &'static str,
    batches: u64,
    events: BTreeMap<&'static str, u64>,
}

impl Backend {
    async fn bind(id: &'static str) -> Self {
        let any = "tcp://127.0.0.1:0".parse().unwrap();
        let (socket, endpoint) = Pub::bind(&any, PubSettings::default()).await.unwrap();
        Self {
            socket,
            endpoint: endpoint.to_string(),
            id,
            batches: 0,
            events: BTreeMap::new(),
        }
    }

    async fn until_followed(&self) {
        let mut subscribers = self.socket.watch_subscribers();
        tokio::time::timeout(TIMEOUT, subscribers.wait_for(|count| *count == 1))
            .await
            .unwrap()
            .unwrap();
    }

    fn send(&mut self, medium: &'static str, change: StandardChange) {
        let number = self.events.entry(medium).or_default();
        *number += 1;
        let event = StandardEvent {
            event_id: *number,
            timestamp_ms: None,
            stream: StreamKey {
                model: Some("m".into()),
                block_size: Some(16),
                tenant: Some("default".into()),
                backend_id: Some(self.id.into()),
                medium: Some(medium.into()),
                ..StreamKey::default()
            },
            change,
            object_key: None,
        };
        let payload = encode_msgpack(&[event]);
        self.socket
            .send(&frames::encode_live(b"", self.batches, &payload));
        self.batches += 1;
    }
}

fn tokens() -> Vec<u32> {
    (1000..1064).collect()
}

fn hashes() -> Vec<u64> {
    let chain = HashScheme::default().chain(None, &tokens(), BlockSize::new(16).unwrap());
    chain.iter().map(|hash| hash.0).collect()
}

fn stored() -> StandardChange {
    StandardChange::Stored {
        seq_hashes: hashes(),
        base_block_idx: Some(0),
        parent_hash: None,
        token_ids: None,
    }
}

/// Removes the last one of the four blocks.
fn removed() -> StandardChange {
    StandardChange::Removed {
        seq_hashes: hashes()[3..].to_vec(),
        base_block_idx: Some(3),
    }
}

fn call(indexer: &Program, path: &str, body: &Value) -> Value {
    let reply = RawClient::post(&indexer.data(), path, body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

#[tokio::test(flavor = "multi_thread")]
#[contract("MC9", "MC8", "MC4", "MC2")]
async fn what_a_stream_announced_stays_until_that_stream_removes_or_clears_it() {
    let indexer = Program::start(&["indexer", "--listen", "127.0.0.1:0"]);
    let (mut engine, mut store) = (
        Backend::bind("engine-0").await,
        Backend::bind("mooncake-1").await,
    );
    for (publisher, kind) in [(&engine, "vLLM"), (&store, "Mooncake")] {
        let body = json!({"endpoint": publisher.endpoint, "type": kind, "modelname": "m", "instance_id": "i",
            "block_size": 16, "dp_rank": 0});
        call(&indexer, "/register", &body);
        publisher.until_followed().await;
    }
    let query = json!({"model": "m", "token_ids": tokens(), "block_size": 16});
    let until = |what: &str, cpu: u32| {
        let row =
            json!({"longest_matched": cpu, "GPU": 0, "DP": {"0": cpu}, "CPU": cpu, "DISK": 0});
        let expected = json!({"default": {"i": row}});
        let mut last = Value::Null;
        eventually(what, || {
            last = call(&indexer, "/query", &query);
            (last == expected).then_some(())
        });
    };
    // An event of each publisher is followed before the next check: its count shows that.
    let applied = |index: usize| {
        let services = RawClient::get(&indexer.data(), "/services").json();
        services["services"][index]["counts"]["events"].as_u64()
    };
    let until_applied = |index: usize, events: u64| {
        eventually("its events", || {
            (applied(index) == Some(events)).then_some(())
        });
    };
    engine.send("cpu", stored());
    until("the engine's blocks", 64);
    store.send("cpu", stored());
    store.send("dram", stored());
    until_applied(1, 2);
    until("blocks of three streams to count once", 64);
    engine.send("cpu", removed());
    until_applied(0, 2);
    until("the block in the store to stay", 64);
    store.send("cpu", StandardChange::Cleared);
    until_applied(1, 3);
    until("the blocks on the store's other medium to stay", 64);
    store.send("dram", removed());
    until("a block without a stream to leave", 48);
    store.send("dram", StandardChange::Cleared);
    until_applied(1, 5);
    until("the engine's other blocks to stay", 48);
    store.send("cpu", stored());
    until("the store's blocks", 64);
    engine.send("cpu", StandardChange::Cleared);
    until_applied(0, 3);
    until("the store's blocks to stay", 64);
    store.send("cpu", removed());
    until("the store's removal", 48);
    call(
        &indexer,
        "/unregister",
        &json!({"instance_id": "i", "dp_rank": 0}),
    );
    assert_eq!(call(&indexer, "/query", &query), json!({}));
}
