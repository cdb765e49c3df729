//! A store beside a routed worker: its blocks count for the worker, in their tier.

use std::time::Duration;

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

fn tokens() -> Vec<u32> {
    (1000..1064).collect()
}

fn batch(event_id: u64, change: StandardChange) -> Vec<Vec<u8>> {
    let event = StandardEvent {
        event_id,
        timestamp_ms: None,
        stream: StreamKey {
            model: Some("sim".into()),
            block_size: Some(16),
            tenant: Some("default".into()),
            backend_id: Some("pool-0".into()),
            medium: Some("dram".into()),
            ..StreamKey::default()
        },
        change,
        object_key: None,
    };
    frames::encode_live(b"", event_id, &encode_msgpack(&[event]))
}

fn stored() -> StandardChange {
    let chain = HashScheme::default().chain(None, &tokens(), BlockSize::new(16).unwrap());
    StandardChange::Stored {
        seq_hashes: chain.iter().map(|hash| hash.0).collect(),
        base_block_idx: Some(0),
        parent_hash: None,
        token_ids: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("MC10", "MC9")]
async fn the_blocks_of_a_store_count_for_the_worker_that_it_is_attached_to() {
    let any = "tcp://127.0.0.1:0".parse().unwrap();
    let (store, endpoint) = Pub::bind(&any, PubSettings::default()).await.unwrap();
    let engines = [&[][..]; 2].map(|flags: &[&str]| Program::engine(flags));
    let yaml = format!(
        "workers:\n  - {{name: a, url: \"http://{}\"}}\n  - {{name: b, url: \"http://{}\", kv_events: {{store: \"{endpoint}\"}}}}\n",
        engines[0].data(),
        engines[1].data()
    );
    let router = Program::serve_with(&yaml, &[], &[]);
    let mut subscribers = store.watch_subscribers();
    tokio::time::timeout(TIMEOUT, subscribers.wait_for(|count| *count == 1))
        .await
        .unwrap()
        .unwrap();
    store.send(&batch(1, stored()));
    let body = json!({"model": "sim", "token_ids": tokens()}).to_string();
    let dry_run = || RawClient::post(&router.data(), "/v1/route", body.as_bytes()).json();
    let host = |receipt: &Value, worker: &str| {
        let rows = receipt["candidates"].as_array()?;
        let row = rows.iter().find(|row| row["target"]["worker"] == worker)?;
        row["warm_tokens"]["host"].as_u64()
    };
    let receipt = eventually("the store's blocks", || {
        Some(dry_run()).filter(|receipt| host(receipt, "b") == Some(64))
    });
    assert_eq!(host(&receipt, "a"), Some(0));
    assert_eq!(receipt["winner"]["worker"], "b", "{receipt:#}");
    store.send(&batch(2, StandardChange::Cleared));
    eventually("the store to be empty", || {
        (host(&dry_run(), "b") == Some(0)).then_some(())
    });
    let streams = RawClient::get(&router.admin(), "/admin/streams").json();
    let of_store = streams["streams"]
        .as_array()
        .unwrap()
        .iter()
        .find(|stream| stream["endpoint"] == endpoint.to_string())
        .unwrap();
    assert_eq!(
        (&of_store["worker"], &of_store["state"]),
        (&json!("b"), &json!("live"))
    );
}
