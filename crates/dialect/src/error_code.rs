//! The table of errors: status and type of each code in both dialects.
//!
//! Codes are part of the interface: programs match on them. This is the only place to add one.

/// The error code that clients see in `error.code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The body is not one JSON value.
    InvalidJson,
    /// The body or a header does not have the form that the route expects.
    InvalidRequest,
    /// A top-level key that routing reads occurs twice.
    DuplicateKey,
    /// The prompt is longer than every worker of the model accepts.
    ContextTooLong,
    /// The policy override names an unknown policy.
    UnknownPolicy,
    /// The worker override names an unknown worker.
    UnknownWorker,
    /// The route needs a key and the request has none.
    MissingApiKey,
    /// The key is unknown.
    InvalidApiKey,
    /// The key may not use this model.
    ModelNotAllowed,
    /// The key may not use this route.
    ScopeMissing,
    /// The key may not send this field or header.
    FieldNotAllowed,
    /// The router may not be sent to this address.
    DestinationForbidden,
    /// An operator's hook rejected the request.
    HookRejected,
    /// No worker lists the model.
    ModelNotFound,
    /// The path does not exist.
    UnknownRoute,
    /// The decision is not, or no longer, in the ring.
    DecisionNotFound,
    /// No worker has that name.
    WorkerNotFound,
    /// The reservation does not exist, or it is freed.
    ReservationNotFound,
    /// No stored response of that id is remembered, or its worker is gone.
    ResponseNotFound,
    /// The path exists with another method.
    MethodNotAllowed,
    /// The request conflicts with the current state.
    Conflict,
    /// A reservation of that id exists.
    ReservationExists,
    /// A worker of that name exists.
    WorkerExists,
    /// The body is over the limit.
    BodyTooLarge,
    /// The request target is over the limit.
    UriTooLong,
    /// The router does not accept the content encoding of the body.
    UnsupportedEncoding,
    /// The route is a WebSocket, and the request does not ask for one.
    UpgradeRequired,
    /// The request's head is over the limit.
    HeadTooLarge,
    /// Too many requests in the window.
    RateLimited,
    /// Too many requests at once.
    ConcurrencyLimited,
    /// Too many tokens in the window.
    TokenLimited,
    /// The tenant's queue is full.
    TenantQueueFull,
    /// Too many of the tenant's replies stream.
    TenantStreamsFull,
    /// An internal error of the router; it fails only this request.
    Internal,
    /// The router could not parse the worker's reply, and no attempts are left.
    UpstreamProtocol,
    /// The worker closed the connection, and no attempts are left.
    UpstreamReset,
    /// No worker can take the request.
    NoWorker,
    /// The queue is full.
    QueueFull,
    /// The request reached its maximum time in the queue.
    QueueTimeout,
    /// An operator's hook did not answer, and the request needs its answer.
    HookFailed,
    /// No service could say whether the key is valid.
    KeyValidationFailed,
    /// The router sheds load.
    Overloaded,
    /// The router is shutting down.
    Draining,
    /// The worker did not start to answer in time.
    FirstByteTimeout,
    /// After the first byte: the worker's stream broke.
    StreamInterrupted,
    /// After the first byte: the worker's stream stalled.
    StreamIdleTimeout,
    /// After the first byte: the stream ran longer than allowed.
    StreamTooLong,
}

const INVALID: &str = "invalid_request_error";

impl ErrorCode {
    /// All codes, in the order of the documentation.
    pub const ALL: [Self; 47] = [
        Self::InvalidJson,
        Self::InvalidRequest,
        Self::DuplicateKey,
        Self::ContextTooLong,
        Self::UnknownPolicy,
        Self::UnknownWorker,
        Self::MissingApiKey,
        Self::InvalidApiKey,
        Self::ModelNotAllowed,
        Self::ScopeMissing,
        Self::FieldNotAllowed,
        Self::DestinationForbidden,
        Self::HookRejected,
        Self::ModelNotFound,
        Self::UnknownRoute,
        Self::DecisionNotFound,
        Self::WorkerNotFound,
        Self::ReservationNotFound,
        Self::ResponseNotFound,
        Self::MethodNotAllowed,
        Self::Conflict,
        Self::ReservationExists,
        Self::WorkerExists,
        Self::BodyTooLarge,
        Self::UriTooLong,
        Self::UnsupportedEncoding,
        Self::UpgradeRequired,
        Self::HeadTooLarge,
        Self::RateLimited,
        Self::ConcurrencyLimited,
        Self::TokenLimited,
        Self::TenantQueueFull,
        Self::TenantStreamsFull,
        Self::Internal,
        Self::UpstreamProtocol,
        Self::UpstreamReset,
        Self::NoWorker,
        Self::QueueFull,
        Self::QueueTimeout,
        Self::HookFailed,
        Self::KeyValidationFailed,
        Self::Overloaded,
        Self::Draining,
        Self::FirstByteTimeout,
        Self::StreamInterrupted,
        Self::StreamIdleTimeout,
        Self::StreamTooLong,
    ];

