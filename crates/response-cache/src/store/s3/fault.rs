//! What went wrong with the object store, in words that hold no secret.

use std::error::Error;

use http::StatusCode;

use crate::tally::S3Code;

/// What happened on the way, as [`super::transport`] saw it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Mishap {
    /// There is no connection.
    #[error("no connection: {0}")]
    Connection(String),
    /// It was lost before there was an answer.
    #[error("the connection was lost")]
    Lost,
    /// The answer is no success.
    #[error("it answered {0}")]
    Refused(StatusCode),
    /// The answer broke off, or is longer than it may be.
    #[error("an answer that is not whole")]
    Broken,
}

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) code: S3Code,
    pub(super) reason: String,
}

impl Trouble {
    pub(super) fn timeout() -> Self {
        Self {
            code: S3Code::Timeout,
            reason: format!("no answer within {:?}", super::LONGEST),
        }
    }
}

/// Of the error only what the transport said is passed on: the rest may quote requests and answers.
pub(super) fn trouble(error: &object_store::Error) -> Trouble {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(one) = cause {
        if let Some(mishap) = one.downcast_ref::<Mishap>() {
            return Trouble {
                code: code(mishap),
                reason: hinted(mishap),
            };
        }
        cause = one.source();
    }
    match error {
        object_store::Error::NotFound { .. } => Trouble {
            code: S3Code::NotFound,
            reason: "it answered 404: does the bucket exist?".to_owned(),
        },
        _ => Trouble {
            code: S3Code::Other,
            reason: "an answer that is none of S3's".to_owned(),
        },
    }
}

fn code(mishap: &Mishap) -> S3Code {
    match mishap {
        Mishap::Connection(_) | Mishap::Lost => S3Code::Connection,
        Mishap::Broken => S3Code::Corrupt,
        Mishap::Refused(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => S3Code::Forbidden,
        Mishap::Refused(StatusCode::NOT_FOUND) => S3Code::NotFound,
        Mishap::Refused(StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) => {
            S3Code::SlowDown
        }
        Mishap::Refused(status) if status.is_server_error() => S3Code::Internal,
        Mishap::Refused(_) => S3Code::Other,
    }
}

fn hinted(mishap: &Mishap) -> String {
    match code(mishap) {
        S3Code::Forbidden => {
            format!(
                "{mishap}: check response_cache.l2.access_key, secret_key and region, and that they may read, write, delete and list"
            )
        }
        _ => mishap.to_string(),
    }
}
