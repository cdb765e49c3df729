//! Identity of a worker: models, engine kind and version, block size, event endpoints.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use serde_json::Value;

use super::{
    ProbeClient, ProbeError,
    client::{probe_error, unexpected},
    event_endpoints::{self, EventEndpoint},
    messages, metrics_page,
    metrics_text::{EngineMetrics, Scrape},
    model_list::{self, ModelList},
};
use crate::{EngineKind, MessagesMode, ProblemKind, engine::list_is_optional};

const LARGEST_MODEL_LIST: usize = 4 << 20;
const LARGEST_VERSION: usize = 64 << 10;
const LARGEST_SOURCES: usize = 1 << 20;
/// Longest accepted version, in bytes.
const LONGEST_VERSION: usize = 64;
/// Time limit of the requests beside the model list: they are not worth a longer wait, since an
/// engine that is slow to report its version still serves.
const SIDE_REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// The limit for a known worker that comes back: its earlier answers are good enough for a start.
const RETURNING_SIDE_REQUEST_TIMEOUT: Duration = Duration::from_millis(100);

/// The time that a check may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckPace {
    /// Sends every request and waits for each answer.
    Thorough,
    /// For a known worker that comes back: it is used at once with its earlier facts, and checked
    /// thoroughly afterwards.
    Returning,
}

/// A worker's facts about itself.
#[derive(Clone, Debug)]
pub(crate) struct EngineIdentity {
    pub(crate) engine: EngineKind,
    pub(crate) list: ModelList,
    pub(crate) facts: EngineFacts,
    /// Its load and counters as of now, if it reported them this time.
    pub(crate) scrape: Option<Scrape>,
    /// Whether every request was answered this time.
    pub(crate) complete: bool,
}

/// Answers to the requests beside the model list, each `None` until the first answer. A reply that
/// the worker has no such route is an answer, too; silence is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineFacts {
    version: Option<Option<Arc<str>>>,
    metrics: Option<EngineMetrics>,
    /// Announced publishers. An empty list: the worker publishes nothing.
    announced: Option<Option<Vec<EventEndpoint>>>,
    /// How it takes Anthropic messages.
    messages: Option<MessagesMode>,
}

/// The configured facts of a worker; `None` is detected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfiguredIdentity {
    pub(crate) engine: Option<EngineKind>,
    pub(crate) messages: Option<MessagesMode>,
}

impl EngineFacts {
    pub(crate) fn version(&self) -> Option<&Arc<str>> {
        self.version.as_ref()?.as_ref()
    }

    pub(crate) fn metrics(&self) -> Option<&EngineMetrics> {
        self.metrics.as_ref()
    }

    pub(crate) fn announced(&self) -> Option<&[EventEndpoint]> {
        self.announced.as_ref()?.as_deref()
    }

    /// Returns the number of data-parallel ranks that the engine announces or counts; at least 1.
    pub(crate) fn ranks(&self) -> u32 {
        let announced = self.announced().unwrap_or_default();
        let announced = announced.iter().map(|stream| stream.rank + 1).max();
        let counted = self.metrics().map_or(0, |metrics| metrics.ranks);
        announced.unwrap_or(0).max(counted).max(1)
    }

    /// Returns how the worker takes messages; without an answer it gets chats, which all engines
    /// accept.
    pub(crate) fn messages(&self) -> MessagesMode {
        self.messages.unwrap_or_default()
    }

    fn complete(&self) -> bool {
        self.version.is_some()
            && self.metrics.is_some()
            && self.announced.is_some()
            && self.messages.is_some()
    }

    /// Returns these answers, and the earlier ones where these are missing.
    fn or(self, before: &Self) -> Self {
        Self {
            version: self.version.or_else(|| before.version.clone()),
            metrics: self.metrics.or_else(|| before.metrics.clone()),
            announced: self.announced.or_else(|| before.announced.clone()),
            messages: self.messages.or(before.messages),
        }
    }
}