    /// Returns the value of `error.code`.
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Returns the HTTP status. Codes of a stream that already began have the status from before
    /// its beginning.
    pub const fn status(self) -> u16 {
        self.row().1
    }

    /// Returns `error.type` for OpenAI-shaped routes and the admin listener.
    pub const fn openai_type(self) -> &'static str {
        self.row().2
    }

    /// Returns `error.type` for Anthropic-shaped routes.
    pub const fn anthropic_type(self) -> &'static str {
        self.row().3
    }

    /// Returns whether the same request may succeed later. Other codes carry
    /// `x-should-retry: false`.
    pub const fn is_retryable(self) -> bool {
        matches!(self.status(), 429 | 500..)
    }

    /// Returns whether the router refuses a request by this code because it has no room, no worker
    /// or no time left for it; these refusals have a series of their own from the start.
    pub fn sheds_load(self) -> bool {
        // A hook that fails is not the router's load.
        self.status() == 503 && self != Self::HookFailed
    }

    /// The table: code, status, OpenAI type, Anthropic type.
    const fn row(self) -> (&'static str, u16, &'static str, &'static str) {
        match self {
            Self::InvalidJson => ("invalid_json", 400, INVALID, INVALID),
            Self::InvalidRequest => ("invalid_request", 400, INVALID, INVALID),
            Self::DuplicateKey => ("duplicate_key", 400, INVALID, INVALID),
            Self::ContextTooLong => ("context_too_long", 400, INVALID, INVALID),
            Self::UnknownPolicy => ("unknown_policy", 400, INVALID, INVALID),
            Self::UnknownWorker => ("unknown_worker", 400, INVALID, INVALID),
            Self::MissingApiKey => (
                "missing_api_key",
                401,
                "authentication_error",
                "authentication_error",
            ),
            Self::InvalidApiKey => (
                "invalid_api_key",
                401,
                "authentication_error",
                "authentication_error",
            ),
            Self::ModelNotAllowed => (
                "model_not_allowed",
                403,
                "permission_error",
                "permission_error",
            ),
            Self::ScopeMissing => ("scope_missing", 403, "permission_error", "permission_error"),
            Self::FieldNotAllowed => (
                "field_not_allowed",
                403,
                "permission_error",
                "permission_error",
            ),
            Self::DestinationForbidden => (
                "destination_forbidden",
                403,
                "permission_error",
                "permission_error",
            ),
            Self::HookRejected => ("hook_rejected", 403, "permission_error", "permission_error"),
            Self::ModelNotFound => ("model_not_found", 404, "not_found_error", "not_found_error"),
            Self::UnknownRoute => ("unknown_route", 404, "not_found_error", "not_found_error"),
            Self::DecisionNotFound => (
                "decision_not_found",
                404,
                "not_found_error",
                "not_found_error",
            ),
            Self::WorkerNotFound => (
                "worker_not_found",
                404,
                "not_found_error",
                "not_found_error",
            ),
            Self::ReservationNotFound => (
                "reservation_not_found",
                404,
                "not_found_error",
                "not_found_error",
            ),
            Self::ResponseNotFound => (
                "response_not_found",
                404,
                "not_found_error",
                "not_found_error",
            ),
            Self::MethodNotAllowed => ("method_not_allowed", 405, INVALID, INVALID),
            Self::Conflict => ("conflict", 409, INVALID, INVALID),
            Self::ReservationExists => ("reservation_exists", 409, INVALID, INVALID),
            Self::WorkerExists => ("worker_exists", 409, INVALID, INVALID),
            Self::BodyTooLarge => ("body_too_large", 413, INVALID, "request_too_large"),
            Self::UriTooLong => ("uri_too_long", 414, INVALID, INVALID),
            Self::UnsupportedEncoding => ("unsupported_encoding", 415, INVALID, INVALID),
            Self::UpgradeRequired => ("upgrade_required", 426, INVALID, INVALID),
            Self::HeadTooLarge => ("head_too_large", 431, INVALID, INVALID),
            Self::RateLimited => ("rate_limited", 429, "rate_limit_error", "rate_limit_error"),
            Self::ConcurrencyLimited => (
                "concurrency_limited",
                429,
                "rate_limit_error",
                "rate_limit_error",
            ),
            Self::TokenLimited => ("token_limited", 429, "rate_limit_error", "rate_limit_error"),
            Self::TenantQueueFull => (
                "tenant_queue_full",
                429,
                "rate_limit_error",
                "rate_limit_error",
            ),
            Self::TenantStreamsFull => (
                "tenant_streams_full",
                429,
                "rate_limit_error",
                "rate_limit_error",
            ),
            Self::Internal => ("internal", 500, "server_error", "api_error"),
            Self::UpstreamProtocol => ("upstream_protocol", 502, "upstream_error", "api_error"),
            Self::UpstreamReset => ("upstream_reset", 502, "upstream_error", "api_error"),
            Self::NoWorker => ("no_worker", 503, "overloaded_error", "overloaded_error"),
            Self::QueueFull => ("queue_full", 503, "overloaded_error", "overloaded_error"),
            Self::QueueTimeout => ("queue_timeout", 503, "overloaded_error", "overloaded_error"),
            Self::HookFailed => ("hook_failed", 503, "overloaded_error", "overloaded_error"),
            Self::KeyValidationFailed => (
                "key_validation_failed",
                503,
                "overloaded_error",
                "overloaded_error",
            ),
            Self::Overloaded => ("overloaded", 503, "overloaded_error", "overloaded_error"),
            Self::Draining => ("draining", 503, "overloaded_error", "overloaded_error"),
            Self::FirstByteTimeout => ("first_byte_timeout", 504, "upstream_error", "api_error"),
            Self::StreamInterrupted => ("stream_interrupted", 502, "upstream_error", "api_error"),
            Self::StreamIdleTimeout => ("stream_idle_timeout", 504, "upstream_error", "api_error"),
            Self::StreamTooLong => ("stream_too_long", 504, "upstream_error", "api_error"),
        }
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_code_has_a_unique_name_and_is_listed_once() {
        let words: HashSet<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(words.len(), ErrorCode::ALL.len());
    }

    #[test]
    fn the_type_follows_from_the_status() {
        for code in ErrorCode::ALL {
            let (openai, anthropic) = match code.status() {
                401 => ("authentication_error", "authentication_error"),
                403 => ("permission_error", "permission_error"),
                404 => ("not_found_error", "not_found_error"),
                413 => (INVALID, "request_too_large"),
                429 => ("rate_limit_error", "rate_limit_error"),
                400..=499 => (INVALID, INVALID),
                500 => ("server_error", "api_error"),
                502 | 504 => ("upstream_error", "api_error"),
                503 => ("overloaded_error", "overloaded_error"),
                other => panic!("{code} has the status {other}"),
            };
            assert_eq!(
                (code.openai_type(), code.anthropic_type()),
                (openai, anthropic),
                "{code}"
            );
        }
    }

    #[test]
    fn only_transient_errors_are_retryable() {
        let retryable: Vec<_> = ErrorCode::ALL
            .iter()
            .filter(|code| code.is_retryable())
            .map(|c| c.status())
            .collect();
        assert!(
            retryable
                .iter()
                .all(|status| *status == 429 || *status >= 500)
        );
        assert!(!ErrorCode::Conflict.is_retryable() && !ErrorCode::HeadTooLarge.is_retryable());
        assert!(ErrorCode::TenantQueueFull.is_retryable() && ErrorCode::NoWorker.is_retryable());
    }
}
