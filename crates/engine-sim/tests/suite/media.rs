//! Chats with images, audio and videos: their rendering, their blocks, and token ids with items.

use contract_id::contract;
use serde_json::{Value, json};

use crate::support::{chat, engine, long_text, post};

const CHAT: &str = "/v1/chat/completions";
const RENDER: &str = "/v1/chat/completions/render";

fn image(data: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}})
}

fn chat_of(content: &Value) -> Value {
    json!({
        "model": "sim", "messages": [{"role": "user", "content": content}], "max_tokens": 4,
        "return_token_ids": true,
    })
}

fn cached(reply: &Value) -> u64 {
    let cached = &reply["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().unwrap_or_else(|| panic!("{reply}"))
}

#[tokio::test]
#[contract("D2")]
async fn a_rendered_chat_has_the_tokens_of_its_generation_and_finds_its_blocks() {
    let engine = engine("--no-kv-events").await;
    let text = json!({"type": "text", "text": long_text(40)});
    let body = chat_of(&json!([image("AAAA"), text, image("BBBB")]));
    let rendered = post(&engine, RENDER, &body).await.json();
    let first = post(&engine, CHAT, &body).await.json();
    let tokens = &rendered["token_ids"];
    assert_eq!(first["prompt_token_ids"], *tokens);
    assert_eq!(cached(&first), 0, "rendering computes no block");

    let features = &rendered["features"];
    let hashes = features["mm_hashes"]["image"].as_array().unwrap();
    assert!(hashes.len() == 2 && hashes[0] != hashes[1], "{hashes:?}");
    let places = features["mm_placeholders"]["image"].as_array().unwrap();
    let at = |place: &Value, key: &str| usize::try_from(place[key].as_u64().unwrap()).unwrap();
    for place in places {
        let (offset, length) = (at(place, "offset"), at(place, "length"));
        assert!(length >= 16);
        let own = &tokens.as_array().unwrap()[offset..offset + length];
        assert!(own.iter().all(|token| *token == own[0]), "{own:?}");
    }

    let mut given = json!({
        "token_ids": tokens, "features": features, "sampling_params": {"max_tokens": 4},
    });
    let again = post(&engine, "/inference/v1/generate", &given).await.json();
    let count = tokens.as_array().unwrap().len() as u64;
    assert_eq!(cached(&again), (count - 1) / 16 * 16);
    given["features"] = Value::Null;
    let text_only = post(&engine, "/inference/v1/generate", &given).await.json();
    let before = at(&places[0], "offset") as u64;
    assert_eq!(cached(&text_only), before / 16 * 16);
    engine.stop().await;
}

#[tokio::test]
async fn the_tensors_of_a_rendered_chat_are_left_out_on_request_and_a_client_names_an_item() {
    let engine = engine("--no-kv-events").await;
    let mut part = image("AAAA");
    part["uuid"] = json!("mine");
    let audio = json!({"type": "input_audio", "input_audio": {"data": "CCCC", "format": "wav"}});
    let mut body = chat_of(&json!([part, audio]));
    let whole = post(&engine, RENDER, &body).await.json();
    let features = &whole["features"];
    assert_eq!(features["mm_hashes"]["image"], json!(["mine"]));
    for modality in ["image", "audio"] {
        let tensors = &features["kwargs_data"][modality];
        assert!(tensors[0].as_str().unwrap().len() > 1_000);
    }
    body["return_mm_kwargs"] = json!(false);
    let mut short = post(&engine, RENDER, &body).await.json();
    assert_eq!(short["features"]["kwargs_data"], Value::Null);
    short["features"]["kwargs_data"] = features["kwargs_data"].clone();
    assert_eq!(short["features"], *features);
    engine.stop().await;
}

#[tokio::test]
async fn a_rendered_chat_of_text_has_no_features_and_the_errors_are_those_of_a_generation() {
    let engine = engine("--no-kv-events --max-model-len 64").await;
    let body = chat("hello", 4);
    let rendered = post(&engine, RENDER, &body).await.json();
    let counted = post(&engine, "/tokenize", &body).await.json();
    assert_eq!(rendered["token_ids"], counted["tokens"]);
    assert_eq!(rendered["features"], Value::Null);
    for (status, body) in [
        (404, json!({"model": "nope", "messages": body["messages"]})),
        (400, json!({"model": "sim", "messages": []})),
        (400, chat(&long_text(100), 4)),
    ] {
        assert_eq!(post(&engine, RENDER, &body).await.status, status, "{body}");
    }
    engine.stop().await;
}

#[tokio::test]
async fn features_that_contradict_themselves_are_refused() {
    let engine = engine("--no-kv-events").await;
    for features in [
        json!({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": []}}),
        json!({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"audio": [{"offset": 0, "length": 1}]}}),
        json!({"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": 2, "length": 2}]}}),
        json!({
            "mm_hashes": {"image": ["a", "b"]},
            "mm_placeholders": {"image": [{"offset": 0, "length": 2}, {"offset": 1, "length": 2}]},
        }),
    ] {
        let body = json!({"token_ids": [1, 2, 3], "features": features, "sampling_params": {}});
        let reply = post(&engine, "/inference/v1/generate", &body).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
    }
    engine.stop().await;
}
