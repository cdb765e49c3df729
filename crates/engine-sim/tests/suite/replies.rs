//! Chat, completions and the smaller endpoints, in vLLM's shapes.

use http::Method;
use serde_json::{Value, json};

use crate::support::{chat, engine, get, long_text, post, request, send, stats, streamed};

#[tokio::test]
async fn a_chat_reply_has_vllms_shape_and_always_reports_cached_tokens() {
    let engine = engine("--no-kv-events").await;
    let reply = post(&engine, "/v1/chat/completions", &chat("Hello", 5)).await;
    assert_eq!(
        (reply.status, reply.content_type.as_str()),
        (200, "application/json")
    );
    let reply = reply.json();
    assert!(reply["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(reply["object"], "chat.completion");
    assert_eq!(reply["model"], "sim");
    assert_eq!(reply["choices"][0]["message"]["role"], "assistant");
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert!(
        reply["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .split_whitespace()
            .count()
            == 5
    );
    assert_eq!(reply["choices"][0]["token_ids"], Value::Null);
    let usage = &reply["usage"];
    assert_eq!(usage["completion_tokens"], 5);
    assert_eq!(
        usage["total_tokens"],
        usage["prompt_tokens"].as_u64().unwrap() + 5
    );
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    engine.stop().await;
}

#[tokio::test]
async fn a_stream_has_role_tokens_usage_and_done_and_equals_the_plain_reply() {
    let engine = engine("--no-kv-events").await;
    let plain = post(
        &engine,
        "/v1/chat/completions",
        &chat("Tell me something", 8),
    )
    .await
    .json();
    let reply = post(
        &engine,
        "/v1/chat/completions",
        &streamed(chat("Tell me something", 8)),
    )
    .await;
    assert!(reply.whole);
    assert!(reply.content_type.starts_with("text/event-stream"));
    let events = reply.events();
    assert_eq!(events.len(), 1 + 8 + 1 + 1);
    assert_eq!(*events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> = events[..10]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let text: String = chunks[1..9]
        .iter()
        .map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(text, plain["choices"][0]["message"]["content"]);
    let reasons: Vec<_> = chunks[..9]
        .iter()
        .map(|chunk| &chunk["choices"][0]["finish_reason"])
        .collect();
    assert!(reasons[..8].iter().all(|reason| reason.is_null()));
    assert_eq!(reasons[8], "length");
    assert_eq!(chunks[9]["choices"], json!([]));
    assert_eq!(chunks[9]["usage"]["completion_tokens"], 8);
    assert!(chunks[9]["usage"]["prompt_tokens_details"]["cached_tokens"].is_u64());
    engine.stop().await;
}

#[tokio::test]
async fn without_include_usage_a_stream_has_no_usage() {
    let engine = engine("--no-kv-events").await;
    let mut body = chat("Hi", 2);
    body["stream"] = json!(true);
    let reply = post(&engine, "/v1/chat/completions", &body).await;
    assert!(!reply.text().contains("usage"));
    engine.stop().await;
}

#[tokio::test]
async fn the_second_turn_hits_the_prompt_and_the_reply_of_the_first() {
    let engine = engine("--block-size 8 --no-kv-events").await;
    let first_turn = json!([{"role": "user", "content": long_text(60)}]);
    let body =
        json!({"model": "sim", "messages": first_turn, "max_tokens": 40, "return_token_ids": true});
    let first = post(&engine, "/v1/chat/completions", &body).await.json();
    let mut messages = first_turn.as_array().unwrap().clone();
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({"role": "user", "content": "Go on"}));
    let body = json!({"model": "sim", "messages": messages, "max_tokens": 2});
    let second = post(&engine, "/v1/chat/completions", &body).await.json();
    // All tokens computed in the first turn: the whole prompt and the reply without its last token.
    let computed = first["prompt_token_ids"].as_array().unwrap().len() + 39;
    assert_eq!(
        second["usage"]["prompt_tokens_details"]["cached_tokens"],
        computed / 8 * 8
    );
    let stats = stats(&engine).await;
    assert_eq!(stats["cached_tokens"], computed / 8 * 8);
    assert_eq!(stats["executions"], 2);
    engine.stop().await;
}

#[tokio::test]
async fn salts_separate_caches() {
    let engine = engine("--no-kv-events").await;
    let mut cached = Vec::new();
    for salt in [json!("a"), json!("b"), json!("a"), Value::Null] {
        let mut body = chat(&long_text(60), 1);
        body["cache_salt"] = salt;
        let reply = post(&engine, "/v1/chat/completions", &body).await.json();
        cached.push(
            reply["usage"]["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .unwrap()
                > 0,
        );
    }
    assert_eq!(cached, [false, false, true, false]);
    engine.stop().await;
}

#[tokio::test]
async fn the_reply_is_a_function_of_seed_and_prompt() {
    let (first, second, other) = (
        engine("--no-kv-events").await,
        engine("--no-kv-events").await,
        engine("--no-kv-events --seed 1").await,
    );
    let mut texts = Vec::new();
    for engine in [&first, &second, &other] {
        let reply = post(
            engine,
            "/v1/completions",
            &json!({"model": "sim", "prompt": [5, 6, 7]}),
        )
        .await
        .json();
        assert_eq!(
            reply["usage"]["completion_tokens"], 16,
            "the dialect's default"
        );
        texts.push(reply["choices"][0]["text"].as_str().unwrap().to_owned());
    }
    assert_eq!(texts[0], texts[1]);
    assert_ne!(texts[0], texts[2]);
}

#[tokio::test]
async fn completions_accept_text_ids_and_several_prompts() {
    let engine = engine("--no-kv-events").await;
    let complete = async |prompt: Value| {
        let body =
            json!({"model": "sim", "prompt": prompt, "max_tokens": 3, "return_token_ids": true});
        post(&engine, "/v1/completions", &body).await.json()
    };
    let text = complete(json!("the engine keeps")).await;
    assert_eq!(text["object"], "text_completion");
    let ids = complete(text["choices"][0]["prompt_token_ids"].clone()).await;
    assert_eq!(ids["choices"][0]["text"], text["choices"][0]["text"]);
    assert_eq!(ids["choices"][0]["token_ids"].as_array().unwrap().len(), 3);
    let two = complete(json!([[1, 2, 3], [4, 5]])).await;
    assert_eq!(two["choices"][1]["index"], 1);
    assert_eq!(two["usage"]["prompt_tokens"], 5);
    engine.stop().await;
}

#[tokio::test]
async fn a_reply_without_a_limit_stops_by_itself_and_with_ignore_eos_at_the_models_length() {
    let engine = engine("--no-kv-events --max-model-len 300 --speed 1000").await;
    let mut body = chat("Hi", 1);
    body.as_object_mut().unwrap().remove("max_tokens");
    let natural = post(&engine, "/v1/chat/completions", &body).await.json();
    assert_eq!(natural["choices"][0]["finish_reason"], "stop");
    body["ignore_eos"] = json!(true);
    let longest = post(&engine, "/v1/chat/completions", &body).await.json();
    assert_eq!(longest["choices"][0]["finish_reason"], "length");
    assert_eq!(longest["usage"]["total_tokens"], 300);
    engine.stop().await;
}

#[tokio::test]
async fn the_clients_request_id_becomes_the_replys_id() {
    let engine = engine("--no-kv-events").await;
    let headers = [("x-request-id", "my-id-1")];
    let reply = send(
        &engine,
        request(
            Method::POST,
            "/v1/chat/completions",
            &headers,
            &chat("Hi", 1),
        ),
    )
    .await
    .unwrap();
    assert_eq!(reply.json()["id"], "chatcmpl-my-id-1");
    engine.stop().await;
}

#[tokio::test]
async fn errors_have_vllms_status_and_shape() {
    let engine = engine("--no-kv-events --max-model-len 50").await;
    let with = |key: &str, value: Value| {
        let mut body = chat("Hi", 1);
        body[key] = value;
        body
    };
    let cases = [
        (404, with("model", json!("nope"))),
        (400, with("messages", json!([]))),
        (400, chat(&long_text(60), 1)),
        (400, chat("Hi", 60)),
        (400, with("n", json!(0))),
        (400, with("cache_salt", json!(""))),
        (400, with("max_tokens", json!(0))),
        (400, json!([1])),
    ];
    for (status, body) in cases {
        let reply = post(&engine, "/v1/chat/completions", &body).await;
        assert_eq!(reply.status, status, "{body}");
        assert_eq!(reply.json()["error"]["code"], status, "{body}");
        assert!(
            reply.json()["error"]["type"]
                .as_str()
                .unwrap()
                .ends_with("Error")
        );
    }
    assert_eq!(stats(&engine).await["executions"], 0);
    assert_eq!(get(&engine, "/nothing").await.status, 404);
    assert_eq!(get(&engine, "/v1/chat/completions").await.status, 405);
    engine.stop().await;
}

#[tokio::test]
async fn the_api_key_protects_paths_under_v1() {
    let engine = engine("--no-kv-events --api-key secret").await;
    assert_eq!(get(&engine, "/v1/models").await.status, 401);
    assert_eq!(get(&engine, "/health").await.status, 200);
    let headers = [("authorization", "Bearer secret")];
    let reply = send(
        &engine,
        request(Method::GET, "/v1/models", &headers, &Value::Null),
    )
    .await
    .unwrap();
    assert_eq!(reply.status, 200);
    engine.stop().await;
}

#[tokio::test]
async fn models_list_the_base_and_its_adapters() {
    let engine = engine("--no-kv-events --model m --loras a,b --max-model-len 1000").await;
    let models = get(&engine, "/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "m");
    assert_eq!(models["data"][0]["max_model_len"], 1000);
    assert_eq!(models["data"][0]["parent"], Value::Null);
    assert!(models["data"][0]["root"].is_string());
    let adapters: Vec<_> = models["data"].as_array().unwrap()[1..]
        .iter()
        .map(|one| (&one["id"], &one["parent"]))
        .collect();
    assert_eq!(
        adapters,
        [(&json!("a"), &json!("m")), (&json!("b"), &json!("m"))]
    );
    let mut body = chat("Hi", 1);
    body["model"] = json!("b");
    assert_eq!(
        post(&engine, "/v1/chat/completions", &body).await.json()["model"],
        "b"
    );
    engine.stop().await;
}

#[tokio::test]
async fn tokenize_agrees_with_what_a_request_computes_and_detokenize_turns_it_back() {
    let engine = engine("--no-kv-events").await;
    let mut body = chat("Hello there", 1);
    body["return_token_ids"] = json!(true);
    let reply = post(&engine, "/v1/chat/completions", &body).await.json();
    let tokens = post(&engine, "/tokenize", &body).await.json();
    assert_eq!(tokens["tokens"], reply["prompt_token_ids"]);
    assert_eq!(tokens["count"], tokens["tokens"].as_array().unwrap().len());
    assert_eq!(
        (&tokens["max_model_len"], &tokens["token_strs"]),
        (&json!(32_768), &Value::Null)
    );
    let tokens = post(
        &engine,
        "/tokenize",
        &json!({"model": "sim", "prompt": "Hello there"}),
    )
    .await
    .json();
    let text = post(
        &engine,
        "/detokenize",
        &json!({"model": "sim", "tokens": tokens["tokens"]}),
    )
    .await
    .json();
    assert_eq!(text, json!({"prompt": "Hello there"}));
    assert!(get(&engine, "/sim/tokenizer.json").await.json()["model"]["vocab"].is_object());
    assert!(get(&engine, "/sim/tokenizer_config.json").await.json()["chat_template"].is_string());
    engine.stop().await;
}

#[tokio::test]
async fn embeddings_are_a_function_of_the_input() {
    let engine = engine("--no-kv-events").await;
    let body = json!({"model": "sim", "input": ["one text", "another", "one text"]});
    let reply = post(&engine, "/v1/embeddings", &body).await.json();
    let vector = |index: usize| {
        reply["data"][index]["embedding"]
            .as_array()
            .unwrap()
            .clone()
    };
    assert_eq!(vector(0), vector(2));
    assert_ne!(vector(0), vector(1));
    let length: f64 = vector(0)
        .iter()
        .map(|value| value.as_f64().unwrap().powi(2))
        .sum();
    assert!((length - 1.0).abs() < 1e-5);
    assert!(reply["usage"]["prompt_tokens"].as_u64().unwrap() > 0);
    engine.stop().await;
}

#[tokio::test]
async fn metrics_have_vllms_names_and_agree_with_usage() {
    let engine = engine("--no-kv-events --block-size 32 --kv-blocks 100").await;
    for _ in 0..2 {
        post(&engine, "/v1/chat/completions", &chat(&long_text(100), 1)).await;
    }
    let page = get(&engine, "/metrics").await.text().to_owned();
    let value = |name: &str| -> f64 {
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("vllm:{name}{{")))
            .expect(name);
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let stats = stats(&engine).await;
    assert_eq!(
        value("prefix_cache_queries_total"),
        stats["prompt_tokens"].as_f64().unwrap()
    );
    assert_eq!(
        value("prefix_cache_hits_total"),
        stats["cached_tokens"].as_f64().unwrap()
    );
    assert!(value("prefix_cache_hits_total") > 0.0);
    for idle in [
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
    ] {
        assert_eq!(value(idle), 0.0, "{idle}");
    }
    assert!(page.contains("vllm:num_requests_running{engine=\"0\",model_name=\"sim\"} 0.0"));
    assert!(page.lines().any(|line| {
        line.starts_with("vllm:cache_config_info{")
            && line.contains("block_size=\"32\"")
            && line.contains("num_gpu_blocks=\"100\"")
    }));
    engine.stop().await;
}

#[tokio::test]
async fn health_is_503_until_the_startup_delay_is_over() {
    let slow = engine("--no-kv-events --startup-delay 300s").await;
    assert_eq!(get(&slow, "/health").await.status, 503);
    let quick = engine("--no-kv-events").await;
    let health = get(&quick, "/health").await;
    assert_eq!((health.status, health.body.len()), (200, 0));
    assert_eq!(
        get(&quick, "/version").await.json(),
        json!({"version": "0.32.0"})
    );
    assert_eq!(get(&quick, "/kv_event_sources").await.json(), json!({}));
}

#[tokio::test]
async fn the_rank_header_picks_the_rank_and_otherwise_the_idle_rank_serves() {
    let engine = engine("--no-kv-events --dp-size 2").await;
    let on = async |rank: &str| {
        let headers = [("x-data-parallel-rank", rank)];
        send(
            &engine,
            request(
                Method::POST,
                "/v1/chat/completions",
                &headers,
                &chat(&long_text(60), 1),
            ),
        )
        .await
        .unwrap()
    };
    for rank in ["1", "1", "0"] {
        assert_eq!(on(rank).await.status, 200);
    }
    let ranks = stats(&engine).await["ranks"].clone();
    assert!(ranks[1]["cached_tokens"].as_u64().unwrap() > 0);
    assert_eq!(ranks[0]["cached_tokens"], 0, "ranks share no cache");
    for wrong in ["2", "x"] {
        assert_eq!(on(wrong).await.status, 400);
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_models_own_tokenizer_directory_is_used_served_and_named_as_root() {
    let dir = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/vllm-real/tiny-qwen"
    );
    let engine = engine(&format!("--no-kv-events --tokenizer {dir}")).await;
    assert_eq!(
        get(&engine, "/v1/models").await.json()["data"][0]["root"],
        dir
    );
    let file = std::fs::read(format!("{dir}/tokenizer.json")).unwrap();
    assert_eq!(get(&engine, "/sim/tokenizer.json").await.body, file);
    // The real engine's answer for this model.
    let tokens = post(
        &engine,
        "/tokenize",
        &json!({"model": "sim", "prompt": "  "}),
    )
    .await
    .json();
    assert_eq!(tokens["tokens"], json!([256]));
    let reply = post(&engine, "/v1/chat/completions", &chat("Hello", 4))
        .await
        .json();
    assert_eq!(reply["usage"]["completion_tokens"], 4);
    engine.stop().await;
}
