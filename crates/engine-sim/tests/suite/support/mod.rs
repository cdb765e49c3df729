//! A started engine and a plain HTTP client.

use std::{future::Future, time::Duration};

use bytes::Bytes;
use clap::Parser;
use engine_sim::{EngineArgs, EngineConfig, RunningEngine, start};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

#[derive(Parser)]
struct TestCli {
    #[command(flatten)]
    engine: EngineArgs,
}

/// A fast engine on free ports.
const BASE: [(&str, &str); 4] = [
    ("--port", "0"),
    ("--kv-events", "tcp://127.0.0.1:0"),
    ("--replay", "tcp://127.0.0.1:0"),
    ("--speed", "20"),
];

pub(crate) async fn engine(flags: &str) -> RunningEngine {
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let base = BASE
        .iter()
        .filter(|(name, _)| !flags.contains(name))
        .flat_map(|(name, value)| [*name, *value]);
    let words: Vec<&str> = std::iter::once("engine")
        .chain(base)
        .chain(flags.iter().copied())
        .collect();
    start(EngineConfig::try_from(TestCli::try_parse_from(words).unwrap().engine).unwrap())
        .await
        .unwrap()
}

/// A reply, read to its end.
#[derive(Debug)]
pub(crate) struct CollectedReply {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    /// False if the connection broke before the body's end.
    pub(crate) whole: bool,
}

impl CollectedReply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Data of the events of a stream.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.text()
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: "))
            .collect()
    }
}

pub(crate) async fn open(
    engine: &RunningEngine,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, hyper::Error> {
    let stream = TcpStream::connect(&engine.http_addr).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}

pub(crate) fn request(
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Request<Full<Bytes>> {
    let mut builder = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "engine");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    let body = if body.is_null() {
        Bytes::new()
    } else {
        Bytes::from(body.to_string())
    };
    builder.body(Full::new(body)).unwrap()
}

pub(crate) async fn send(
    engine: &RunningEngine,
    request: Request<Full<Bytes>>,
) -> Result<CollectedReply, hyper::Error> {
    let mut response = open(engine, request).await?;
    let (mut body, mut whole) = (Vec::new(), true);
    while let Some(frame) = response.body_mut().frame().await {
        match frame {
            Ok(frame) => body.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new())),
            Err(_) => {
                whole = false;
                break;
            }
        }
    }
    let content_type = response
        .headers()
        .get("content-type")
        .map(|value| value.to_str().unwrap().to_owned());
    Ok(CollectedReply {
        status: response.status().as_u16(),
        content_type: content_type.unwrap_or_default(),
        body: body.into(),
        whole,
    })
}

pub(crate) async fn get(engine: &RunningEngine, path: &str) -> CollectedReply {
    send(engine, request(Method::GET, path, &[], &Value::Null))
        .await
        .unwrap()
}

pub(crate) async fn post(engine: &RunningEngine, path: &str, body: &Value) -> CollectedReply {
    send(engine, request(Method::POST, path, &[], body))
        .await
        .unwrap()
}

pub(crate) async fn stats(engine: &RunningEngine) -> Value {
    get(engine, "/sim/stats").await.json()
}

pub(crate) async fn fault(engine: &RunningEngine, kind: &str) {
    let reply = post(engine, "/sim/fault", &json!({"kind": kind})).await;
    assert_eq!(reply.status, 200, "{reply:?}");
}

pub(crate) fn chat(content: &str, max_tokens: u32) -> Value {
    json!({"model": "sim", "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens})
}

pub(crate) fn streamed(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    body
}

/// A text of many tokens.
pub(crate) fn long_text(words: usize) -> String {
    ["the engine keeps every block it has computed"; 64]
        .join(" ")
        .split(' ')
        .take(words)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Repeats the check until it succeeds; fails after a minute.
pub(crate) async fn eventually<F: Future<Output = bool>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The JSON events of a stream.
pub(crate) fn chunks(reply: &CollectedReply) -> Vec<Value> {
    let data = reply
        .text()
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

/// One field of the chunks' deltas, concatenated.
pub(crate) fn joined(chunks: &[Value], field: &str) -> String {
    chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str())
        .collect()
}
