//! Access control of the admin listener.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    middleware::Next,
    response::Response,
};
use dialect::{ApiError, ErrorCode};
use net::{
    Clock,
    server::{self, KeyThrottle, PeerAddress},
};
use sha2::{Digest, Sha256};

use crate::response;

/// The operators' token, stored as its digest.
#[derive(Clone, Debug)]
pub struct Token([u8; 32]);

impl Token {
    /// Creates the token from `text` (a file's content: surrounding space is not part of it). At
    /// least 16 characters, which is 128 bits when drawn at random.
    pub fn new(text: &str) -> Result<Self, ApiError> {
        let text = text.trim();
        if text.len() < 16 {
            return Err(ApiError::new(
                ErrorCode::InvalidRequest,
                "the admin token is shorter than 16 characters: write a random one into admin.token_file",
            ));
        }
        Ok(Self(Sha256::digest(text.as_bytes()).into()))
    }

    fn is(&self, presented: &[u8]) -> bool {
        <[u8; 32]>::from(Sha256::digest(presented)) == self.0
    }
}

/// Header with the token as it is, in place of `Authorization`.
const ADMIN_KEY: &str = "x-admin-key";

/// The access rule of one listener.
#[derive(Clone, Debug)]
pub struct Access {
    /// Required of every caller, if set.
    pub token: Option<Token>,
    /// Whether the listener can only be reached from this machine.
    pub loopback: bool,
    /// The callers that sent wrong tokens.
    pub wrong_tokens: Arc<KeyThrottle>,
    /// The clock of their waits.
    pub clock: Clock,
}

/// The client address of a call, set by the listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller(pub(crate) PeerAddress);

pub(crate) async fn check(
    State(access): State<Arc<Access>>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(error) = allowed(&access, request.headers()) {
        return refused(&access.throttled(error, caller), &request);
    }
    let change = ChangeCall::of(&access, &request);
    let response = next.run(request).await;
    if let Some(change) = change {
        change.log(response.status());
    }
    response
}

impl Access {
    /// Replaces the refusal of a wrong or missing token while its caller has sent too many.
    fn throttled(&self, refused: ApiError, Caller(peer): Caller) -> ApiError {
        let now = self.clock.now();
        let wait = match refused.code {
            ErrorCode::InvalidApiKey => self.wrong_tokens.record_wrong_key(peer, now),
            ErrorCode::MissingApiKey => self.wrong_tokens.wait_without_key(peer, now),
            _ => None,
        };
        wait.map_or(refused, |seconds| {
            let message = "too many wrong admin tokens from this address: try again after the time in Retry-After; the \
                           right one is accepted at once";
            ApiError::new(ErrorCode::RateLimited, message).with_retry_after(seconds)
        })
    }
}

/// A call that may change the running router, for the audit trail in the log.
struct ChangeCall {
    action: String,
    caller: &'static str,
}

impl ChangeCall {
    /// Returns the call if it is one; queries of the Conductor API are sent by POST, too.
    fn of(access: &Access, request: &Request) -> Option<Self> {
        let path = request.uri().path();
        let changes = path.starts_with("/admin/") || path.ends_with("register");
        let reads = [Method::GET, Method::HEAD, Method::OPTIONS];
        (changes && !reads.contains(request.method())).then(|| Self {
            action: format!("{} {path}", request.method()),
            caller: match access.token {
                Some(_) => "admin token",
                None => "this machine",
            },
        })
    }

    fn log(&self, status: StatusCode) {
        let Self { action, caller } = self;
        tracing::info!(
            target: "warmroute::audit",
            action,
            caller,
            status = status.as_u16(),
            "operator call"
        );
    }
}

/// Returns the refusal as a reply; callers of the Conductor API get errors of that API's form.
fn refused(error: &ApiError, request: &Request) -> Response {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::FORBIDDEN);
    match indexer::refusal(request.uri(), request.headers(), status, &error.message) {
        Some(reply) => response::with_retry_after(error, reply),
        None => response::error(error),
    }
}

fn allowed(access: &Access, headers: &HeaderMap) -> Result<(), ApiError> {
    if access.loopback
        && !headers
            .get(header::HOST)
            .is_none_or(|host| server::is_here(host.as_bytes()))
    {
        return Err(ApiError::new(
            ErrorCode::DestinationForbidden,
            "the Host header names another machine: ask for 127.0.0.1 or localhost",
        ));
    }
    let Some(token) = &access.token else {
        return is_same_origin(headers);
    };
    let bearer = headers.get_all(header::AUTHORIZATION).iter();
    let plain = headers.get_all(ADMIN_KEY).iter();
    let mut presented = bearer
        .map(|value| bearer_key(value.as_bytes()))
        .chain(plain.map(|value| Some(value.as_bytes())))
        .peekable();
    if presented.peek().is_none() {
        return Err(ApiError::new(
            ErrorCode::MissingApiKey,
            "no admin token: send it as `Authorization: Bearer TOKEN`",
        ));
    }
    if presented.all(|key| key.is_some_and(|key| token.is(key))) {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::InvalidApiKey,
        "the admin token is not the right one",
    ))
}

