//! Prompts of token ids with images: their blocks are those that the engine announced for the same
//! images.

use std::path::Path;

use contract_id::contract;
use serde_json::{Value, json};

use crate::{
    event_publisher::EventPublisher,
    harness::{Program, RawClient, RouterQueries as _, eventually},
};

/// A recorded batch: blocks of 16 tokens, 1 to 32, with an item from token 4 on and one from 25 on.
fn recorded() -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/kv_events");
    std::fs::read(folder.join("vllm_0_24_mm_extra_keys.msgpack")).expect("the fixture exists")
}

/// A request whose second item has this hash.
fn body(second: &str) -> Value {
    json!({
        "model": "sim",
        "token_ids": (1..=40).collect::<Vec<u32>>(),
        "sampling_params": {"max_tokens": 2},
        "features": {
            "mm_hashes": {"image": ["9f2c1d6e0b", second]},
            "mm_placeholders": {"image": [{"offset": 4, "length": 20}, {"offset": 25, "length": 10}]},
            "kwargs_data": null,
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
#[contract("D2", "V6")]
async fn a_prompt_with_images_finds_the_blocks_of_the_same_images_only() {
    let mut publisher = EventPublisher::start().await;
    let engines = [(); 2].map(|()| Program::engine(&["--no-kv-events", "--speed", "20"]));
    let yaml = format!(
        "workers:\n  - {{name: a, url: \"{}\", kv_events: {{endpoint: \"{}\"}}}}\n  - {{name: b, url: \"{}\", kv_events: {{source: none}}}}\n",
        engines[0].url(),
        publisher.endpoint(),
        engines[1].url()
    );
    let router = Program::serve_with(&yaml, &[], &["--policy", "kv-aware"]).ready(2);
    publisher.subscribed(1).await;
    let dry_run = |body: &Value| {
        let reply = RawClient::post(&router.data(), "/v1/route", body.to_string().as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let decision = reply.json();
        let rows = decision["candidates"].as_array().expect("candidates");
        let row = rows.iter().find(|row| row["target"]["worker"] == "a");
        row.expect("its row")["warm_tokens"]["device"].clone()
    };
    publisher.publish_payload("", &recorded());
    eventually("the blocks to be known", || {
        (dry_run(&body("77aa01b2c3")) == 32).then_some(())
    });
    assert_eq!(dry_run(&body("another")), 16, "the second image is new");
    let mut text = body("77aa01b2c3");
    text["features"] = Value::Null;
    assert_eq!(dry_run(&text), 0, "the same tokens without images");

    for (second, want) in [("77aa01b2c3", "32"), ("another", "16")] {
        let body = body(second).to_string();
        let headers = [("x-warmroute-worker", "a")];
        let path = "/inference/v1/generate";
        let reply = RawClient::post_with(&router.data(), path, &headers, body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let predicted = reply.header("x-warmroute-predicted-cached-tokens");
        assert_eq!(predicted, Some(want));
        let receipt = router.receipt_of(&reply);
        assert_eq!(receipt["prompt"]["source"], "given", "{receipt:#}");
    }
}
