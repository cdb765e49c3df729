//! Who answers there: models, engine kind and version, block size, event endpoints.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use serde_json::Value;

use super::{
    Asker, Trouble,
    ask::{trouble, unexpected},
    event_endpoints::{self, EventEndpoint},
    metrics_text::{self, EngineMetrics},
    model_list::{self, ModelList},
};
use crate::{Engine, EngineLoad};

const LARGEST_MODEL_LIST: usize = 4 << 20;
const LARGEST_METRICS: usize = 16 << 20;
const LARGEST_VERSION: usize = 64 << 10;
const LARGEST_SOURCES: usize = 1 << 20;
/// Longest version taken over, in bytes.
const LONGEST_VERSION: usize = 64;
/// The questions beside the model list are not worth a longer wait: an engine that is slow to tell its version serves.
const SIDE_QUESTION: Duration = Duration::from_secs(3);

/// What a worker says about itself.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) engine: Engine,
    pub(crate) version: Option<Arc<str>>,
    pub(crate) list: ModelList,
    pub(crate) metrics: EngineMetrics,
    /// `None`: it does not say. Empty: it says that it publishes nothing.
    pub(crate) announced: Option<Vec<EventEndpoint>>,
}

/// Asks everything at once. `engine` is the configured kind; `None` is found out.
pub(crate) async fn identify(asker: &Asker, engine: Option<Engine>) -> Result<Identity, Trouble> {
    let side = asker.with_timeout(SIDE_QUESTION);
    let (list, version, metrics, sources) = tokio::join!(
        list_models(asker),
        side.get_ok("/version", LARGEST_VERSION),
        side.get_ok("/metrics", LARGEST_METRICS),
        side.get_ok("/kv_event_sources", LARGEST_SOURCES),
    );
    let list = list?;
    let version = version.and_then(|body| read_version(&body));
    let metrics = metrics.map(|body| metrics_text::read(&String::from_utf8_lossy(&body))).unwrap_or_default();
    // An engine behind a unix socket shares our machine.
    let host = asker.url().host().unwrap_or("127.0.0.1");
    let announced = sources.and_then(|body| event_endpoints::read(&body, host));
    let engine = engine.unwrap_or_else(|| {
        let owned = list.models.iter().any(|model| &*model.owned_by == "vllm");
        let speaks_vllm = metrics.is_vllm || owned || announced.is_some();
        if speaks_vllm && version.is_some() { Engine::Vllm } else { Engine::Openai }
    });
    Ok(Identity { engine, version, list, metrics, announced })
}

/// Asks for the model list alone.
pub(crate) async fn list_models(asker: &Asker) -> Result<ModelList, Trouble> {
    const PATH: &str = "/v1/models";
    let reply = asker.get(PATH, LARGEST_MODEL_LIST).await.map_err(|error| trouble(&error))?;
    match reply.status {
        StatusCode::OK => model_list::read(&reply.body).ok_or_else(|| {
            Trouble::failed(format!(
                "answered {PATH} with something else than a model list: check that the url is an engine's"
            ))
        }),
        // A server without the route may still serve the models that the configuration names.
        StatusCode::NOT_FOUND => Ok(ModelList::default()),
        StatusCode::SERVICE_UNAVAILABLE => Err(Trouble {
            check: crate::health::Check::Loading,
            text: format!("answered {PATH} with 503: the engine is loading, wait"),
        }),
        status => Err(unexpected(PATH, status)),
    }
}

/// Asks for the engine's own load.
pub(crate) async fn engine_load(asker: &Asker) -> Option<EngineLoad> {
    let body = asker.with_timeout(SIDE_QUESTION).get_ok("/metrics", LARGEST_METRICS).await?;
    Some(metrics_text::read(&String::from_utf8_lossy(&body)).load)
}

fn read_version(body: &[u8]) -> Option<Arc<str>> {
    let reply: Value = serde_json::from_slice(body).ok()?;
    let version = reply.get("version")?.as_str()?;
    let plain =
        !version.is_empty() && version.len() <= LONGEST_VERSION && version.bytes().all(|b| b.is_ascii_graphic());
    plain.then(|| version.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_version_is_believed() {
        assert_eq!(read_version(br#"{"version":"0.32.0"}"#).as_deref(), Some("0.32.0"));
        for nonsense in [&b"0.32.0"[..], b"{}", br#"{"version":7}"#, br#"{"version":"a b"}"#, br#"{"version":""}"#] {
            assert_eq!(read_version(nonsense), None);
        }
    }
}