/// Returns the key of `Bearer KEY`.
fn bearer_key(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer ");
    is_bearer.then(|| key.trim_ascii())
}

/// Checks that a browser's call comes from a page of this listener. Browsers name the page: without
/// a token, a page of another site could drain the router through its visitor's browser.
fn is_same_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    if server::foreign_origin(headers).is_none() {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::DestinationForbidden,
        "the Origin header names another site: call without one, or set admin.token_file and send the token",
    ))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use contract_id::contract;

    use super::*;

    fn access(token: Option<&str>, loopback: bool) -> Access {
        Access {
            token: token.map(|text| Token::new(text).unwrap()),
            loopback,
            wrong_tokens: Arc::default(),
            clock: Clock::system(),
        }
    }

    fn code(access: &Access, host: &str, key: Option<&str>) -> Option<ErrorCode> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        if let Some(key) = key {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(key).unwrap());
        }
        allowed(access, &headers).err().map(|error| error.code)
    }

    #[test]
    #[contract("S15")]
    fn a_page_of_another_host_name_cannot_read_a_loopback_listener() {
        let open = access(None, true);
        for fine in [
            "127.0.0.1:9191",
            "localhost:9191",
            "LOCALHOST",
            "[::1]:9191",
            "127.0.0.1",
            "[::1]",
        ] {
            assert_eq!(code(&open, fine, None), None, "{fine}");
        }
        for other in [
            "evil.test",
            "evil.test:9191",
            "127.0.0.1.evil.test",
            "localhost.evil.test:9191",
        ] {
            assert_eq!(
                code(&open, other, None),
                Some(ErrorCode::DestinationForbidden),
                "{other}"
            );
        }
    }

    #[test]
    #[contract("S15")]
    fn a_cross_site_page_cannot_call_a_listener_without_a_token() {
        let open = access(None, true);
        let code = |origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:9191"));
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            allowed(&open, &headers).err().map(|error| error.code)
        };
        assert_eq!(code("http://127.0.0.1:9191"), None);
        for other in [
            "http://evil.test",
            "http://127.0.0.1:8000",
            "https://127.0.0.1:9191.evil.test",
            "null",
            "",
        ] {
            assert_eq!(
                code(other),
                Some(ErrorCode::DestinationForbidden),
                "{other}"
            );
        }
    }

    #[test]
    fn with_a_token_only_that_token_is_accepted() {
        let access = access(Some(" 0123456789abcdef\n"), false);
        assert_eq!(code(&access, "x", None), Some(ErrorCode::MissingApiKey));
        assert_eq!(code(&access, "x", Some("Bearer 0123456789abcdef")), None);
        for wrong in [
            "Bearer 0123456789abcdeF",
            "Basic 0123456789abcdef",
            "Bearer ",
            "Bearer",
        ] {
            assert!(code(&access, "x", Some(wrong)).is_some(), "{wrong}");
        }
        assert!(Token::new("short").is_err());
    }

    #[test]
    #[contract("V33")]
    fn the_token_may_be_in_a_header_of_its_own_and_two_tokens_must_both_be_right() {
        let access = access(Some("0123456789abcdef"), false);
        let code = |fields: &[(&'static str, &'static str)]| {
            let value = |(name, value): &(&'static str, &'static str)| {
                (name.parse().unwrap(), HeaderValue::from_static(value))
            };
            let headers: HeaderMap = fields.iter().map(value).collect();
            allowed(&access, &headers).err().map(|error| error.code)
        };
        let right = ("x-admin-key", "0123456789abcdef");
        assert_eq!(code(&[right]), None);
        let bearer = ("authorization", "Bearer 0123456789abcdef");
        assert_eq!(code(&[right, bearer]), None);
        for wrong in [
            ("x-admin-key", "0123456789abcdeF"),
            ("x-admin-key", ""),
            ("authorization", "Bearer other"),
        ] {
            assert_eq!(code(&[wrong]), Some(ErrorCode::InvalidApiKey), "{wrong:?}");
            let beside = code(&[("x-router-key", right.1), wrong]);
            assert_eq!(beside, Some(ErrorCode::InvalidApiKey), "{wrong:?}");
        }
        assert_eq!(
            code(&[right, ("authorization", "Bearer other")]),
            Some(ErrorCode::InvalidApiKey)
        );
    }
}
