//! What a request says about being answered from another's reply.

use std::sync::Arc;

use bytes::Bytes;
use config::AbsentTemperature;
use dialect::{Dialect, LastQuestion, RepeatabilityView, RequestKey, Temperature};
use http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::CacheReason;
use crate::{
    Gateway, coalesce,
    request::accept::{AcceptedRequest, HeaderOverrides},
};

/// Headers that change what engines answer.
const RELEVANT: [&str; 4] = [
    "anthropic-beta",
    "anthropic-version",
    "openai-beta",
    "x-cache-salt",
];
/// Headers that say who asks, as engines and clients have them.
const CREDENTIALS: [&str; 5] = [
    "authorization",
    "x-api-key",
    "api-key",
    "x-router-key",
    "cookie",
];
/// The digest of a longer body would hold up others on this thread.
const LONG_BODY: usize = 64 * 1024;

/// Read once, before anything is looked up.
#[derive(Debug)]
pub(super) struct CacheRequest {
    /// `Err`: why no kept reply may answer; `None`: of this route none ever does.
    pub(super) cacheability: Option<Result<(), CacheReason>>,
    pub(super) dialect: Dialect,
    /// Looks nothing up, and keeps what comes.
    pub(super) fresh: bool,
    /// What is asked for; `None` where nobody needs to know.
    pub(super) body: Option<BodyCacheability>,
    own_way: bool,
}

/// What the body says.
#[derive(Clone, Debug)]
pub(super) struct BodyCacheability {
    /// What it shares with those that are alike; `None` where nothing may answer it but a worker.
    pub(super) same: Option<RequestDigests>,
    pub(super) model: Arc<str>,
    asks_repeatable: bool,
    temperature: Temperature,
    pub(super) answer: RequestedForm,
}

/// The digests of a request: what is asked for, and how it is to be told.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestDigests {
    pub(super) key: RequestKey,
    form: RequestKey,
}

/// How the reply is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedForm {
    Whole,
    Stream {
        /// Whether its usage is to be told.
        usage: bool,
    },
    /// A stream with more in it than a replay could have.
    OtherStream,
}

impl CacheRequest {
    pub(super) async fn of(gateway: &Gateway, call: &AcceptedRequest, dialect: Dialect) -> Self {
        let settings = gateway.cache.settings();
        let is_kept = matches!(
            dialect,
            Dialect::Chat | Dialect::Completions | Dialect::Messages
        );
        let store = of_cache(&call.headers);
        // What an engine keeps of a response is for one client to go on from.
        let may_be_shared = dialect != Dialect::Responses
            && gateway.rules.deduplication.is_some()
            && store == StoreDirective::Usual;
        let needed = if is_kept && settings.enabled {
            store != StoreDirective::Nothing
        } else {
            may_be_shared && mentions(call.body.bytes())
        };
        let said = if needed { said(call).await } else { None };
        let own_way = call.overrides != HeaderOverrides::default();
        let standing = is_kept.then(|| {
            if !settings.enabled {
                return Err(CacheReason::Off);
            }
            if store == StoreDirective::Nothing {
                return Err(CacheReason::NoStore);
            }
            // The worker that was named is to answer.
            if call.overrides.worker.is_some() {
                return Err(CacheReason::Pinned);
            }
            let said = said.as_ref().ok_or(CacheReason::Unreadable)?;
            match said.temperature {
                Temperature::Other => return Err(CacheReason::Temperature),
                Temperature::Absent if settings.absent_temperature == AbsentTemperature::Bypass => {
                    return Err(CacheReason::AbsentTemperature);
                }
                Temperature::Absent | Temperature::Zero => {}
            }
            match said.answer {
                // Streams of messages are not kept.
                RequestedForm::Stream { .. } if dialect == Dialect::Messages => {
                    Err(CacheReason::Stream)
                }
                RequestedForm::OtherStream => Err(CacheReason::Stream),
                RequestedForm::Whole | RequestedForm::Stream { .. } => Ok(()),
            }
        });
        Self {
            cacheability: standing,
            dialect,
            fresh: store == StoreDirective::Fresh,
            body: said,
            own_way,
        }
    }

