//! Prompts of token ids with images: their blocks are those that the engine announced for the same
//! images.

use contract_id::contract;
use serde_json::{Value, json};

use crate::{
    event_publisher::{PublishedWorker, recorded},
    harness::{RawClient, RouterQueries as _, eventually},
};

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
    let workers = PublishedWorker::start().await;
    let (mut publisher, router) = (workers.publisher, workers.router);
    let dry_run = |body: &Value| {
        let reply = RawClient::post(&router.data(), "/v1/route", body.to_string().as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let decision = reply.json();
        let rows = decision["candidates"].as_array().expect("candidates");
        let row = rows.iter().find(|row| row["target"]["worker"] == "a");
        row.expect("its row")["warm_tokens"]["device"].clone()
    };
    // Blocks of 16 tokens, 1 to 32, with an item from token 4 on and one from 25 on.
    publisher.publish_payload("", &recorded("vllm_0_24_mm_extra_keys"));
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
