//! Generations with token ids in and out, through `/v1/completions`. Source: contracts DY27, DY40.

use std::{collections::VecDeque, mem, sync::Arc};

use bytes::Bytes;
use dialect::{ErrorCode, SseEvent, SseSplitter};
use serde_json::{Map, Value, json};

use super::{CallError, EmbeddedRouter, Reply, Secret};

/// The route.
const ROUTE: &str = "/v1/completions";
/// Most characters of a wrong value that its error shows.
const SHOWN: usize = 64;
/// Fields of the body that the call itself sets.
const OWN_FIELDS: [&str; 5] = [
    "model",
    "prompt",
    "stream",
    "stream_options",
    "return_token_ids",
];
/// The only fields of `router_config_override`, with the header fields that have their place.
const OVERRIDES: [(&str, &str); 2] = [
    ("overlap_score_weight", "x-warmroute-overlap-weight"),
    ("router_temperature", "x-warmroute-temperature"),
];

/// A request for tokens.
#[derive(Clone, Debug, Default)]
pub struct GenerationQuery<'a> {
    /// The model; `None`: the only one that is served.
    pub model: Option<&'a str>,
    /// The prompt.
    pub token_ids: &'a [u32],
    /// Fields of the body that end a reply, such as `max_tokens` and `ignore_eos`.
    pub stop_conditions: Map<String, Value>,
    /// Fields of the body that choose tokens, such as `temperature`.
    pub sampling_options: Map<String, Value>,
    /// The field `router_config_override` of a body of `/v1/route`.
    pub router_config_override: Map<String, Value>,
    /// The worker, or one rank of it: `NAME` or `NAME/RANK`.
    pub worker: Option<&'a str>,
    /// The key of a client, where the configuration requires one.
    pub api_key: Option<Secret>,
}

/// Starts a generation.
pub(super) async fn start(
    router: &EmbeddedRouter,
    query: &GenerationQuery<'_>,
) -> Result<GenerationStream, CallError> {
    let model: Arc<str> = match query.model {
        Some(model) => model.into(),
        None => router.only_model()?,
    };
    let body = body(&model, query)?;
    let fields = headers(query)?;
    let fields: Vec<(&str, &str)> = fields
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let reply = router.post(ROUTE, &fields, body).await?;
    if reply.status != 200 {
        let status = reply.status;
        return Err(CallError::of_reply(status, &reply.error_body().await));
    }
    Ok(GenerationStream::new(reply))
}

/// Returns the body of the request.
fn body(model: &str, query: &GenerationQuery<'_>) -> Result<Bytes, CallError> {
    let mut body = Map::new();
    let options = [
        ("stop_conditions", &query.stop_conditions),
        ("sampling_options", &query.sampling_options),
    ];
    for (group, fields) in options {
        for (name, value) in fields {
            let name = field_name(name);
            if OWN_FIELDS.contains(&name) {
                let message = format!("{group}.{name} is set by the call itself: leave it out");
                return Err(CallError::new(ErrorCode::InvalidRequest, message));
            }
            if !value.is_null() {
                body.insert(name.to_owned(), value.clone());
            }
        }
    }
    body.insert("model".to_owned(), model.into());
    body.insert("prompt".to_owned(), query.token_ids.into());
    body.insert("stream".to_owned(), true.into());
    body.insert("return_token_ids".to_owned(), true.into());
    let with_usage = json!({"include_usage": true});
    body.insert("stream_options".to_owned(), with_usage);
    let body = serde_json::to_vec(&body);
    body.map(Bytes::from)
        .map_err(|error| CallError::new(ErrorCode::Internal, error))
}

/// Returns the engines' name of a field: Dynamo has another one for token ids that end a reply.
fn field_name(name: &str) -> &str {
    match name {
        "stop_token_ids_hidden" => "stop_token_ids",
        other => other,
    }
}

/// Returns the header fields of the request.
fn headers(query: &GenerationQuery<'_>) -> Result<Vec<(&'static str, String)>, CallError> {
    let mut fields = Vec::new();
    for (key, value) in &query.router_config_override {
        let known = OVERRIDES.iter().find(|(name, _)| name == key);
        let header = known.map(|(_, header)| *header);
        match (header, value) {
            (Some(_), Value::Null) => {}
            (Some(header), Value::Number(number)) => fields.push((header, number.to_string())),
            (Some(_), _) => {
                let message = format!("router_config_override.{key} is no number");
                return Err(CallError::new(ErrorCode::InvalidRequest, message));
            }
            (None, _) => {
                let [(first, _), (second, _)] = OVERRIDES;
                let message = format!(
                    "router_config_override has the unknown key {key:?}: expected {first}, {second} or both"
                );
                return Err(CallError::new(ErrorCode::InvalidRequest, message));
            }
        }
    }
    if let Some(worker) = query.worker {
        if !is_visible(worker) {
            let shown: String = worker.chars().take(SHOWN).collect();
            let message = format!(
                "worker_id is {shown:?}: expected the name of a worker, or NAME/RANK, in visible ASCII characters"
            );
            return Err(CallError::new(ErrorCode::InvalidRequest, message));
        }
        fields.push(("x-warmroute-worker", worker.to_owned()));
    }
    if let Some(key) = &query.api_key {
        if !is_visible(key.expose()) {
            let message = "api_key is ***: expected a key of visible ASCII characters";
            return Err(CallError::new(ErrorCode::InvalidRequest, message));
        }
        fields.push(("authorization", format!("Bearer {}", key.expose())));
    }
    Ok(fields)
}

