//! What a reply's head says about the cache: `X-Cache` and why.

use http::{HeaderMap, HeaderValue, Response};
use response_cache::Looked;

use crate::request::{ReplyHeaders, reply::ReplyBody};

/// Why a reply is from the cache or not (`x-warmroute-cache-reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
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

impl Reason {
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
pub(super) struct Status {
    word: &'static str,
    reason: Reason,
}

impl Status {
    /// How the request is counted.
    pub(super) fn looked(self) -> Looked {
        match self.word {
            "HIT" => Looked::Hit,
            "MISS" => Looked::Miss,
            _ => Looked::Skip,
        }
    }

    pub(super) fn hit(reason: Reason) -> Self {
        Self {
            word: "HIT",
            reason,
        }
    }

    pub(super) fn miss() -> Self {
        Self {
            word: "MISS",
            reason: Reason::NotFound,
        }
    }

    pub(super) fn bypass(reason: Reason) -> Self {
        Self {
            word: "BYPASS",
            reason,
        }
    }

    /// `X-Cache` is told always; why, where headers tell of the routing.
    pub(super) fn tell(self, fields: &mut HeaderMap, shown: ReplyHeaders) {
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
pub(super) fn told(
    status: Option<Status>,
    shown: ReplyHeaders,
    mut response: Response<ReplyBody>,
) -> Response<ReplyBody> {
    if let Some(status) = status {
        status.tell(response.headers_mut(), shown);
    }
    response
}
