//! What engines can tell about their tokenizers.

use std::{net::IpAddr, time::Duration};

use http::StatusCode;
use net::WorkerUrl;

use super::files::{self, Files};
use crate::probe::ProbeClient;

/// Time limit for fetching an engine's own tokenizer files.
const ENGINE_FILES: Duration = Duration::from_secs(10);
/// Byte limit of a reply with the tokens of one word.
const SHORT_REPLY: usize = 64 << 10;

/// Returns whether the engine has the `/tokenize` that takes a `prompt`, by sending one word.
/// Another method would show less: some servers answer it with 404 or 501, and some have another
/// route of that name.
pub(super) async fn answers_tokenize(client: &ProbeClient, model: &str) -> bool {
    let body = serde_json::json!({"model": model, "prompt": "warm"}).to_string();
    let Ok(reply) = client
        .post("/tokenize", Some(body.into()), SHORT_REPLY)
        .await
    else {
        return false;
    };
    let answer: serde_json::Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let tokens = answer["tokens"]
        .as_array()
        .filter(|tokens| !tokens.is_empty());
    reply.status == StatusCode::OK
        && tokens.is_some_and(|tokens| tokens.iter().all(serde_json::Value::is_u64))
}

/// Fetches the files that our own simulated engine serves, so that a trial needs no configuration;
/// other engines answer 404.
///
/// Only workers on this machine are queried. An answer is no proof of identity: any process that
/// listens on a local port, or a tunnel behind it, can answer alike. Such a worker gains little:
/// the files pass the checks of every other tokenizer, a model uses them only while all its workers
/// have equal ones (`snapshot_build`), and they only decide which worker a prompt goes to. The
/// configuration must name the files of other engines.
pub(super) async fn files_of_simulator(client: &ProbeClient) -> Option<Files> {
    if !is_on_this_machine(client.url()) {
        return None;
    }
    let client = client.with_timeout(ENGINE_FILES);
    let tokenizer_json = client
        .get_ok("/sim/tokenizer.json", files::LARGEST_FILE)
        .await?;
    let tokenizer_config = client
        .get_ok("/sim/tokenizer_config.json", files::LARGEST_FILE)
        .await;
    Some(Files {
        origin: client.url().to_string(),
        tokenizer_json: tokenizer_json.into(),
        tokenizer_config: tokenizer_config.map(Into::into),
        chat_template: None,
    })
}

/// Returns whether the URL is a unix socket or a loopback address. A name may resolve to any
/// address, except `localhost`.
fn is_on_this_machine(url: &WorkerUrl) -> bool {
    let Some(host) = url.host() else { return true };
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S64")]
    fn simulator_files_are_requested_only_from_local_workers() {
        let is_local = |url: &str| is_on_this_machine(&url.parse().expect("a worker's url"));
        for url in [
            "http://127.0.0.1:8000",
            "http://[::1]:8000",
            "http://localhost:8000",
            "unix:///run/engine.sock",
        ] {
            assert!(is_local(url), "{url}");
        }
        for url in [
            "http://10.0.0.1:8000",
            "http://engine:8000",
            "http://127.0.0.1.example:8000",
            "http://[::2]:8000",
        ] {
            assert!(!is_local(url), "{url}");
        }
    }
}
