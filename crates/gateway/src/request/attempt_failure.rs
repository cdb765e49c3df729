//! How an attempt failed: its class for the retry rule, and the reply if no further attempt follows.

use std::time::Duration;

use bytes::Bytes;
use dialect::{ApiError, ErrorCode};
use fleet::FailureKind;
use http::{HeaderMap, HeaderValue, StatusCode, header, response::Parts};
use proxy::{BodyFault, NotSent, SendFailure};
use routing::{
    AttemptEnd,
    receipt::{AttemptClass, AttemptResult},
};

use crate::errors;

/// A failed attempt, with nothing to forward.
#[derive(Debug)]
pub(crate) struct AttemptFailure {
    /// `None`: no retry, whatever the class table says.
    pub(crate) class: Option<AttemptClass>,
    /// The value in the receipt's `attempts`.
    pub(crate) result: AttemptResult,
    pub(crate) status: Option<u16>,
    /// The failure that is reported to the fleet.
    pub(crate) kind: Option<FailureKind>,
    /// The worker's `Retry-After`.
    pub(crate) wait: Option<Duration>,
    /// The client's reply if no further attempt follows.
    pub(crate) reply: FinalError,
}

/// The reply to the client when all attempts are used up.
#[derive(Debug)]
pub(crate) enum FinalError {
    /// An error of the router.
    Error(ApiError),
    /// The worker's own reply (a 429: the client's limit at the engine is the client's business).
    Pass(Parts, Bytes),
}

impl AttemptFailure {
    /// Returns the attempt's end, for the router.
    pub(super) fn attempt_end(&self) -> AttemptEnd {
        match self.kind {
            None | Some(FailureKind::Local) => AttemptEnd::NotTaken,
            Some(_) => AttemptEnd::Failed,
        }
    }

    pub(super) fn from_send_failure(failure: SendFailure) -> Self {
        match failure {
            SendFailure::NotSent(NotSent::Refused) => {
                Self::not_sent(FailureKind::Refused, errors::no_worker())
            }
            SendFailure::NotSent(NotSent::Unreachable) => {
                Self::not_sent(FailureKind::ConnectTimeout, errors::no_worker())
            }
            SendFailure::NotSent(NotSent::Local(_)) => {
                Self::not_sent(FailureKind::Local, errors::no_connection())
            }
            SendFailure::NoHead => Self::no_answer(),
            SendFailure::Protocol => {
                Self::protocol("the worker's reply is not valid HTTP: try again".to_owned())
            }
        }
    }

    fn not_sent(kind: FailureKind, error: ApiError) -> Self {
        Self {
            class: Some(AttemptClass::C0),
            result: AttemptResult::ConnectFailed,
            status: None,
            kind: Some(kind),
            wait: None,
            reply: FinalError::Error(error),
        }
    }

    pub(super) fn no_answer() -> Self {
        Self {
            class: Some(AttemptClass::C1),
            result: AttemptResult::ResetBeforeHead,
            status: None,
            kind: Some(FailureKind::ResetBeforeHead),
            wait: None,
            reply: FinalError::Error(ApiError::new(
                ErrorCode::UpstreamReset,
                "the worker closed the connection before it answered, and no other worker could take the request: \
                 try again",
            )),
        }
    }

    pub(super) fn from_status(mut head: Parts, body: Bytes) -> Self {
        let status = head.status;
        let wait = retry_after(&head.headers);
        let reply = match status {
            StatusCode::TOO_MANY_REQUESTS => {
                // Every 429 carries a `Retry-After`, within the range of the router's own errors.
                head.headers.insert(
                    header::RETRY_AFTER,
                    HeaderValue::from(wait.unwrap_or(1).max(1)),
                );
                FinalError::Pass(head, body)
            }
            StatusCode::SERVICE_UNAVAILABLE => FinalError::Error(
                ApiError::new(
                    ErrorCode::Overloaded,
                    "every worker that could take the request is busy or loading: try again",
                )
                .with_retry_after(wait.unwrap_or(1)),
            ),
            StatusCode::GATEWAY_TIMEOUT => FinalError::Error(ApiError::new(
                ErrorCode::FirstByteTimeout,
                "the worker gave up waiting for its own engine: try again",
            )),
            _ => FinalError::Error(ApiError::new(
                ErrorCode::UpstreamProtocol,
                "the worker could not reach its own engine: try again",
            )),
        };
        let kind = match status {
            StatusCode::SERVICE_UNAVAILABLE => Some(FailureKind::Unavailable),
            // A worker that throttles is healthy.
            StatusCode::TOO_MANY_REQUESTS => None,
            _ => Some(FailureKind::Status),
        };
        Self {
            class: Some(AttemptClass::C2),
            result: AttemptResult::Status,
            status: Some(status.as_u16()),
            kind,
            // A 503 triggers a check: the worker may be loading, and is used again as soon as it is
            // ready.
            wait: wait
                .filter(|_| status == StatusCode::TOO_MANY_REQUESTS)
                .map(|s| Duration::from_secs(s.into())),
            reply,
        }
    }

