//! Errors of the object store, with messages that contain no secret.

use std::error::Error;

use http::StatusCode;

use crate::counters::S3Code;

/// A transport error, as reported by [`super::transport`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TransportFault {
    /// No connection.
    #[error("no connection: {0}")]
    Connection(String),
    /// The connection was lost before an answer.
    #[error("the connection was lost")]
    Lost,
    /// The answer has an error status.
    #[error("it answered {0}")]
    Refused(StatusCode),
    /// The answer broke off, or is too long.
    #[error("an answer that is not whole")]
    Broken,
}

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct S3Error {
    pub(super) code: S3Code,
    pub(super) reason: String,
}

impl S3Error {
    pub(super) fn timeout() -> Self {
        Self {
            code: S3Code::Timeout,
            reason: format!("no answer within {:?}", super::LONGEST),
        }
    }
}

/// Converts an error. Only the transport's message is passed on: the rest may quote requests and
/// answers.
pub(super) fn classify(error: &object_store::Error) -> S3Error {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(one) = cause {
        if let Some(fault) = one.downcast_ref::<TransportFault>() {
            return S3Error {
                code: code(fault),
                reason: hinted(fault),
            };
        }
        cause = one.source();
    }
    match error {
        object_store::Error::NotFound { .. } => S3Error {
            code: S3Code::NotFound,
            reason: "it answered 404: does the bucket exist?".to_owned(),
        },
        _ => S3Error {
            code: S3Code::Other,
            reason: "an answer that is none of S3's".to_owned(),
        },
    }
}

fn code(fault: &TransportFault) -> S3Code {
    match fault {
        TransportFault::Connection(_) | TransportFault::Lost => S3Code::Connection,
        TransportFault::Broken => S3Code::Corrupt,
        TransportFault::Refused(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            S3Code::Forbidden
        }
        TransportFault::Refused(StatusCode::NOT_FOUND) => S3Code::NotFound,
        TransportFault::Refused(
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS,
        ) => S3Code::SlowDown,
        TransportFault::Refused(status) if status.is_server_error() => S3Code::Internal,
        TransportFault::Refused(_) => S3Code::Other,
    }
}

fn hinted(fault: &TransportFault) -> String {
    match code(fault) {
        S3Code::Forbidden => {
            format!(
                "{fault}: check response_cache.l2.access_key, secret_key and region, and that they may read, write, delete and list"
            )
        }
        _ => fault.to_string(),
    }
}
