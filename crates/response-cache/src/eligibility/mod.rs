//! Whether a request may be answered from the response cache or share another request's reply.
//!
//! It reads the request; it does not look replies up.

mod body;

use std::sync::LazyLock;

use bytes::Bytes;
use config::{AbsentTemperature, CacheSection, ResponseCacheSection};
use dialect::{Dialect, Temperature};
use http::{HeaderMap, header};
use memchr::memmem::Finder;

pub use self::body::{BodyProperties, RequestDigests, RequestedForm};
use crate::{
    CacheGeneration, CacheResult,
    coalesce::{FinishedReplyUse, FlightKey},
};

/// A request, as the cache sees it.
#[derive(Clone, Copy, Debug)]
pub struct CacheRequest<'a> {
    /// The dialect of its route.
    pub dialect: Dialect,
    /// Path and query.
    pub target: &'a str,
    /// All headers.
    pub headers: &'a HeaderMap,
    /// The whole body.
    pub body: &'a Bytes,
    /// Its routing overrides.
    pub overrides: RoutingOverrides,
}

/// What the headers of a request change in its routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingOverrides {
    /// Nothing.
    Nothing,
    /// How its worker is chosen; it shares no upstream request.
    Choice,
    /// The worker, which is to answer itself.
    Worker,
}

/// The eligibility of a request, determined once before any lookup.
#[derive(Debug)]
pub struct Eligibility<'a> {
    /// The request.
    pub request: CacheRequest<'a>,
    /// `Err`: why no cached reply may answer; `None`: this route is never cached.
    pub cacheable: Option<Result<(), CacheReason>>,
    /// Skips the lookup and stores the new reply.
    pub fresh: bool,
    /// The body's properties; `None` where they are not needed.
    pub body: Option<BodyProperties>,
    coalesces: bool,
}

impl<'a> Eligibility<'a> {
    /// Reads the request, a long body of it off the runtime thread.
    pub async fn of(
        request: CacheRequest<'a>,
        coalescing: &CacheSection,
        cache: &ResponseCacheSection,
    ) -> Self {
        let has_cached_route = is_cached(request.dialect);
        let directive = StoreDirective::read(request.headers);
        let coalesces = coalescing.enable_deduplication;
        let is_needed = if has_cached_route && cache.enabled {
            directive != StoreDirective::Nothing
        } else {
            // A response stored at an engine is for one client to continue; a temperature in
            // `sampling_params` is not read.
            let is_alone = matches!(
                request.dialect,
                Dialect::Responses | Dialect::TokenIds | Dialect::SglangGenerate
            );
            let may_be_shared = coalesces && !is_alone;
            may_be_shared && directive == StoreDirective::Usual && may_ask_repeatable(request.body)
        };
        let body = if is_needed {
            BodyProperties::read(request).await
        } else {
            None
        };
        let cacheable = || check_cacheable(&request, directive, body.as_ref(), cache);
        Self {
            cacheable: has_cached_route.then(cacheable),
            request,
            fresh: directive == StoreDirective::Fresh,
            body,
            coalesces,
        }
    }

    /// Returns whether the request is known to ask for a stream: its body is read only where that is
    /// needed.
    pub fn asks_stream(&self) -> bool {
        let body = self.body.as_ref();
        body.is_some_and(|body| body.form != RequestedForm::Whole)
    }

    /// Returns the key of equal requests; `None` for a request that is sent on its own.
    pub fn coalescing_key(
        &self,
        generation: CacheGeneration,
        afterwards: FinishedReplyUse,
    ) -> Option<FlightKey> {
        let body = self.body.as_ref()?;
        let is_alone = self.fresh || self.request.overrides != RoutingOverrides::Nothing;
        let is_shared = (self.coalesces && body.asks_repeatable)
            || afterwards == FinishedReplyUse::CachedElsewhere;
        let digests = body.digests.filter(|_| is_shared && !is_alone)?;
        Some((digests.key, digests.form, generation))
    }
}

/// Returns whether replies in this dialect are cached.
pub fn is_cached(dialect: Dialect) -> bool {
    matches!(
        dialect,
        Dialect::Chat | Dialect::Completions | Dialect::Messages
    )
}

