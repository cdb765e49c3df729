//! Each request body in the API's document is accepted unchanged and answered as documented.

use std::fs;

use contract_id::contract;
use kv_blocks::{BlockSize, HashScheme};
use serde_json::{Value, json};

use crate::indexer_fixture::{
    IndexerFixture, StoredSequence, TestPublisher, engine, on_gpu, query,
};

fn sample(name: &str) -> Value {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/conductor_samples.json"
    );
    let all: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let sample = all["samples"][name].clone();
    assert!(sample.is_object(), "{name}");
    sample
}

#[tokio::test]
#[contract("MC1", "MC2")]
async fn register_and_unregister_replies_equal_the_samples() {
    let fixture = IndexerFixture::open();
    let mut registration = sample("register_request");
    // The document has hosts of the internet; a registration connects at once, and tests stay on
    // this machine.
    for (field, port) in [("endpoint", 1), ("replay_endpoint", 2)] {
        assert!(registration[field].as_str().unwrap().starts_with("tcp://"));
        registration[field] = json!(format!("tcp://127.0.0.1:{port}"));
    }
    assert_eq!(
        fixture.post_ok("/register", &registration).await,
        sample("register_response")
    );
    let services = fixture.get("/services").await;
    let [service] = services["services"].as_array().unwrap().as_slice() else {
        panic!("{services}")
    };
    for (field, value) in registration.as_object().unwrap() {
        assert_eq!(service[field], *value, "{field}");
    }
    assert_eq!(service["state"], "connecting");
    assert_eq!(
        fixture
            .post_ok("/unregister", &sample("unregister_request"))
            .await,
        sample("unregister_response")
    );
    assert_eq!(fixture.get("/services").await, json!({"services": []}));
}

/// Registers a real publisher as in the sample, and stores its blocks.
async fn registered(fixture: &IndexerFixture, rank: u32, block_size: u32) -> TestPublisher {
    let publisher = TestPublisher::bind().await;
    let mut registration = sample("register_request");
    registration["endpoint"] = json!(publisher.endpoint);
    registration["replay_endpoint"] = Value::Null;
    registration["dp_rank"] = json!(rank);
    registration["block_size"] = json!(block_size);
    fixture.post_ok("/register", &registration).await;
    publisher.until_followed_by(1).await;
    publisher
}

#[tokio::test]
#[contract("MC3", "MC4", "MC11")]
async fn the_sample_query_gets_the_sample_reply_for_the_sample_content() {
    let fixture = IndexerFixture::open();
    let tokens: Vec<u32> = (0..300).collect();
    let (first, second) = (
        registered(&fixture, 0, 64).await,
        registered(&fixture, 1, 64).await,
    );
    first.store(&StoredSequence {
        tokens: &tokens[..128],
        block_size: 64,
        ..StoredSequence::default()
    });
    second.store(&StoredSequence {
        tokens: &tokens[..256],
        block_size: 64,
        medium: "CPU",
        ..StoredSequence::default()
    });
    // Five tokens are no block of 64: the sample's own prompt matches nothing.
    let mut request = sample("query_request");
    let node = json!({"longest_matched": 0, "GPU": 0, "DP": {"0": 0, "1": 0}, "CPU": 0, "DISK": 0});
    assert_eq!(
        fixture.post_ok("/query", &request).await,
        json!({"default": {"vllm-prefill-node1": node}})
    );
    request["token_ids"] = json!(tokens);
    fixture
        .until("/query", &request, &sample("query_response"))
        .await;
}

