//! A chat client of the demo: streams a completion and measures latency as a user sees it.

use std::time::Duration;

use dialect::{SseEvent, SseSplitter, StreamChunk, Usage};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use kv_blocks::Moment;
use net::{Address, Clock};
use serde_json::json;
use tokio::task::AbortHandle;

/// One reply as the client saw it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientReply {
    pub(crate) text: String,
    /// Time to the first token, ms.
    pub(crate) ttft_ms: f64,
    pub(crate) usage: Usage,
    /// Id of the router's receipt.
    pub(crate) decision: Option<String>,
    /// Worker that answered.
    pub(crate) worker: Option<String>,
}

/// Keep-alive connection of one user.
#[derive(Debug)]
pub(crate) struct Client {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: AbortHandle,
    host: String,
    clock: Clock,
}

impl Client {
    pub(crate) async fn connect(address: &Address, clock: Clock) -> anyhow::Result<Self> {
        let stream = net::connect(address, Duration::from_secs(5)).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = runtime::spawn(async move { drop(connection.await) }).abort_handle();
        Ok(Self {
            sender,
            driver,
            host: address.to_string(),
            clock,
        })
    }

    /// Sends one turn with the whole conversation and reads the stream to its end.
    pub(crate) async fn chat(
        &mut self,
        model: &str,
        messages: &[serde_json::Value],
        reply_tokens: u32,
    ) -> anyhow::Result<ClientReply> {
        let body = json!({
            "model": model,
            "messages": messages,
            "max_tokens": reply_tokens,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let request = Request::post("/v1/chat/completions")
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        let sent = self.clock.now();
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        anyhow::ensure!(
            response.status() == StatusCode::OK,
            "the router answered {}",
            response.status()
        );
        self.read(response, sent).await
    }

    /// Reads a stream to its end; `sent` is the time of its request.
    async fn read(
        &self,
        mut response: Response<Incoming>,
        sent: Moment,
    ) -> anyhow::Result<ClientReply> {
        let named = |name: &str| {
            response
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        let mut answer = ClientReply {
            decision: named("x-warmroute-decision"),
            worker: named("x-warmroute-worker"),
            ..ClientReply::default()
        };
        let (mut events, mut done) = (SseSplitter::new(), false);
        while let Some(frame) = response.body_mut().frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            events.push(&data, |event| {
                let SseEvent::Data { data, .. } = event else {
                    return;
                };
                done |= dialect::is_done(&data);
                let Some(chunk) = StreamChunk::read(&data) else {
                    return;
                };
                if chunk.has_output && answer.ttft_ms == 0.0 {
                    answer.ttft_ms = self.clock.now().ms_since(sent);
                }
                answer.usage = chunk.usage.unwrap_or(answer.usage);
                answer.text.push_str(&delta(&data));
            });
        }
        anyhow::ensure!(done, "the stream ended without [DONE]");
        Ok(answer)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Returns the text that one chunk of a chat adds.
fn delta(data: &[u8]) -> String {
    let chunk: serde_json::Value = serde_json::from_slice(data).unwrap_or_default();
    chunk["choices"][0]["delta"]["content"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}
