//! What a reply's head says about the cache: `X-Cache` and why.

use http::{HeaderMap, HeaderValue, Response};
use response_cache::CacheResult;

use crate::request::{ReplyHeaders, reply::ReplyBody};

/// Why a reply is from the cache or not (`x-warmroute-cache-reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheReason {
    Stored,
    /// The reply to a question that means the same.
    Similar,
    Joined,
    NotFound,
    Temperature,
    AbsentTemperature,
    /// The body is none that could be told apart from others.
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

/// The two headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheStatus {
    word: &'static str,
    reason: CacheReason,
}

impl CacheStatus {
    /// How the request is counted.
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

    /// `X-Cache` is told always; why, where headers tell of the routing.
    pub(super) fn add_headers(self, fields: &mut HeaderMap, shown: ReplyHeaders) {
        fields.insert("x-cache", HeaderValue::from_static(self.word));
        if shown.expose {
            fields.insert(
                "x-warmroute-cache-reason",
                HeaderValue::from_static(self.reason.as_str()),
            );
            if shown.vllm_router {
                fields.insert(
                    "x-vllm-router-cache-status",
                    HeaderValue::from_static(self.word),
                );
            }
        }
    }
}

/// A reply that says so, of a route whose replies are kept.
pub(super) fn with_status(
    status: Option<CacheStatus>,
    shown: ReplyHeaders,
    mut response: Response<ReplyBody>,
) -> Response<ReplyBody> {
    if let Some(status) = status {
        status.add_headers(response.headers_mut(), shown);
    }
    response
}
