//! The engines' own generation APIs and batches of chats, through the running server: the client
//! gets the engine's bytes, and the router's prediction equals the engine's report.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    RawClient, RawReply, RoutedFleet, RouterQueries as _, SimControls as _, chat_message, words,
};

const TOKEN_IDS: &str = "/inference/v1/generate";
const SGLANG: &str = "/generate";
const BATCH: &str = "/v1/chat/completions/batch";

/// Sends a request under this id, and waits until the router has applied the resulting events.
fn send(routed: &RoutedFleet, path: &str, body: &Value, id: &str) -> RawReply {
    let headers = [("x-request-id", id)];
    let body = body.to_string();
    let reply = RawClient::post_with(&routed.router.data(), path, &headers, body.as_bytes());
    routed.caught_up();
    reply
}

/// The same at the engine that answered `reply`.
fn send_directly(routed: &RoutedFleet, reply: &RawReply, path: &str, body: &Value) -> RawReply {
    let worker = reply.header("x-warmroute-worker").expect("a worker");
    let engine = &routed.engines[usize::from(worker.as_bytes()[0] - b'a')];
    let id = reply.header("x-request-id").expect("its id");
    let headers = [("x-request-id", id)];
    RawClient::post_with(&engine.data(), path, &headers, body.to_string().as_bytes())
}

/// The ids of a text at the first engine.
fn ids(routed: &RoutedFleet, text: &str) -> Vec<u64> {
    let body = json!({"model": "sim", "prompt": text}).to_string();
    let reply = RawClient::post(&routed.engines[0].data(), "/tokenize", body.as_bytes());
    serde_json::from_value(reply.json()["tokens"].clone()).expect("a list of ids")
}

fn predicted(reply: &RawReply) -> u64 {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let header = reply.header("x-warmroute-predicted-cached-tokens");
    header.expect("a prediction").parse().expect("a number")
}

/// The cached tokens in the engine's reply, whole or streamed.
fn cached(reply: &RawReply) -> u64 {
    let text = reply.text();
    let last = text
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]")
        .last();
    let value: Value = serde_json::from_str(last.unwrap_or(&text)).expect("json");
    let usage = &value["usage"]["prompt_tokens_details"]["cached_tokens"];
    usage
        .as_u64()
        .or_else(|| value["meta_info"]["cached_tokens"].as_u64())
        .unwrap_or_else(|| panic!("no cached tokens in {text}"))
}

