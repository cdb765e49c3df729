//! Shows whether a worker honours salts: one prompt of our own, twice under one salt and once under
//! another.
//!
//! The prompt begins with a random word, so that it shares no blocks with other requests, and each
//! request asks for one token.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::ProbeClient;
use crate::{
    SaltHandling, SaltSupport, WorkerView,
    probe_prompt::{cached_tokens, lengths, nonce, words},
};

/// Time limit of all requests of one probe.
const TIME_LIMIT: Duration = Duration::from_secs(5);
const LARGEST_REPLY: usize = 256 << 10;
/// Most models of a worker that are probed. The models of one worker may be those of several
/// engines: of a worker with more nothing is shown.
const MOST_MODELS: usize = 4;
/// The rank that represents an engine of several ranks.
const PROBED_RANK: u32 = 0;
/// The routes that are tried in turn: an engine may lack completions.
const ROUTES: [ProbeRoute; 2] = [ProbeRoute::Completions, ProbeRoute::Chat];

#[derive(Clone, Copy, Debug)]
enum ProbeRoute {
    Completions,
    Chat,
}

/// The worker's answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The cached tokens that it reports.
    Cached(Option<u64>),
    /// It does not take the request.
    Refused,
}

/// Returns what the worker does with salts; `None`: it did not answer, or not now.
pub(crate) async fn salt_support(client: &ProbeClient, worker: &WorkerView) -> Option<SaltSupport> {
    if worker.salt_handling() != SaltHandling::Takes {
        return Some(SaltSupport::Ignored);
    }
    let served = &worker.served;
    let mut models: Vec<&Arc<str>> = served.models.iter().map(|model| &model.id).collect();
    if models.is_empty() {
        models.extend(served.namespace_model.iter());
    }
    let longest = served.models.iter().filter_map(|model| model.max_model_len);
    let cache = &worker.cache;
    let known = cache.block_size_known.then_some(cache.block_size);
    let count = match lengths(known, None, longest.min()) {
        Ok((count, _)) if (1..=MOST_MODELS).contains(&models.len()) => count,
        _ => return Some(SaltSupport::Unknown),
    };
    let mut client = client.limited_to(TIME_LIMIT);
    if worker.dp_ranks() > 1 {
        client = client.for_rank(PROBED_RANK);
    }
    let probed = all_models(&client, &models, count);
    tokio::time::timeout(TIME_LIMIT, probed).await.ok()?
}

async fn all_models(client: &ProbeClient, models: &[&Arc<str>], count: u32) -> Option<SaltSupport> {
    let mut shown = SaltSupport::Honoured;
    for &model in models {
        let text = words(&nonce(), count);
        let probe = SaltProbe {
            client,
            model,
            text,
        };
        shown = shown.and(probe.run().await?);
    }
    Some(shown)
}

/// The probe of one model.
struct SaltProbe<'a> {
    client: &'a ProbeClient,
    model: &'a str,
    text: String,
}

impl SaltProbe<'_> {
    async fn run(&self) -> Option<SaltSupport> {
        let (salt, other_salt) = (nonce(), nonce());
        for route in ROUTES {
            // Computes the blocks.
            if self.send(route, &salt).await? == Answer::Refused {
                continue;
            }
            let control = self.send(route, &salt).await?;
            let other = self.send(route, &other_salt).await?;
            return Some(match (control, other) {
                (Answer::Cached(control), Answer::Cached(other)) => {
                    SaltSupport::observed(control, other)
                }
                _ => SaltSupport::Unknown,
            });
        }
        Some(SaltSupport::Unknown)
    }

    async fn send(&self, route: ProbeRoute, salt: &str) -> Option<Answer> {
        let mut body = json!({"model": self.model, "max_tokens": 1, "temperature": 0});
        body["cache_salt"] = salt.into();
        let path = match route {
            ProbeRoute::Completions => {
                body["prompt"] = self.text.as_str().into();
                "/v1/completions"
            }
            ProbeRoute::Chat => {
                body["messages"] = json!([{"role": "user", "content": self.text}]);
                "/v1/chat/completions"
            }
        };
        let body = Bytes::from(body.to_string());
        let reply = self.client.post(path, Some(body), LARGEST_REPLY).await;
        let reply = reply.ok()?;
        match reply.status {
            StatusCode::OK => {
                let read = serde_json::from_slice::<Value>(&reply.body);
                Some(read.map_or(Answer::Refused, |reply| {
                    Answer::Cached(cached_tokens(&reply))
                }))
            }
            StatusCode::NOT_IMPLEMENTED => Some(Answer::Refused),
            StatusCode::TOO_MANY_REQUESTS => None,
            status => status.is_client_error().then_some(Answer::Refused),
        }
    }
}