/// Returns whether a text is part of a header field as it is.
fn is_visible(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The tokens of a generation, as they arrive. Dropping it cancels the generation.
#[derive(Debug)]
pub struct GenerationStream {
    /// `None` after the end.
    reply: Option<Reply>,
    events: EventReader,
}

impl GenerationStream {
    fn new(reply: Reply) -> Self {
        Self {
            reply: Some(reply),
            events: EventReader::default(),
        }
    }

    /// Returns the next part: a choice of a chunk as the engine sent it, always with the list
    /// `token_ids`; or, last, the `usage` with an empty list. `None` at the end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The generation failed; nothing follows.
    pub async fn next(&mut self) -> Option<Result<Value, CallError>> {
        loop {
            if let Some(part) = self.events.parts.pop_front() {
                if part.is_err() {
                    self.end();
                }
                return Some(part);
            }
            let reply = self.reply.as_mut()?;
            match reply.next_chunk().await {
                Some(Ok(chunk)) => self.events.push(&chunk),
                // Every stream that is whole says so.
                None if self.events.is_done => {
                    self.end();
                    return None;
                }
                None | Some(Err(_)) => {
                    self.end();
                    let message = "the stream of the generation was interrupted";
                    let code = ErrorCode::StreamInterrupted;
                    return Some(Err(CallError::new(code, message)));
                }
            }
        }
    }

    fn end(&mut self) {
        self.reply = None;
        self.events.parts.clear();
    }
}

/// Reads the events of a stream as parts of a generation.
#[derive(Debug, Default)]
struct EventReader {
    splitter: SseSplitter,
    /// The parts of one chunk of the reply at most.
    parts: VecDeque<Result<Value, CallError>>,
    /// Whether the stream's last event was read.
    is_done: bool,
}

impl EventReader {
    fn push(&mut self, chunk: &[u8]) {
        let Self {
            splitter,
            parts,
            is_done,
        } = self;
        splitter.push(chunk, |event| match event {
            SseEvent::Data { data, .. } if *data == *b"[DONE]" => *is_done = true,
            SseEvent::Data { data, .. } => read(&data, parts),
            SseEvent::Oversized => parts.push_back(Err(unreadable("an event is too long"))),
        });
    }
}

/// Reads the data of one event.
fn read(data: &[u8], parts: &mut VecDeque<Result<Value, CallError>>) {
    let Ok(mut chunk) = serde_json::from_slice::<Value>(data) else {
        return parts.push_back(Err(unreadable("an event is no JSON")));
    };
    if chunk["error"].is_object() {
        return parts.push_back(Err(CallError::of_reply(502, data)));
    }
    let choices = chunk.get_mut("choices").and_then(Value::as_array_mut);
    let choices = choices.map(mem::take).unwrap_or_default();
    let usage = chunk.get_mut("usage").map(Value::take);
    if choices.is_empty()
        && let Some(usage @ Value::Object(_)) = usage
    {
        parts.push_back(Ok(json!({"token_ids": [], "usage": usage})));
    }
    parts.extend(choices.into_iter().map(with_token_ids));
}

/// Checks that a choice has its token ids. The chunk that ends a choice may have no more of them.
fn with_token_ids(mut choice: Value) -> Result<Value, CallError> {
    if choice["token_ids"].is_array() {
        return Ok(choice);
    }
    if choice["finish_reason"].is_string() && choice["text"] == "" {
        choice["token_ids"] = json!([]);
        return Ok(choice);
    }
    Err(unreadable(
        "it has no token ids: the engine does not know return_token_ids",
    ))
}

fn unreadable(reason: &str) -> CallError {
    let message = format!("the worker's reply cannot be used: {reason}");
    CallError::new(ErrorCode::UpstreamProtocol, message)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    #[contract("DY40")]
    fn stop_conditions_and_sampling_options_are_fields_of_the_body() {
        let query = GenerationQuery {
            token_ids: &[1, 2],
            stop_conditions: map(
                json!({"max_tokens": 20, "ignore_eos": false, "stop_token_ids_hidden": [7], "min_tokens": null}),
            ),
            sampling_options: map(json!({"temperature": 0.7})),
            ..GenerationQuery::default()
        };
        let sent: Value = serde_json::from_slice(&body("m", &query).unwrap()).unwrap();
        let expected = json!({
            "model": "m", "prompt": [1, 2], "stream": true, "return_token_ids": true,
            "stream_options": {"include_usage": true}, "max_tokens": 20, "ignore_eos": false,
            "stop_token_ids": [7], "temperature": 0.7,
        });
        assert_eq!(sent, expected);
        for field in OWN_FIELDS {
            let query = GenerationQuery {
                sampling_options: map(json!({field: 1})),
                ..query.clone()
            };
            let error = body("m", &query).expect_err(field);
            assert!(error.message.contains(field), "{error}");
        }
    }

    #[test]
    #[contract("DY27")]
    fn the_override_and_the_worker_are_header_fields() {
        let query = |config| GenerationQuery {
            router_config_override: map(config),
            worker: Some("w1/2"),
            api_key: Some(Secret::new("k".to_owned())),
            ..GenerationQuery::default()
        };
        let sent = headers(&query(
            json!({"overlap_score_weight": 2.5, "router_temperature": null}),
        ));
        let expected = [
            ("x-warmroute-overlap-weight", "2.5".to_owned()),
            ("x-warmroute-worker", "w1/2".to_owned()),
            ("authorization", "Bearer k".to_owned()),
        ];
        assert_eq!(sent.unwrap(), expected);
        for wrong in [json!({"overlap_score_weight": "2"}), json!({"other": 1})] {
            let error = headers(&query(wrong)).expect_err("it is wrong");
            assert_eq!(error.code, "invalid_request");
        }
    }

    #[test]
    #[contract("DY27")]
    fn a_worker_or_a_key_with_other_characters_is_named_and_the_key_is_not_shown() {
        let long = format!("w\n{}", "x".repeat(1000));
        for (worker, shown) in [
            ("w1\nx-other: 1", r#""w1\nx-other: 1""#),
            ("w\0", r#""w\0""#),
            ("w\u{e9}", "\"w\u{e9}\""),
            ("w 1", "\"w 1\""),
            (&*long, "xxx"),
        ] {
            let query = GenerationQuery {
                worker: Some(worker),
                ..GenerationQuery::default()
            };
            let error = headers(&query).expect_err(worker);
            assert_eq!(error.code, "invalid_request");
            let message = error.message;
            assert!(message.starts_with("worker_id is \"w"), "{message}");
            assert!(message.contains(shown) && message.contains("expected"));
            assert!(message.len() < 200, "{message}");
        }
        for key in ["secret\n", "se\tcret", "secret\u{7f}"] {
            let query = GenerationQuery {
                api_key: Some(Secret::new(key.to_owned())),
                ..GenerationQuery::default()
            };
            let error = headers(&query).expect_err(key);
            assert_eq!(error.code, "invalid_request");
            let expected = "api_key is ***: expected a key of visible ASCII characters";
            assert_eq!(error.message, expected);
        }
    }

    fn parts(text: &str) -> (Vec<Result<Value, CallError>>, bool) {
        let mut events = EventReader::default();
        // However the bytes are split.
        for byte in text.as_bytes() {
            events.push(std::slice::from_ref(byte));
        }
        (events.parts.into(), events.is_done)
    }

    #[test]
    #[contract("DY27")]
    fn each_choice_of_a_chunk_is_a_part_with_its_token_ids() {
        let (parts, is_done) = parts(concat!(
            "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[5,6],\"finish_reason\":null}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}],\"usage\":null}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3}}\n\n",
            "data: [DONE]\n\n",
        ));
        let parts: Vec<Value> = parts
            .into_iter()
            .map(|part| part.expect("a part"))
            .collect();
        let expected = [
            json!({"index": 0, "text": "a", "token_ids": [5, 6], "finish_reason": null}),
            json!({"index": 0, "text": "", "token_ids": [], "finish_reason": "stop"}),
            json!({"token_ids": [], "usage": {"prompt_tokens": 3}}),
        ];
        assert_eq!(parts, expected);
        assert!(is_done);
    }

    #[test]
    fn an_event_that_is_no_chunk_with_token_ids_is_an_error() {
        for (event, code) in [
            (
                r#"{"error":{"message":"cut","code":"stream_interrupted"}}"#,
                "stream_interrupted",
            ),
            (
                r#"{"choices":[{"index":0,"text":"a","token_ids":null}]}"#,
                "upstream_protocol",
            ),
            ("no json", "upstream_protocol"),
        ] {
            let (parts, is_done) = parts(&format!("data: {event}\n\n"));
            let codes: Vec<_> = parts
                .into_iter()
                .map(|part| part.expect_err(event).code)
                .collect();
            assert_eq!((codes, is_done), (vec![code.into()], false), "{event}");
        }
    }
}