/// Bodies of one prompt for both APIs, with unknown fields.
fn both(prompt: &[u64], stream: bool) -> [(&'static str, Value); 2] {
    [
        (
            TOKEN_IDS,
            json!({
                "token_ids": prompt, "model": "sim", "stream": stream, "unknown": {"a": [1.5, null]},
                "stream_options": if stream { json!({"include_usage": true}) } else { Value::Null },
                "sampling_params": {"max_tokens": 6, "ignore_eos": true, "temperature": 0.3},
            }),
        ),
        (
            SGLANG,
            json!({
                "input_ids": prompt, "rid": "mine", "stream": stream, "unknown": {"a": [1.5, null]},
                "sampling_params": {"max_new_tokens": 6, "ignore_eos": true},
            }),
        ),
    ]
}

#[test]
#[contract("V6", "I12", "G4")]
fn token_ids_find_their_warm_engine_and_the_reply_is_the_engines_own() {
    for stream in [false, true] {
        let routed = RoutedFleet::start(&[&[], &[]]);
        for (at, topic) in ["ids", "sglang"].iter().enumerate() {
            let prompt = ids(&routed, &words(topic, 60));
            let (path, body) = both(&prompt, stream)[at].clone();
            let first = send(&routed, path, &body, "q1");
            assert_eq!((predicted(&first), cached(&first)), (0, 0), "{path}");
            // The same prompt again, and one that continues it.
            let again = send(&routed, path, &body, "q2");
            let longer = [prompt.clone(), ids(&routed, &words("more", 20))].concat();
            let (_, longer) = both(&longer, stream)[at].clone();
            let continued = send(&routed, path, &longer, "q3");
            let worker = first.header("x-warmroute-worker");
            for turn in [&again, &continued] {
                assert_eq!(turn.header("x-warmroute-worker"), worker, "{path}");
                assert!(predicted(turn) + 32 > prompt.len() as u64, "{path}");
                assert_eq!(predicted(turn), cached(turn), "{path}");
                assert_eq!(turn.header("x-warmroute-rewrites"), None);
            }
            let receipt = routed.router.receipt_of(&again);
            assert_eq!(
                (&receipt["prompt"]["source"], &receipt["prompt"]["tokens"]),
                (&json!("given"), &json!(prompt.len()))
            );
            assert_eq!(receipt["outcome"]["cached_tokens"], cached(&again));
            assert_eq!(receipt["outcome"]["completion_tokens"], 6);
            assert_eq!(receipt["model"], "sim");
            let direct = send_directly(&routed, &again, path, &body);
            assert_eq!(again.text(), direct.text(), "{path}");
            assert_eq!(again.header("content-type"), direct.header("content-type"));
        }
        routed.router.wait_until_idle();
    }
}

#[test]
#[contract("V6", "G4")]
fn sglangs_text_is_tokenized_with_the_special_tokens_of_a_prompt() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    let text = words("text", 60);
    let body = json!({"text": text, "sampling_params": {"max_new_tokens": 4}});
    let first = send(&routed, SGLANG, &body, "q1");
    let longer = json!({"text": format!("{text} {}", words("more", 10)), "sampling_params": {"max_new_tokens": 4}});
    let second = send(&routed, SGLANG, &longer, "q2");
    assert!(
        predicted(&first) == 0 && cached(&second) > 0,
        "{}",
        second.text()
    );
    assert_eq!(predicted(&second), cached(&second));
    let receipt = routed.router.receipt_of(&second);
    assert_eq!(receipt["prompt"]["source"], "tokens");
    assert_eq!(
        receipt["prompt"]["tokens"],
        second.json()["meta_info"]["prompt_tokens"]
    );
    // Several prompts have no common beginning: they are load.
    let list = json!({"text": [text, text], "sampling_params": {"max_new_tokens": 4}});
    let list = send(&routed, SGLANG, &list, "q3");
    assert_eq!(list.json().as_array().map(Vec::len), Some(2));
    assert_eq!(routed.router.receipt_of(&list)["prompt"]["source"], "none");
    routed.router.wait_until_idle();
}

#[test]
#[contract("V6", "I12")]
fn a_batch_of_chats_goes_where_its_first_conversation_is_warm() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    let first = vec![
        chat_message("system", &words("shared", 60)),
        chat_message("user", "one"),
    ];
    let chat = routed.chat(&first, &[]);
    let other = vec![chat_message("user", &words("other", 40))];
    let body = json!({"model": "sim", "messages": [first, other], "max_tokens": 4, "x": 1});
    let batch = send(&routed, BATCH, &body, "q1");
    assert_eq!(batch.header("x-warmroute-worker"), Some(&*chat.worker));
    assert!(predicted(&batch) > 0);
    let reply = batch.json();
    assert_eq!(reply["choices"].as_array().map(Vec::len), Some(2));
    // The engine counts both prompts; the router counts the second one by its length.
    let receipt = routed.router.receipt_of(&batch);
    let counted = receipt["prompt"]["tokens"].as_u64().expect("a number");
    assert!(counted > chat.prompt_tokens, "{receipt}");
    assert_eq!(
        receipt["outcome"]["prompt_tokens"],
        reply["usage"]["prompt_tokens"]
    );
    let mut direct = send_directly(&routed, &batch, BATCH, &body).json();
    direct["created"] = reply["created"].clone();
    assert_eq!(reply, direct);
    let streamed =
        json!({"model": "sim", "messages": [[chat_message("user", "a")]], "stream": true});
    let refused = send(&routed, BATCH, &streamed, "q2");
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("stream"))
    );
    routed.router.wait_until_idle();
}

