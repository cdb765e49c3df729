//! Features that can be disabled, like misconfigurations of a real engine.

use serde_json::{Value, json};

use crate::support::{chat, engine, get, long_text, post, stats, streamed};

#[tokio::test]
async fn without_prefix_caching_there_are_no_hits_or_events_and_the_metrics_show_it() {
    let engine = engine("--no-prefix-caching").await;
    for _ in 0..2 {
        let reply = post(&engine, "/v1/chat/completions", &chat(&long_text(60), 1))
            .await
            .json();
        assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    }
    assert_eq!(stats(&engine).await["published_batches"], 0);
    let page = get(&engine, "/metrics").await;
    assert!(page.text().contains("enable_prefix_caching=\"False\""));
    assert!(
        page.text()
            .contains("vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"sim\"} 0.0")
    );
    // The publisher still exists, as in the real engine.
    assert_eq!(
        get(&engine, "/kv_event_sources").await.json()["0"]["endpoint"],
        engine.events[0]
    );
    engine.stop().await;
}

#[tokio::test]
async fn an_engine_that_ignores_salts_has_one_cache_for_all() {
    let engine = engine("--ignore-salt --no-kv-events").await;
    let mut cached = Vec::new();
    for salt in [json!("a"), json!("b"), Value::Null] {
        let mut body = chat(&long_text(60), 1);
        body["cache_salt"] = salt;
        let reply = post(&engine, "/v1/chat/completions", &body).await.json();
        let tokens = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        cached.push(tokens.is_some_and(|tokens| tokens > 0));
    }
    assert_eq!(cached, [false, true, true]);
    engine.stop().await;
}

#[tokio::test]
async fn without_usage_details_usage_has_no_cached_tokens() {
    let engine = engine("--no-usage-details --no-kv-events").await;
    let body = chat(&long_text(60), 1);
    for _ in 0..2 {
        let usage = post(&engine, "/v1/chat/completions", &body).await.json()["usage"].clone();
        assert_eq!(usage["prompt_tokens_details"], Value::Null);
        assert!(usage["prompt_tokens"].as_u64().unwrap() > 60);
    }
    let mut body = streamed(body);
    body["stream_options"] = json!({"include_usage": true});
    let reply = post(&engine, "/v1/chat/completions", &body).await;
    let events = reply.events();
    let last: Value = serde_json::from_str(events[events.len() - 2]).unwrap();
    assert!(
        last["usage"]["prompt_tokens_details"].is_null() && last["usage"]["prompt_tokens"].is_u64(),
        "{last}"
    );
    assert!(
        stats(&engine).await["cached_tokens"].as_u64().unwrap() > 0,
        "it caches without reporting it"
    );
    engine.stop().await;
}

#[tokio::test]
async fn details_on_hits_only_start_with_the_second_request() {
    let engine = engine("--details-on-hits-only --no-kv-events").await;
    let body = chat(&long_text(60), 1);
    let details = async || {
        post(&engine, "/v1/chat/completions", &body).await.json()["usage"]["prompt_tokens_details"]
            .clone()
    };
    assert_eq!(details().await, Value::Null);
    assert!(
        details().await["cached_tokens"]
            .as_u64()
            .is_some_and(|cached| cached > 0)
    );
    engine.stop().await;
}

#[tokio::test]
async fn disabled_routes_and_ids_are_absent() {
    let engine = engine("--without /tokenize,/metrics --no-token-ids --no-kv-events").await;
    let mut body = chat("hello", 1);
    assert_eq!(post(&engine, "/tokenize", &body).await.status, 404);
    assert_eq!(get(&engine, "/metrics").await.status, 404);
    body["return_token_ids"] = true.into();
    let reply = post(&engine, "/v1/chat/completions", &body).await;
    assert_eq!(
        (reply.status, &reply.json()["prompt_token_ids"]),
        (200, &Value::Null)
    );
    engine.stop().await;
}

#[tokio::test]
async fn without_replay_none_is_announced() {
    let engine = engine("--no-replay --dp-size 2").await;
    assert_eq!((engine.events.len(), engine.replay.len()), (2, 0));
    let sources = get(&engine, "/kv_event_sources").await.json();
    for rank in 0..2 {
        assert_eq!(sources[rank.to_string()]["endpoint"], engine.events[rank]);
        assert_eq!(sources[rank.to_string()]["replay_endpoint"], Value::Null);
    }
    let restarted = post(&engine, "/sim/events", &json!({"action": "restart"})).await;
    assert_eq!(restarted.status, 200);
    engine.stop().await;
}

#[tokio::test]
async fn a_custom_template_applies_to_chats_and_not_to_the_served_files() {
    let file =
        std::env::temp_dir().join(format!("engine-sim-template-{}.jinja", std::process::id()));
    std::fs::write(
        &file,
        "{% for message in messages %}{{ message.content }}{% endfor %}",
    )
    .unwrap();
    let engine = engine(&format!(
        "--no-kv-events --chat-template {}",
        file.display()
    ))
    .await;
    std::fs::remove_file(&file).unwrap();
    let chat = post(&engine, "/tokenize", &chat("Hello there", 1))
        .await
        .json();
    let text = post(
        &engine,
        "/tokenize",
        &json!({"model": "sim", "prompt": "Hello there"}),
    )
    .await
    .json();
    assert_eq!(chat["tokens"], text["tokens"]);
    let served = get(&engine, "/sim/tokenizer_config.json").await.json();
    assert!(
        served["chat_template"]
            .as_str()
            .unwrap()
            .contains("<|im_start|>")
    );
    engine.stop().await;
}