#[tokio::test]
#[contract("MC5", "MC7", "MC13")]
async fn the_sample_query_by_hash_finds_blocks_by_their_plain_sequence_hashes() {
    let fixture = IndexerFixture::open();
    let tokens: Vec<u32> = (0..128).collect();
    let publisher = registered(&fixture, 0, 64).await;
    publisher.store(&StoredSequence {
        tokens: &tokens,
        block_size: 64,
        ..StoredSequence::default()
    });
    let mut request = sample("query_by_hash_request");
    let row = |tokens: u32| {
        let row = json!({"longest_matched": tokens, "GPU": tokens, "DP": {"0": tokens}, "CPU": 0, "DISK": 0});
        json!({"default": {"vllm-prefill-node1": row}})
    };
    assert_eq!(fixture.post_ok("/query_by_hash", &request).await, row(0));
    let chain = HashScheme::default().chain(None, &tokens, BlockSize::new(64).unwrap());
    // With the default seed these are hashes as in the published vectors: without adapter and salt.
    request["seq_hashes"] = chain.iter().map(|hash| Value::from(hash.0)).collect();
    fixture.until("/query_by_hash", &request, &row(128)).await;
    request["seq_hashes"] = chain
        .iter()
        .map(|hash| Value::from(hash.0.to_string()))
        .collect();
    assert_eq!(fixture.post_ok("/query_by_hash", &request).await, row(128));
    request["seq_hashes"] = Value::Null;
    request["block_hash"] = json!([chain[0].0, 1]);
    assert_eq!(fixture.post_ok("/query_by_hash", &request).await, row(64));
}

#[tokio::test]
#[contract("MC4", "MC8", "MC13")]
async fn the_sample_content_in_events_of_the_standard_gets_the_sample_reply() {
    let fixture = IndexerFixture::open();
    let tokens: Vec<u32> = (0..300).collect();
    let chain = HashScheme::default().chain(None, &tokens[..256], BlockSize::new(64).unwrap());
    let mut publishers = Vec::new();
    for (rank, blocks, medium) in [(0, 2, "gpu"), (1, 4, "cpu")] {
        let publisher = registered(&fixture, rank, 64).await;
        let mut event = sample("event_stored");
        let hashes: Vec<u64> = chain[..blocks].iter().map(|hash| hash.0).collect();
        for (field, value) in [
            ("model_name", json!("deepseek")),
            ("lora_name", json!("sql-adapter")),
            ("additional_salt", json!("w8a8")),
            ("medium", json!(medium)),
            ("dp_rank", json!(rank)),
            ("seq_hashes", json!(hashes)),
            ("base_block_idx", json!(0)),
            ("parent_hash", Value::Null),
        ] {
            assert!(event.get(field).is_some(), "the sample has a {field}");
            event[field] = value;
        }
        publisher.send(event.to_string().as_bytes());
        let mut request = sample("query_request");
        request["token_ids"] = json!(tokens);
        let row =
            json!({"longest_matched": 128, "GPU": 128, "DP": {"0": 128}, "CPU": 0, "DISK": 0});
        let expected = if rank == 0 {
            json!({"default": {"vllm-prefill-node1": row}})
        } else {
            sample("query_response")
        };
        fixture.until("/query", &request, &expected).await;
        request["token_ids"] = Value::Null;
        request["seq_hashes"] = chain.iter().map(|hash| Value::from(hash.0)).collect();
        assert_eq!(fixture.post_ok("/query_by_hash", &request).await, expected);
        publishers.push(publisher);
    }
}

#[tokio::test]
#[contract("MC8", "MC9", "MC13")]
async fn the_sample_events_are_followed_in_their_order() {
    let fixture = IndexerFixture::open();
    let publisher = TestPublisher::bind().await;
    let of_model = json!({"modelname": "llama-3.1-8b", "block_size": 64});
    let registration = engine(&publisher.endpoint, "i", &of_model);
    fixture.post_ok("/register", &registration).await;
    publisher.until_followed_by(1).await;
    // The sample stores blocks behind five others.
    let mut before = sample("event_stored");
    let stored = before["seq_hashes"].clone();
    before["event_id"] = json!(41);
    before["seq_hashes"] = json!([1, 2, 3, 4, before["parent_hash"]]);
    (before["base_block_idx"], before["parent_hash"]) = (json!(0), Value::Null);
    let mut request = query(&[], &json!({"model": "llama-3.1-8b", "block_size": 64}));
    let mut hashes = before["seq_hashes"].as_array().unwrap().clone();
    hashes.extend(stored.as_array().unwrap().clone());
    request["token_ids"] = Value::Null;
    request["seq_hashes"] = json!(hashes);
    for (event, blocks) in [
        (before, 5),
        (sample("event_stored"), 8),
        (sample("event_removed"), 7),
        (sample("event_cleared"), 0),
    ] {
        publisher.send(event.to_string().as_bytes());
        let expected = json!({"default": {"i": on_gpu(64 * blocks)}});
        fixture.until("/query_by_hash", &request, &expected).await;
    }
}