#[test]
#[contract("G4")]
fn salts_and_adapters_keep_the_same_token_ids_apart() {
    let routed = RoutedFleet::start(&[&["--loras", "ad1"]]);
    let prompt = ids(&routed, &words("apart", 60));
    let mut number = 0;
    let mut turn = |at: usize, fields: Value| {
        let (path, mut body) = both(&prompt, false)[at].clone();
        for (key, value) in fields.as_object().expect("fields") {
            body[key] = value.clone();
        }
        number += 1;
        let reply = send(&routed, path, &body, &format!("q{number}"));
        assert_eq!(predicted(&reply), cached(&reply), "{path} {fields}");
        cached(&reply) > 0
    };
    let base = json!({"model": "sim"});
    assert!(!turn(0, json!({"cache_salt": "s"})));
    assert!(!turn(0, json!({})));
    assert!(!turn(1, json!({"lora_path": "ad1"})));
    assert!(turn(1, base));
    assert!(turn(1, json!({"model": "sim", "extra_key": "s"})));
    assert!(turn(0, json!({"model": "ad1"})));
    let other = json!({"model": "sim", "extra_key": "s", "cache_salt": "s"});
    assert!(!turn(1, other));
    // Without a model it is the base model, also beside an adapter.
    let (path, body) = both(&prompt, false)[1].clone();
    let unnamed = send(&routed, path, &body, "unnamed");
    assert!(predicted(&unnamed) > 0 && predicted(&unnamed) == cached(&unnamed));
    let routed = RoutedFleet::start(&[&[], &["--model", "other"]]);
    let unnamed = send(&routed, path, &body, "unnamed");
    assert_eq!(
        (unnamed.status, unnamed.error_code().as_str()),
        (400, "invalid_request")
    );
    assert_eq!(unnamed.json()["error"]["param"], "model");
}

#[test]
#[contract("V36", "S43", "F16")]
fn refusals_are_the_engines_own_and_engine_fields_stay_with_the_router() {
    let routed = RoutedFleet::start(&[&["--without", SGLANG]]);
    let absent = send(&routed, SGLANG, &json!({"text": "a"}), "q1");
    assert_eq!(
        (absent.status, absent.text().as_str()),
        (404, r#"{"detail":"Not Found"}"#)
    );
    let empty = json!({"token_ids": [], "sampling_params": {}});
    let refused = send(&routed, TOKEN_IDS, &empty, "q2");
    let direct = send_directly(&routed, &refused, TOKEN_IDS, &empty);
    assert_eq!((refused.status, refused.text()), (400, direct.text()));
    let before = routed.engines[0].stats()["requests"].clone();
    for (path, body) in [
        (
            TOKEN_IDS,
            json!({"token_ids": [1], "sampling_params": {"extra_args": {"kv_transfer_params": {}}}}),
        ),
        (SGLANG, json!({"text": "a", "bootstrap_host": "10.0.0.1"})),
        (SGLANG, json!({"text": "a", "kv_router_hint": {}})),
    ] {
        let refused = send(&routed, path, &body, "q3");
        assert_eq!(
            (refused.status, refused.error_code().as_str()),
            (403, "field_not_allowed")
        );
    }
    assert_eq!(routed.engines[0].stats()["requests"], before);
}

#[test]
#[contract("I4")]
fn a_request_of_these_apis_is_tried_again_at_another_engine() {
    let routed = RoutedFleet::with(&[&[], &[]], "", &["--policy", "round_robin"]);
    let prompt = ids(&routed, &words("again", 30));
    let chats = json!({"model": "sim", "messages": [[chat_message("user", "a")]], "max_tokens": 2});
    let [ids, sglang] = both(&prompt, false);
    for (path, body) in [ids, sglang, (BATCH, chats)] {
        routed.engines[0].fault("503", 1);
        // One of the two goes to the engine that refuses once.
        let attempts = (0..2).map(|n| {
            let reply = send(&routed, path, &body, &format!("{path}{n}"));
            assert_eq!(reply.status, 200, "{path}: {}", reply.text());
            let receipt = routed.router.receipt_of(&reply);
            receipt["attempts"].as_array().map_or(0, Vec::len)
        });
        assert_eq!(attempts.sum::<usize>(), 3, "{path}");
    }
    routed.router.wait_until_idle();
}