/// Requests every fact at once that is not configured. `before`: earlier answers, which stay valid
/// where there are no new ones.
pub(crate) async fn identify(
    client: &ProbeClient,
    configured: ConfiguredIdentity,
    before: &EngineFacts,
    pace: CheckPace,
) -> Result<EngineIdentity, ProbeError> {
    let side = client.with_timeout(match pace {
        CheckPace::Thorough => SIDE_REQUEST_TIMEOUT,
        CheckPace::Returning => RETURNING_SIDE_REQUEST_TIMEOUT,
    });
    let ConfiguredIdentity { engine, messages } = configured;
    let (list, version, metrics, sources, messages) = tokio::join!(
        list_models(client, engine),
        side.fetch("/version", LARGEST_VERSION),
        metrics_page::fetch(&side, engine),
        side.fetch("/kv_event_sources", LARGEST_SOURCES),
        messages::messages_mode(&side, messages),
    );
    let list = list?;
    let fresh = EngineFacts {
        version: version.map(|body| read_version(&body?)),
        metrics: metrics.map(Option::unwrap_or_default),
        announced: sources.map(|body| event_endpoints::read(&body?, client.url())),
        messages,
    };
    let complete = fresh.complete();
    let scrape = fresh.metrics.as_ref().map(EngineMetrics::scrape);
    let facts = fresh.or(before);
    let engine = engine.unwrap_or_else(|| {
        let owned = list.models.iter().any(|model| &*model.owned_by == "vllm");
        let speaks_vllm = facts.metrics().is_some_and(|metrics| metrics.is_vllm)
            || owned
            || facts.announced().is_some();
        if speaks_vllm && facts.version().is_some() {
            EngineKind::Vllm
        } else {
            EngineKind::Openai
        }
    });
    Ok(EngineIdentity {
        engine,
        list,
        facts,
        scrape,
        complete,
    })
}

/// Requests the model list alone.
pub(crate) async fn list_models(
    client: &ProbeClient,
    engine: Option<EngineKind>,
) -> Result<ModelList, ProbeError> {
    const PATH: &str = "/v1/models";
    let reply = client
        .get(PATH, LARGEST_MODEL_LIST)
        .await
        .map_err(|error| probe_error(&error))?;
    match reply.status {
        StatusCode::OK => model_list::read(&reply.body).ok_or_else(|| {
            ProbeError::failed(ProblemKind::Unusable, format!(
                "answered {PATH} with something else than a model list: check that the url is an engine's"
            ))
        }),
        // A server without the route may still serve the models that the configuration names.
        StatusCode::NOT_FOUND => Ok(ModelList::default()),
        StatusCode::SERVICE_UNAVAILABLE => Err(ProbeError::loading(PATH, reply.status)),
        status if status.is_client_error() && list_is_optional(engine) => Ok(ModelList::default()),
        status => Err(unexpected(PATH, status)),
    }
}

/// Requests the engine's own load and counters.
pub(crate) async fn scrape(client: &ProbeClient, engine: Option<EngineKind>) -> Option<Scrape> {
    let found = metrics_page::fetch_within(client, engine, SIDE_REQUEST_TIMEOUT).await?;
    Some(found.scrape())
}

fn read_version(body: &[u8]) -> Option<Arc<str>> {
    let reply: Value = serde_json::from_slice(body).ok()?;
    let version = reply.get("version")?.as_str()?;
    let plain = !version.is_empty()
        && version.len() <= LONGEST_VERSION
        && version.bytes().all(|b| b.is_ascii_graphic());
    plain.then(|| version.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_version_is_accepted() {
        assert_eq!(
            read_version(br#"{"version":"0.32.0"}"#).as_deref(),
            Some("0.32.0")
        );
        for nonsense in [
            &b"0.32.0"[..],
            b"{}",
            br#"{"version":7}"#,
            br#"{"version":"a b"}"#,
            br#"{"version":""}"#,
        ] {
            assert_eq!(read_version(nonsense), None);
        }
    }
}