    /// The worker refused the request with a text that is not for clients.
    pub(super) fn refused(status: StatusCode) -> Self {
        Self {
            class: None,
            result: AttemptResult::Status,
            status: Some(status.as_u16()),
            // A worker is healthy that refuses what is wrong.
            kind: None,
            wait: None,
            reply: FinalError::Error(withheld_refusal(status)),
        }
    }

    /// Replaces the text of a worker that the client would get.
    pub(super) fn without_text(mut self) -> Self {
        if let FinalError::Pass(head, _) = &self.reply {
            let wait = retry_after(&head.headers).unwrap_or(1);
            let error = withheld_refusal(head.status).with_retry_after(wait);
            self.reply = FinalError::Error(error);
        }
        self
    }

    pub(super) fn internal(status: u16) -> Self {
        Self {
            class: None,
            result: AttemptResult::Status,
            status: Some(status),
            kind: Some(FailureKind::Status),
            wait: None,
            reply: FinalError::Error(
                ApiError::new(
                    ErrorCode::Internal,
                    format!(
                        "the worker failed with status {status}; its own message is in its log"
                    ),
                )
                .with_status(status),
            ),
        }
    }

    pub(super) fn protocol(message: String) -> Self {
        Self {
            class: None,
            result: AttemptResult::Protocol,
            status: None,
            kind: Some(FailureKind::Protocol),
            wait: None,
            reply: FinalError::Error(ApiError::new(ErrorCode::UpstreamProtocol, message)),
        }
    }

    /// A reply that ended before its announced length.
    pub(super) fn cut_short() -> Self {
        Self::protocol("the worker's reply ended before its announced end: try again".to_owned())
    }

    /// An empty stream: the client would take it for a reply.
    pub(super) fn unfinished(message: String) -> Self {
        Self {
            kind: Some(FailureKind::Incomplete),
            ..Self::protocol(message)
        }
    }

    pub(super) fn timeout(limit: Duration) -> Self {
        Self {
            class: None,
            result: AttemptResult::Timeout,
            status: None,
            kind: Some(FailureKind::FirstByteTimeout),
            wait: None,
            reply: FinalError::Error(ApiError::new(
                ErrorCode::FirstByteTimeout,
                format!(
                    "no answer within {} s (request.timeout): try again later",
                    limit.as_secs_f64()
                ),
            )),
        }
    }

    /// The client did not send the rest of its body.
    pub(super) fn client_body(fault: BodyFault) -> Self {
        let (code, message) = match fault {
            BodyFault::TooLong => (
                ErrorCode::BodyTooLarge,
                "the request body is longer than server.max_body_bytes",
            ),
            BodyFault::Stalled => (
                ErrorCode::InvalidRequest,
                "the rest of the request body did not arrive: send it without long pauses",
            ),
            BodyFault::Broken => (
                ErrorCode::InvalidRequest,
                "the request body ended early or is not validly framed",
            ),
        };
        Self {
            class: None,
            result: AttemptResult::ClientGone,
            status: None,
            kind: None,
            wait: None,
            reply: FinalError::Error(ApiError::new(code, message)),
        }
    }

    /// The drain time is up.
    pub(super) fn draining() -> Self {
        Self {
            class: None,
            result: AttemptResult::Timeout,
            status: None,
            kind: None,
            wait: None,
            reply: FinalError::Error(
                ApiError::new(
                    ErrorCode::Draining,
                    "the router is going down and could not wait for the answer: try again",
                )
                .with_retry_after(1),
            ),
        }
    }

    /// Returns the worker's `Retry-After`, in seconds.
    pub(crate) fn retry_after(&self) -> Option<u32> {
        match &self.reply {
            FinalError::Error(error) => error.retry_after_s,
            FinalError::Pass(head, _) => retry_after(&head.headers),
        }
    }
}

/// Returns the error of a request that a worker refused with this status.
fn withheld_refusal(status: StatusCode) -> ApiError {
    let code = match status {
        StatusCode::TOO_MANY_REQUESTS => ErrorCode::RateLimited,
        _ => ErrorCode::InvalidRequest,
    };
    let status = status.as_u16();
    let message = format!(
        "the worker refused the request with status {status}; its own message is in its log"
    );
    ApiError::new(code, message).with_status(status)
}

/// Reads `Retry-After` in seconds. A date or an invalid value counts as absent, and no value
/// exceeds a minute.
fn retry_after(headers: &HeaderMap) -> Option<u32> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    Some(u32::try_from(value.trim().parse::<u64>().ok()?.min(60)).unwrap_or(60))
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("F15")]
    fn a_workers_retry_after_is_capped_at_a_minute() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(value));
            retry_after(&headers)
        };
        assert_eq!(with("7"), Some(7));
        assert_eq!(with("99999999"), Some(60));
        assert_eq!(with("Wed, 21 Oct 2026 07:28:00 GMT"), None);
        assert_eq!(with("-1"), None);
    }
}
