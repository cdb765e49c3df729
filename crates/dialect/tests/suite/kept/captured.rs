//! Replies of a real engine.

use contract_id::contract;
use dialect::{Dialect, NotCacheable, StreamObject, keep_whole, replay};
use serde_json::{Value, json};

use super::chunks;

/// The exchanges of a recording: path, request body and answer.
fn exchanges(name: &str) -> Vec<(String, Value, Value)> {
    let path = format!(
        "{}/../../tests/fixtures/vllm-real/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let answer = |id: &Value| {
        lines
            .iter()
            .find(|line| line["kind"] == "response" && line["id"] == *id)
    };
    let requests = lines.iter().filter(|line| line["kind"] == "request");
    let exchange = |line: &Value| {
        Some((
            line["path"].as_str()?.to_owned(),
            line["body"].clone(),
            answer(&line["id"])?.clone(),
        ))
    };
    requests.filter_map(exchange).collect()
}

/// The bytes of a recorded stream.
fn stream(answer: &Value) -> Option<String> {
    let events = answer["sse"].as_array()?;
    Some(
        events
            .iter()
            .map(|event| format!("data: {}\n\n", event.as_str().unwrap()))
            .collect(),
    )
}

#[test]
#[contract("CK29", "CH18", "B3")]
fn an_engines_stream_is_stored_as_its_reply_and_replayed_equal() {
    let all = exchanges("0.32.0-session.jsonl");
    let (_, request, stream) = all
        .iter()
        .find_map(|(path, request, answer)| {
            let whole = answer["aborted"] != true && path == "/v1/chat/completions";
            Some((path, request, stream(answer).filter(|_| whole)?))
        })
        .unwrap();
    let stored = StreamObject::read(Dialect::Chat, &[stream.as_bytes()]).unwrap();
    let object: Value = serde_json::from_slice(&stored.body).unwrap();
    let sent = chunks(stream.as_bytes());
    let deltas = sent
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
    let ids: Vec<_> = sent
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["token_ids"].as_array())
        .flatten()
        .collect();
    assert_eq!(
        object["choices"][0]["message"]["content"],
        deltas.collect::<String>()
    );
    assert_eq!(ids.len(), 100);
    assert_eq!(object["choices"][0]["token_ids"], json!(ids));
    assert_eq!(object["choices"][0]["finish_reason"], "length");
    assert_eq!(
        object["usage"],
        json!({"prompt_tokens": 95, "total_tokens": 195, "completion_tokens": 100})
    );
    assert_eq!(
        object["prompt_token_ids"].as_array().map(Vec::len),
        Some(95)
    );
    assert_eq!(
        (&object["model"], stored.has_usage),
        (&request["model"], true)
    );

    let again = replay(Dialect::Chat, &stored.body, true).unwrap();
    assert_eq!(
        StreamObject::read(Dialect::Chat, &[&again]).unwrap(),
        stored
    );
    assert!(chunks(&again).len() < sent.len());
}

#[test]
#[contract("CH16")]
fn an_aborted_stream_is_not_stored() {
    let all = exchanges("0.32.0-session.jsonl");
    let aborted = all
        .iter()
        .find(|(_, _, answer)| answer["aborted"] == true)
        .and_then(|(_, _, answer)| stream(answer));
    assert_eq!(
        StreamObject::read(Dialect::Chat, &[aborted.unwrap().as_bytes()]),
        Err(NotCacheable::NotWhole)
    );
}

#[test]
#[contract("CH18")]
fn an_engines_complete_reply_is_stored_and_answers_a_streaming_request() {
    let mut seen = 0;
    for name in ["0.32.0-basic.jsonl", "0.32.0-session.jsonl"] {
        for (path, _, answer) in exchanges(name) {
            let dialect = match &*path {
                "/v1/chat/completions" => Dialect::Chat,
                "/v1/completions" => Dialect::Completions,
                _ => continue,
            };
            let Some(body) = answer.get("body").filter(|body| body["choices"].is_array()) else {
                continue;
            };
            let stored = keep_whole(dialect, body.to_string().as_bytes()).unwrap();
            assert!(stored.has_usage);
            let stream = replay(dialect, &stored.body, true).unwrap();
            let again = StreamObject::read(dialect, &[&stream]).unwrap();
            let again: Value = serde_json::from_slice(&again.body).unwrap();
            assert_eq!(&again, body);
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} replies in the recordings");
}
