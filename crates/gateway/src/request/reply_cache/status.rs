//! Reply headers about the response cache: `X-Cache` and its reason.

use config::CompatSection;
use http::{HeaderMap, HeaderValue, Response};
use response_cache::CacheResult;

use crate::request::reply_body::ReplyBody;

/// Why a reply is from the cache or not (`x-warmroute-cache-reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheReason {
    Stored,
    /// A similarity hit.
    Similar,
    Joined,
    NotFound,
    Temperature,
    AbsentTemperature,
    /// The body has no digest.
    Unreadable,
    NoStore,
    NoCache,
    Pinned,
    Stream,
    StoreFailed,
    Off,
}

impl CacheReason {
    fn as_str(self) -> &'static str {
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
        }
    }
}

/// The values of the two headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheStatus {
    word: &'static str,
    reason: CacheReason,
}

impl CacheStatus {
    /// Returns the result under which the request is counted.
    pub(super) fn result(self) -> CacheResult {
        match self.word {
            "HIT" => CacheResult::Hit,
            "MISS" => CacheResult::Miss,
            _ => CacheResult::Skip,
        }
    }

    pub(super) fn hit(reason: CacheReason) -> Self {
        Self {
            word: "HIT",
            reason,
        }
    }

    pub(super) fn miss() -> Self {
        Self {
            word: "MISS",
            reason: CacheReason::NotFound,
        }
    }

    pub(super) fn bypass(reason: CacheReason) -> Self {
        Self {
            word: "BYPASS",
            reason,
        }
    }

    /// Adds `X-Cache`, and the reason where routing headers are enabled.
    pub(super) fn add_headers(self, fields: &mut HeaderMap, shown: &CompatSection) {
        fields.insert("x-cache", HeaderValue::from_static(self.word));
        if shown.expose_routing_headers {
            fields.insert(
                "x-warmroute-cache-reason",
                HeaderValue::from_static(self.reason.as_str()),
            );
            if shown.vllm_router_headers() {
                fields.insert(
                    "x-vllm-router-cache-status",
                    HeaderValue::from_static(self.word),
                );
            }
        }
    }
}

/// Adds the status to the reply of a cacheable route.
pub(super) fn with_status(
    status: Option<CacheStatus>,
    shown: &CompatSection,
    mut response: Response<ReplyBody>,
) -> Response<ReplyBody> {
    if let Some(status) = status {
        status.add_headers(response.headers_mut(), shown);
    }
    response
}
