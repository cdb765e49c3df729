//! Requests to an engine that only checks send, with its key, a time limit and a size limit.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use net::{
    WorkerUrl,
    fetch::{self, FetchError},
};
use serde_json::Value;

/// Largest reply read, in bytes: token ids of a short text.
const LARGEST_REPLY: usize = 4 << 20;
/// Longest excerpt of an engine's message that is shown, in characters.
const LONGEST_WORDS: usize = 200;
/// The data-parallel rank a request is for.
const RANK_HEADER: &str = "x-data-parallel-rank";

/// Client of one engine.
#[derive(Debug)]
pub(crate) struct EngineClient {
    url: WorkerUrl,
    headers: HeaderMap,
}

/// Reason why a call gave no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EngineCallError {
    /// The engine has no such path, or not this method.
    NoRoute(String),
    /// The engine rejects the request (4xx).
    Bad(String),
    /// The engine did not answer, or is temporarily unavailable.
    Failed(String),
}

impl EngineCallError {
    pub(crate) fn into_text(self) -> String {
        match self {
            Self::NoRoute(text) | Self::Bad(text) | Self::Failed(text) => text,
        }
    }
}

impl EngineClient {
    pub(crate) fn new(
        url: WorkerUrl,
        kind: fleet::EngineKind,
        api_key: Option<&config::Secret>,
    ) -> Self {
        let headers = fleet::credentials(kind, api_key.map(|key| key.expose())).collect();
        Self { url, headers }
    }

    /// Returns the status of a path at `url`, which is this engine's address or near it.
    pub(crate) async fn status(
        &self,
        url: &WorkerUrl,
        path: &str,
        limit: Duration,
    ) -> Result<StatusCode, FetchError> {
        fetch::get(url, path, &self.headers, limit, LARGEST_REPLY)
            .await
            .map(|reply| reply.status)
    }

    /// Returns the JSON of a path, if there is any.
    pub(crate) async fn get(&self, path: &str, limit: Duration) -> Option<Value> {
        let reply = fetch::get(&self.url, path, &self.headers, limit, LARGEST_REPLY)
            .await
            .ok()?;
        (reply.status == StatusCode::OK)
            .then(|| serde_json::from_slice(&reply.body).ok())
            .flatten()
    }

    /// Posts JSON; `rank` is the data-parallel rank it is for.
    pub(crate) async fn post(
        &self,
        path: &str,
        body: &Value,
        rank: Option<u32>,
        limit: Duration,
    ) -> Result<Value, EngineCallError> {
        let mut headers = self.headers.clone();
        if let Some(rank) = rank {
            headers.insert(RANK_HEADER, HeaderValue::from(rank));
        }
        let body = Bytes::from(body.to_string());
        let reply = fetch::post(&self.url, path, &headers, Some(body), limit, LARGEST_REPLY)
            .await
            .map_err(|error| EngineCallError::Failed(error.to_string()))?;
        match reply.status {
            StatusCode::OK => serde_json::from_slice(&reply.body).map_err(|_| {
                EngineCallError::Failed(format!("answered {path} with something else than JSON"))
            }),
            status => {
                let text = format!(
                    "answered {path} with {}: {}",
                    status.as_u16(),
                    words(&reply.body)
                );
                Err(match status {
                    StatusCode::NOT_FOUND
                    | StatusCode::METHOD_NOT_ALLOWED
                    | StatusCode::NOT_IMPLEMENTED => EngineCallError::NoRoute(text),
                    status if status.is_client_error() => EngineCallError::Bad(text),
                    _ => EngineCallError::Failed(text),
                })
            }
        }
    }
}

/// Returns an error's message, or the start of the body.
fn words(body: &[u8]) -> String {
    let json = serde_json::from_slice::<Value>(body).ok();
    let message = json.as_ref().and_then(|body| {
        let error = body.get("error").unwrap_or(body);
        error
            .get("message")
            .or(error.get("detail"))
            .and_then(Value::as_str)
    });
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    text.chars()
        .filter(|c| !c.is_control())
        .take(LONGEST_WORDS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engines_error_text_is_truncated_and_plain() {
        assert_eq!(
            words(br#"{"error":{"message":"no such model"}}"#),
            "no such model"
        );
        assert_eq!(words(br#"{"detail":"Not Found"}"#), "Not Found");
        assert_eq!(words(b"<html>\x1b[31m"), "<html>[31m");
        assert_eq!(words("x".repeat(9_000).as_bytes()).len(), LONGEST_WORDS);
    }
}