/// Returns whether a cached reply may answer a request of a cached route.
fn check_cacheable(
    request: &CacheRequest<'_>,
    directive: StoreDirective,
    body: Option<&BodyProperties>,
    cache: &ResponseCacheSection,
) -> Result<(), CacheReason> {
    if !cache.enabled {
        return Err(CacheReason::Off);
    }
    if directive == StoreDirective::Nothing {
        return Err(CacheReason::NoStore);
    }
    if request.overrides == RoutingOverrides::Worker {
        return Err(CacheReason::Pinned);
    }
    let body = body.ok_or(CacheReason::Unreadable)?;
    match body.temperature {
        Temperature::Other => return Err(CacheReason::Temperature),
        Temperature::Absent if cache.absent_temperature == AbsentTemperature::Bypass => {
            return Err(CacheReason::AbsentTemperature);
        }
        Temperature::Absent | Temperature::Zero => {}
    }
    match body.form {
        // Streams of messages are not cached.
        RequestedForm::Stream { .. } if request.dialect == Dialect::Messages => {
            Err(CacheReason::Stream)
        }
        RequestedForm::OtherStream => Err(CacheReason::Stream),
        RequestedForm::Whole | RequestedForm::Stream { .. } => Ok(()),
    }
}

/// Returns whether a body may ask for a repeatable answer, by a temperature of 0 or a seed: most do
/// not, and are not parsed for it.
fn may_ask_repeatable(body: &[u8]) -> bool {
    static TEMPERATURE: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\"temperature\""));
    static SEED: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\"seed\""));
    let mut temperatures = TEMPERATURE.find_iter(body);
    temperatures.any(|at| is_zero(&body[at + TEMPERATURE.needle().len()..]))
        || SEED.find(body).is_some()
}

/// Returns whether the number behind a key, a colon and space may be 0.
fn is_zero(behind_key: &[u8]) -> bool {
    let behind_colon = behind_key.trim_ascii_start().strip_prefix(b":");
    let value = behind_colon.unwrap_or_default().trim_ascii_start();
    let number = value.strip_prefix(b"-").unwrap_or(value);
    let mut mantissa = number
        .iter()
        .take_while(|byte| matches!(byte, b'0'..=b'9' | b'.'));
    number.starts_with(b"0") && mantissa.all(|digit| matches!(digit, b'0' | b'.'))
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

impl StoreDirective {
    fn read(headers: &HeaderMap) -> Self {
        let mut store = Self::Usual;
        let values = headers.get_all(header::CACHE_CONTROL).iter();
        for directive in values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')) {
            match directive.trim_ascii().to_ascii_lowercase().as_slice() {
                b"no-store" => return Self::Nothing,
                b"no-cache" | b"max-age=0" => store = Self::Fresh,
                _ => {}
            }
        }
        store
    }
}

/// Why a reply is from the cache or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheReason {
    /// An exact hit.
    Stored,
    /// A similarity hit.
    Similar,
    /// The reply of another request.
    Joined,
    /// A miss.
    NotFound,
    /// The request sets a temperature for a random reply.
    Temperature,
    /// The request has no temperature, and the settings exclude such requests.
    AbsentTemperature,
    /// The body has no digest.
    Unreadable,
    /// The client forbids storage.
    NoStore,
    /// The client requests a new reply.
    NoCache,
    /// The client names the worker.
    Pinned,
    /// The stream has a form that is not cached.
    Stream,
    /// No store answered.
    StoreFailed,
    /// The cache is off.
    Off,
    /// The request was refused before the cache: it is not counted as one.
    Refused,
}

impl CacheReason {
    /// Returns the result under which the request is counted.
    pub fn result(self) -> CacheResult {
        match self {
            Self::Stored | Self::Similar | Self::Joined => CacheResult::Hit,
            Self::NotFound => CacheResult::Miss,
            _ => CacheResult::Skip,
        }
    }

    /// Returns its name in headers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Similar => "similar",
            Self::Joined => "joined",
            Self::NotFound => "not_found",
            Self::Temperature => "temperature",
            Self::AbsentTemperature => "absent_temperature",
            Self::Unreadable => "unreadable",
            Self::NoStore => "no_store",
            Self::NoCache => "no_cache",
            Self::Pinned => "pinned",
            Self::Stream => "stream",
            Self::StoreFailed => "store_failed",
            Self::Off => "off",
            Self::Refused => "refused",
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::generation::Generations;