    /// What is asked last, and the rest.
    pub(super) fn last_question(&self, call: &AcceptedRequest) -> Option<LastQuestion> {
        // Its digest would hold up others on this thread.
        if call.body.bytes().len() > LONG_BODY {
            return None;
        }
        let (tenant, headers) = (tenant(&call.headers), relevant(&call.headers));
        let headers: Vec<(&str, &[u8])> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_slice()))
            .collect();
        dialect::last_question(
            self.dialect,
            call.body.bytes(),
            &tenant,
            call.target.as_str(),
            &headers,
        )
    }

    /// The key of those that are alike; `None` for a request that is to be sent by itself. `kept`: whether the reply will be.
    pub(super) fn coalescing_key(
        &self,
        gateway: &Gateway,
        kept: bool,
    ) -> Option<coalesce::FlightKey> {
        let said = self.body.as_ref()?;
        let by_itself = self.own_way || self.fresh || self.dialect == Dialect::Responses;
        let asks = gateway.rules.deduplication.is_some() && said.asks_repeatable;
        let same = said.same.filter(|_| !by_itself && (asks || kept))?;
        Some((same.key, same.form, gateway.cache.generation()))
    }
}

/// What `Cache-Control` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreDirective {
    Usual,
    /// A new reply, which may be kept.
    Fresh,
    /// Neither.
    Nothing,
}

fn of_cache(headers: &HeaderMap) -> StoreDirective {
    let mut store = StoreDirective::Usual;
    for value in headers.get_all(header::CACHE_CONTROL) {
        for directive in value
            .as_bytes()
            .split(|byte| *byte == b',')
            .map(<[u8]>::trim_ascii)
        {
            match directive.to_ascii_lowercase().as_slice() {
                b"no-store" => return StoreDirective::Nothing,
                b"no-cache" | b"max-age=0" => store = StoreDirective::Fresh,
                _ => {}
            }
        }
    }
    store
}

/// Whether a body may ask for a repeatable answer: most do not, and are not walked for it.
fn mentions(body: &[u8]) -> bool {
    std::str::from_utf8(body)
        .is_ok_and(|body| body.contains("\"temperature\"") || body.contains("\"seed\""))
}

async fn said(call: &AcceptedRequest) -> Option<BodyCacheability> {
    let body = call.body.bytes();
    let (route, headers) = (call.target.as_str(), relevant(&call.headers));
    let tenant = tenant(&call.headers);
    if body.len() <= LONG_BODY {
        return BodyCacheability::read(body, &tenant, route, &headers);
    }
    let (body, route) = (body.clone(), route.to_owned());
    tokio::task::spawn_blocking(move || BodyCacheability::read(&body, &tenant, &route, &headers))
        .await
        .ok()
        .flatten()
}

impl BodyCacheability {
    fn read(
        body: &Bytes,
        tenant: &str,
        route: &str,
        headers: &[(&'static str, Vec<u8>)],
    ) -> Option<Self> {
        let repeated = RepeatabilityView::read(body)?;
        let headers: Vec<(&str, &[u8])> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_slice()))
            .collect();
        let (temperature, asks_repeatable) = (repeated.temperature(), repeated.asks_repeatable());
        // Most are neither kept nor joined, and their bodies may be long.
        let may_be_same = asks_repeatable || temperature != Temperature::Other;
        let digests = || RequestDigests {
            key: repeated.key(tenant, route, &headers),
            form: repeated.form(),
        };
        Some(Self {
            same: may_be_same.then(digests),
            model: repeated.model().unwrap_or_default().into(),
            asks_repeatable,
            temperature,
            answer: match (repeated.stream(), repeated.other_stream_options()) {
                (false, _) => RequestedForm::Whole,
                (true, false) => RequestedForm::Stream {
                    usage: repeated.include_usage(),
                },
                (true, true) => RequestedForm::OtherStream,
            },
        })
    }
}

fn relevant(headers: &HeaderMap) -> Vec<(&'static str, Vec<u8>)> {
    let values = |name: &'static str| {
        headers
            .get_all(name)
            .iter()
            .map(move |value| (name, value.as_bytes().to_vec()))
    };
    RELEVANT.into_iter().flat_map(values).collect()
}

/// Whose request it is: nobody gets another's reply. Who asks with other credentials is somebody else, also where only an
/// engine can tell whether they are right.
fn tenant(headers: &HeaderMap) -> String {
    let mut digest = Sha256::new();
    let mut any = false;
    for name in CREDENTIALS {
        for value in headers.get_all(name) {
            any = true;
            digest.update((name.len() as u64).to_le_bytes());
            digest.update(name);
            digest.update((value.len() as u64).to_le_bytes());
            digest.update(value.as_bytes());
        }
    }
    if any {
        digest
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    } else {
        "default".to_owned()
    }
}
