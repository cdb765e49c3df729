//! Whether a request may be answered from the response cache or share another request's reply.

use std::sync::Arc;

use bytes::Bytes;
use config::AbsentTemperature;
use dialect::{Dialect, LastQuestion, RepeatabilityView, RequestKey, Temperature};
use http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::{parts::ReplyCache, status::CacheReason};
use crate::{
    coalesce,
    request::{accept::AcceptedRequest, overrides::HeaderOverrides},
};

/// Headers that change the engine's reply.
const RELEVANT: [&str; 4] = [
    "anthropic-beta",
    "anthropic-version",
    "openai-beta",
    "x-cache-salt",
];
/// Credential headers of engines and clients.
const CREDENTIALS: [&str; 5] = [
    "authorization",
    "x-api-key",
    "api-key",
    "x-router-key",
    "cookie",
];
/// The digest of a longer body is computed off the runtime thread.
const LONG_BODY: usize = 64 * 1024;

/// The request's cache properties, read once before any lookup.
#[derive(Debug)]
pub(super) struct CacheRequest {
    /// `Err`: why no cached reply may answer; `None`: this route is never cached.
    pub(super) cacheability: Option<Result<(), CacheReason>>,
    pub(super) dialect: Dialect,
    /// Skips the lookup and stores the new reply.
    pub(super) fresh: bool,
    /// The body's properties; `None` where they are not needed.
    pub(super) body: Option<BodyCacheability>,
    own_way: bool,
}

/// The cache properties of a body.
#[derive(Clone, Debug)]
pub(super) struct BodyCacheability {
    /// The digests that equal requests share; `None` where only a worker may answer.
    pub(super) same: Option<RequestDigests>,
    pub(super) model: Arc<str>,
    asks_repeatable: bool,
    temperature: Temperature,
    pub(super) answer: RequestedForm,
}

/// The digests of a request: its content, and the form of its reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestDigests {
    pub(super) key: RequestKey,
    form: RequestKey,
}

/// The requested form of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedForm {
    Whole,
    Stream {
        /// Whether the stream reports its usage.
        usage: bool,
    },
    /// A stream with options that a replay cannot reproduce.
    OtherStream,
}

impl CacheRequest {
    pub(super) async fn of(cache: &ReplyCache, call: &AcceptedRequest, dialect: Dialect) -> Self {
        let settings = cache.store.settings();
        let is_kept = matches!(
            dialect,
            Dialect::Chat | Dialect::Completions | Dialect::Messages
        );
        let store = of_cache(&call.headers);
        // A response stored at an engine is for one client to continue.
        let may_be_shared = dialect != Dialect::Responses
            && cache.settings.enable_deduplication
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
            // The named worker itself is to answer.
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
                // Streams of messages are not cached.
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

    /// Splits off the last question from the rest of the request.
    pub(super) fn last_question(&self, call: &AcceptedRequest) -> Option<LastQuestion> {
        // Its digest would block this runtime thread.
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

    /// Returns the key of equal requests; `None` for a request that is sent on its own. `kept`: the
    /// reply will be cached.
    pub(super) fn coalescing_key(
        &self,
        cache: &ReplyCache,
        kept: bool,
    ) -> Option<coalesce::FlightKey> {
        let said = self.body.as_ref()?;
        let by_itself = self.own_way || self.fresh || self.dialect == Dialect::Responses;
        let asks = cache.settings.enable_deduplication && said.asks_repeatable;
        let same = said.same.filter(|_| !by_itself && (asks || kept))?;
        Some((same.key, same.form, cache.store.generation()))
    }
}

/// The directive in `Cache-Control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreDirective {
    Usual,
    /// A new reply, which may be stored.
    Fresh,
    /// Neither lookup nor storage.
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

/// Returns whether a body may ask for a repeatable answer: most do not, and are not parsed for it.
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
    runtime::spawn_blocking(move || BodyCacheability::read(&body, &tenant, &route, &headers))
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
        // Most bodies are neither cached nor coalesced, and may be long.
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

/// Returns the tenant: no tenant gets another's reply. Other credentials are another tenant, even
/// where only an engine can verify them.
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