    static BODY: Bytes = Bytes::from_static(br#"{"model":"m","messages":[],"temperature":0}"#);

    fn header(name: &'static str, value: &'static str) -> HeaderMap {
        let name = http::HeaderName::from_static(name);
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    fn chat<'a>(headers: &'a HeaderMap, body: &'a Bytes) -> CacheRequest<'a> {
        CacheRequest {
            dialect: Dialect::Chat,
            target: "/v1/chat/completions",
            headers,
            body,
            overrides: RoutingOverrides::Nothing,
        }
    }

    /// The eligibility where the cache is on.
    async fn cached(request: CacheRequest<'_>) -> Eligibility<'_> {
        let cache = ResponseCacheSection {
            enabled: true,
            ..ResponseCacheSection::default()
        };
        Eligibility::of(request, &CacheSection::default(), &cache).await
    }

    fn key(eligibility: &Eligibility<'_>) -> Option<FlightKey> {
        let generation = Generations::default().now();
        eligibility.coalescing_key(generation, FinishedReplyUse::CachedElsewhere)
    }

    #[tokio::test]
    async fn equal_requests_of_one_tenant_have_one_key() {
        let mut keys = Vec::new();
        for headers in [
            HeaderMap::new(),
            header("user-agent", "x"),
            header("authorization", "Bearer a"),
            header("authorization", "Bearer b"),
            header("x-api-key", "Bearer a"),
            header("openai-beta", "x"),
        ] {
            keys.push(key(&cached(chat(&headers, &BODY)).await).expect("a key"));
        }
        assert_eq!(keys[0], keys[1], "this header changes no reply");
        for (n, one) in keys.iter().enumerate().skip(1) {
            assert!(!keys[n + 1..].contains(one), "{n}");
        }
    }

    #[tokio::test]
    async fn a_request_that_says_how_it_is_routed_shares_no_request_but_may_be_cached() {
        let headers = HeaderMap::new();
        for (overrides, cacheable, is_shared) in [
            (RoutingOverrides::Nothing, Ok(()), true),
            (RoutingOverrides::Choice, Ok(()), false),
            (RoutingOverrides::Worker, Err(CacheReason::Pinned), false),
        ] {
            let request = CacheRequest {
                overrides,
                ..chat(&headers, &BODY)
            };
            let eligibility = cached(request).await;
            assert_eq!(eligibility.cacheable, Some(cacheable));
            assert_eq!(key(&eligibility).is_some(), is_shared, "{overrides:?}");
        }
    }

    #[tokio::test]
    async fn the_engines_own_apis_are_neither_cached_nor_coalesced() {
        let headers = HeaderMap::new();
        for (dialect, may_be_shared) in [
            (Dialect::ChatBatch, true),
            (Dialect::TokenIds, false),
            (Dialect::SglangGenerate, false),
        ] {
            let request = CacheRequest {
                dialect,
                ..chat(&headers, &BODY)
            };
            let coalescing = CacheSection {
                enable_deduplication: true,
                ..CacheSection::default()
            };
            let cache = ResponseCacheSection {
                enabled: true,
                ..ResponseCacheSection::default()
            };
            let eligibility = Eligibility::of(request, &coalescing, &cache).await;
            assert_eq!(eligibility.cacheable, None, "{dialect:?}");
            assert_eq!(eligibility.body.is_some(), may_be_shared, "{dialect:?}");
        }
    }

    #[tokio::test]
    async fn a_long_body_is_read_like_a_short_one() {
        let user = "u".repeat(100_000);
        let long = format!(r#"{{"model":"m","messages":[],"temperature":0,"user":"{user}"}}"#);
        let (headers, long) = (HeaderMap::new(), Bytes::from(long));
        let (short, long) = (
            cached(chat(&headers, &BODY)).await,
            cached(chat(&headers, &long)).await,
        );
        assert_eq!(
            key(&short),
            key(&long),
            "the name of the user changes no reply"
        );
        assert_eq!(long.cacheable, Some(Ok(())));
    }
}
