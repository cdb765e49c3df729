//! The engines' own generation APIs, and chats in a batch.

use serde_json::{Value, json};

use crate::support::{chunks, engine, long_text, post};

/// The ids of a prompt, as this engine tokenizes it.
async fn ids(engine: &engine_sim::RunningEngine, text: &str) -> Vec<u64> {
    let reply = post(
        engine,
        "/tokenize",
        &json!({"model": "sim", "prompt": text}),
    )
    .await;
    let tokens = reply.json()["tokens"].clone();
    serde_json::from_value(tokens).unwrap()
}

#[tokio::test]
async fn token_ids_become_the_same_tokens_whole_and_streamed_and_hit_the_cache() {
    let engine = engine("--no-kv-events").await;
    let prompt = ids(&engine, &long_text(80)).await;
    let mut body = json!({
        "request_id": "r1", "token_ids": prompt,
        "sampling_params": {"max_tokens": 6, "ignore_eos": true},
    });
    let whole = post(&engine, "/inference/v1/generate", &body).await.json();
    assert_eq!(whole["request_id"], "r1");
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["token_ids"].as_array().unwrap().len(), 6);
    assert_eq!(whole["usage"]["prompt_tokens"], prompt.len());
    // The completions of the same ids are the same tokens.
    let completion = json!({"model": "sim", "prompt": prompt, "max_tokens": 6, "ignore_eos": true, "return_token_ids": true});
    let completion = post(&engine, "/v1/completions", &completion).await.json();
    assert_eq!(completion["choices"][0]["token_ids"], choice["token_ids"]);
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let reply = post(&engine, "/inference/v1/generate", &body).await;
    assert!(reply.text().ends_with("data: [DONE]\n\n"));
    let events = chunks(&reply);
    let tokens: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["token_ids"].get(0))
        .collect();
    assert_eq!(json!(tokens), choice["token_ids"]);
    let usage = &events.last().unwrap()["usage"];
    let blocks = (prompt.len() as u64 - 1) / 16 * 16;
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], blocks);
    engine.stop().await;
}

#[tokio::test]
async fn sglangs_replies_have_their_counts_in_meta_info_and_events_repeat_the_text() {
    let engine = engine("--no-kv-events").await;
    let text = long_text(80);
    let mut body = json!({"rid": "r1", "text": text, "sampling_params": {"max_new_tokens": 5, "ignore_eos": true}});
    let whole = post(&engine, "/generate", &body).await.json();
    let meta = &whole["meta_info"];
    assert_eq!(meta["id"], "r1");
    assert_eq!(
        meta["finish_reason"],
        json!({"type": "length", "length": 5})
    );
    assert_eq!(
        (&meta["completion_tokens"], &meta["cached_tokens"]),
        (&json!(5), &json!(0))
    );
    let prompt = ids(&engine, &text).await;
    assert_eq!(meta["prompt_tokens"], prompt.len());
    body["stream"] = json!(true);
    let reply = post(&engine, "/generate", &body).await;
    assert!(reply.text().ends_with("data: [DONE]\n\n"));
    let events = chunks(&reply);
    assert_eq!(events.len(), 5);
    let last = events.last().unwrap();
    assert_eq!(last["text"], whole["text"]);
    assert_eq!(events[0]["meta_info"]["finish_reason"], Value::Null);
    let blocks = (prompt.len() as u64 - 1) / 16 * 16;
    assert_eq!(last["meta_info"]["cached_tokens"], blocks);
    let body = json!({"input_ids": [prompt, [5, 6, 7]], "sampling_params": {"max_new_tokens": 2}});
    let list = post(&engine, "/generate", &body).await.json();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!(list[1]["meta_info"]["prompt_tokens"], 3);
    engine.stop().await;
}

#[tokio::test]
async fn a_batch_has_one_choice_for_each_conversation_and_no_stream() {
    let engine = engine("--no-kv-events").await;
    let says = |text: &str| json!([{"role": "user", "content": text}]);
    let mut body = json!({"model": "sim", "messages": [says("one"), says("two")], "max_tokens": 4});
    let batch = post(&engine, "/v1/chat/completions/batch", &body)
        .await
        .json();
    let choices = batch["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    for (index, text) in ["one", "two"].iter().enumerate() {
        let alone = json!({"model": "sim", "messages": says(text), "max_tokens": 4});
        let alone = post(&engine, "/v1/chat/completions", &alone).await.json();
        assert_eq!(choices[index]["index"], index);
        assert_eq!(choices[index]["message"], alone["choices"][0]["message"]);
    }
    assert_eq!(batch["usage"]["completion_tokens"], 8);
    body["stream"] = json!(true);
    let refused = post(&engine, "/v1/chat/completions/batch", &body).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("stream"))
    );
    for messages in [
        json!([]),
        json!([{"role": "user", "content": "a"}]),
        json!("a"),
    ] {
        let body = json!({"model": "sim", "messages": messages});
        assert_eq!(
            post(&engine, "/v1/chat/completions/batch", &body)
                .await
                .status,
            400
        );
    }
    engine.stop().await;
}

#[tokio::test]
async fn salts_and_adapters_separate_the_caches_of_both_apis() {
    let engine = engine("--no-kv-events --loras ad1").await;
    let prompt = ids(&engine, &long_text(80)).await;
    let sampling = json!({"max_tokens": 2, "max_new_tokens": 2});
    let cached = async |path: &str, fields: Value| {
        let mut body = json!({"sampling_params": sampling});
        for (key, value) in fields.as_object().unwrap() {
            body[key] = value.clone();
        }
        let reply = post(&engine, path, &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let reply = reply.json();
        let usage = &reply["usage"]["prompt_tokens_details"]["cached_tokens"];
        usage
            .as_u64()
            .or_else(|| reply["meta_info"]["cached_tokens"].as_u64())
            .unwrap()
    };
    let tokens = "/inference/v1/generate";
    assert_eq!(
        cached(tokens, json!({"token_ids": prompt, "cache_salt": "s"})).await,
        0
    );
    assert_eq!(cached("/generate", json!({"input_ids": prompt})).await, 0);
    assert_eq!(
        cached(
            "/generate",
            json!({"input_ids": prompt, "lora_path": "ad1"})
        )
        .await,
        0
    );
    assert!(cached(tokens, json!({"token_ids": prompt})).await > 0);
    assert!(cached(tokens, json!({"token_ids": prompt, "model": "ad1"})).await > 0);
    assert!(cached("/generate", json!({"input_ids": prompt, "extra_key": "s"})).await > 0);
    let unknown = json!({"input_ids": prompt, "lora_path": "ad2"});
    let refused = post(&engine, "/generate", &unknown).await;
    assert_eq!(refused.status, 404);
    assert!(refused.json()["error"]["message"].is_string());
    engine.stop().await;
}
