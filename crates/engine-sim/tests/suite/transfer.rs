//! Prefill on one engine and decode on another.

use contract_id::contract;
use serde_json::{Value, json};

use crate::support::{chat, engine, post, stats};

/// The prefill request of a router.
fn prefill(mut body: Value) -> Value {
    body["max_tokens"] = json!(1);
    body["return_token_ids"] = json!(true);
    body["kv_transfer_params"] = json!({"do_remote_decode": true, "do_remote_prefill": false});
    body
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
#[contract("V39")]
async fn a_decode_engine_takes_over_the_kv_of_a_prefill_engine_without_computing_the_prompt() {
    let (one, other) = (
        engine("--role prefill").await,
        engine("--role decode").await,
    );
    let body = chat(&"word ".repeat(300), 8);
    let offered = post(&one, CHAT, &prefill(body.clone())).await.json();
    assert_eq!(
        offered["kv_transfer_params"]["do_remote_prefill"], true,
        "{offered}"
    );
    let ids = offered["prompt_token_ids"].as_array().expect("ids").len();

    let mut taken = body.clone();
    taken["kv_transfer_params"] = offered["kv_transfer_params"].clone();
    taken["prompt_token_ids"] = offered["prompt_token_ids"].clone();
    let reply = post(&other, CHAT, &taken).await.json();
    assert_eq!(
        reply["usage"]["prompt_tokens_details"]["cached_tokens"],
        ids - 1,
        "{reply}"
    );
    // The reply equals that of a single engine, and the prompt is cached for the next request.
    let alone = post(&engine("").await, CHAT, &body).await.json();
    assert_eq!(
        reply["choices"][0]["message"],
        alone["choices"][0]["message"]
    );
    assert!(stats(&other).await["published_batches"].as_u64() > Some(0));
    assert!(stats(&one).await["published_batches"].as_u64() > Some(0));
}

#[tokio::test]
#[contract("V39")]
async fn blocks_of_another_prompt_and_the_wrong_role_are_rejected() {
    let (one, other) = (
        engine("--role prefill").await,
        engine("--role decode").await,
    );
    let offered = post(&one, CHAT, &prefill(chat("one prompt", 8)))
        .await
        .json()["kv_transfer_params"]
        .clone();
    let status = async |engine, mut body: Value, params: &Value| {
        body["kv_transfer_params"] = params.clone();
        post(engine, CHAT, &body).await.status
    };
    assert_eq!(status(&other, chat("one prompt", 8), &offered).await, 200);
    assert_eq!(
        status(&other, chat("another prompt", 8), &offered).await,
        400
    );
    let mut short = offered.clone();
    short["remote_block_ids"] = json!([]);
    assert_eq!(status(&other, chat("one prompt", 8), &short).await, 400);
    assert_eq!(
        status(
            &other,
            chat("one prompt", 8),
            &json!({"do_remote_prefill": true})
        )
        .await,
        400
    );
    assert_eq!(
        status(
            &other,
            chat("one prompt", 1),
            &json!({"do_remote_decode": true})
        )
        .await,
        400
    );
    assert_eq!(status(&one, chat("one prompt", 8), &offered).await, 400);
    assert_eq!(status(&one, chat("one prompt", 8), &Value::Null).await, 200);
}

#[tokio::test]
#[contract("V39")]
async fn a_generation_engine_takes_only_the_state_of_this_prompts_context_request() {
    let (one, other) = (
        engine("--role prefill").await,
        engine("--role decode").await,
    );
    let context = async |text: &str| {
        let mut body = chat(text, 1);
        body["disaggregated_params"] = json!({"request_type": "context_only"});
        post(&one, CHAT, &body).await.json()
    };
    let text = "word ".repeat(300);
    let offered = context(&text).await;
    let mut params = offered["choices"][0]["disaggregated_params"].clone();
    assert_eq!(
        params["first_gen_tokens"].as_array().map(Vec::len),
        Some(1),
        "{offered}"
    );
    params["request_type"] = json!("generation_only");
    let generation = |params: &Value| {
        let mut body = chat(&text, 8);
        body["disaggregated_params"] = params.clone();
        body["prompt_token_ids"] = offered["prompt_token_ids"].clone();
        body
    };
    let reply = post(&other, CHAT, &generation(&params)).await.json();
    let ids = offered["prompt_token_ids"].as_array().expect("ids").len();
    assert_eq!(
        reply["usage"]["prompt_tokens_details"]["cached_tokens"],
        ids - 1,
        "{reply}"
    );
    let foreign = context("another prompt").await["choices"][0]["disaggregated_params"].clone();
    for (field, value) in [
        ("encoded_opaque_state", Value::Null),
        (
            "encoded_opaque_state",
            foreign["encoded_opaque_state"].clone(),
        ),
        ("ctx_request_id", foreign["ctx_request_id"].clone()),
        ("ctx_request_id", Value::Null),
        ("first_gen_tokens", Value::Null),
        ("request_type", json!("context_only")),
        ("request_type", json!("other")),
        ("unknown", json!(1)),
    ] {
        let mut wrong = params.clone();
        wrong[field] = value.clone();
        let refused = post(&other, CHAT, &generation(&wrong)).await;
        assert_eq!(refused.status, 400, "{field} {value}");
    }
    let mut wrong_role = chat(&text, 8);
    wrong_role["disaggregated_params"] = params;
    assert_eq!(post(&one, CHAT, &wrong_role).await.status, 400);
}
