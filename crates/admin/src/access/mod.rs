//! Access control of the admin listener: who calls, what the caller may do, and the audit of what it
//! changed.

mod audit;
mod roles;
mod token;

use std::{net::IpAddr, sync::Arc};

use api::openapi::Role;
use axum::{
    Extension,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::Response,
};
use dialect::{ApiError, ErrorCode};
use net::{
    Clock,
    server::{self, KeyThrottle, PeerAddress},
};

use self::audit::AuditedCall;
pub use self::audit::{AuditFile, AuditFileError, AuditSinks};
pub(crate) use self::token::Operator;
pub use self::token::{SharedToken, Token, Tokens, TooShort};
use crate::response;

/// Header with the token as it is, in place of `Authorization`.
const ADMIN_KEY: &str = "x-admin-key";

/// The access rule of one listener.
#[derive(Clone, Debug)]
pub struct Access {
    /// Every caller must send one of them, if there are any.
    pub tokens: Tokens,
    /// Whether the listener can only be reached from this machine.
    pub loopback: bool,
    /// The callers that sent wrong tokens.
    pub wrong_tokens: Arc<KeyThrottle>,
    /// The clock of their waits, and of the audit.
    pub clock: Clock,
    /// Where changes are audited.
    pub audit: AuditSinks,
}

/// The client address of a call, set by the listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    /// By which wrong tokens are counted.
    pub(crate) peer: PeerAddress,
    /// The whole address; `None` for a unix socket.
    pub(crate) address: Option<IpAddr>,
}

pub(crate) async fn check(
    State(access): State<Arc<Access>>,
    Extension(caller): Extension<Caller>,
    mut request: Request,
    next: Next,
) -> Response {
    let operator = match access.operator(request.headers()) {
        Ok(operator) => operator,
        Err(error) => return refused(&access.throttled(error, caller), &request),
    };
    let route = request.extensions().get::<MatchedPath>();
    let needed = route.map(|route| roles::needed(request.method(), route.as_str(), request.uri()));
    let audited =
        needed.and_then(|role| AuditedCall::of(role, &operator, caller, &request, &access.audit));
    let allowed = needed.map_or(Ok(()), |role| {
        roles::check(&operator, role)?;
        check_page(&operator, role, request.headers())
    });
    let answer = async move {
        match allowed {
            Ok(()) => {
                request.extensions_mut().insert(operator);
                next.run(request).await
            }
            Err(error) => refused(&error, &request),
        }
    };
    match audited {
        Some(call) => to_its_end(call, access, answer).await,
        None => answer.await,
    }
}

/// Carries a call that may change something to its end, also when its caller leaves: its line says
/// what came of it.
async fn to_its_end(
    call: AuditedCall,
    access: Arc<Access>,
    answer: impl Future<Output = Response> + Send + 'static,
) -> Response {
    let audited = async move {
        let response = answer.await;
        let status = response.status();
        call.write(status, &access.audit, access.clock).await;
        response
    };
    match runtime::spawn(audited).await {
        Ok(response) => response,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The program ends.
            Err(_) => std::future::pending().await,
        },
    }
}

impl Access {
    /// Replaces the refusal of a wrong or missing token while its caller has sent too many.
    fn throttled(&self, refused: ApiError, caller: Caller) -> ApiError {
        let (peer, now) = (caller.peer, self.clock.now());
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

/// Returns the refusal as a reply; callers of the Conductor API get errors of that API's form.
fn refused(error: &ApiError, request: &Request) -> Response {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::FORBIDDEN);
    match indexer::refusal(request.uri(), request.headers(), status, &error.message) {
        Some(reply) => response::with_retry_after(error, reply),
        None => response::error(error),
    }
}

impl Access {
    /// Returns whose call this is.
    fn operator(&self, headers: &HeaderMap) -> Result<Operator, ApiError> {
        let host = headers.get(header::HOST);
        if self.loopback && !host.is_none_or(|host| server::is_here(host.as_bytes())) {
            return Err(ApiError::new(
                ErrorCode::DestinationForbidden,
                "the Host header names another machine: ask for 127.0.0.1 or localhost",
            ));
        }
        let mut bearers = headers.get_all(header::AUTHORIZATION).iter();
        let bearer = bearers.next();
        if bearers.next().is_some() {
            return Err(ApiError::new(
                ErrorCode::InvalidRequest,
                "the request has more than one Authorization header: send one",
            ));
        }
        if self.tokens.is_empty() {
            return is_same_origin(headers).map(|()| Operator::anyone());
        }
        let plain = headers.get_all(ADMIN_KEY).iter();
        let mut presented = bearer
            .into_iter()
            .map(|value| bearer_key(value.as_bytes()))
            .chain(plain.map(|value| Some(value.as_bytes())));
        let Some(first) = presented.next() else {
            return Err(ApiError::new(
                ErrorCode::MissingApiKey,
                "no admin token: send it as `Authorization: Bearer TOKEN`",
            ));
        };
        let owner = first.and_then(|token| self.tokens.owner_of(token));
        match owner.filter(|_| presented.all(|token| token == first)) {
            Some(owner) => Ok(owner.clone()),
            None => Err(ApiError::new(
                ErrorCode::InvalidApiKey,
                "the admin token is not the right one",
            )),
        }
    }
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

/// Checks that without a token no image or link in a page of another origin makes a call that has
/// effects: its request has no `Origin`, and some of these calls are a GET.
fn check_page(operator: &Operator, needed: Role, headers: &HeaderMap) -> Result<(), ApiError> {
    if operator.has_token || needed == Role::Read || !server::is_from_another_page(headers) {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::DestinationForbidden,
        "a page of another origin makes this call (Sec-Fetch-Site): make it from a program, or set admin.token_file and send the token",
    ))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use contract_id::contract;

    use super::*;

    fn tokens(text: Option<&str>) -> Tokens {
        let tokens = text.map(|text| Token::new(text).unwrap());
        Tokens::new(tokens.into_iter().collect()).unwrap()
    }

    fn access(token: Option<&str>, loopback: bool) -> Access {
        Access {
            tokens: tokens(token),
            loopback,
            wrong_tokens: Arc::default(),
            clock: Clock::system(),
            audit: AuditSinks::default(),
        }
    }

    fn code(access: &Access, host: &str, key: Option<&str>) -> Option<ErrorCode> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        if let Some(key) = key {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(key).unwrap());
        }
        access.operator(&headers).err().map(|error| error.code)
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
            open.operator(&headers).err().map(|error| error.code)
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
    #[contract("S15")]
    fn an_image_in_a_page_of_another_origin_reads_at_most_where_no_token_is_needed() {
        let anyone = Operator::anyone();
        let with_token = Operator {
            has_token: true,
            ..anyone.clone()
        };
        for (operator, role, site, allowed) in [
            (&anyone, Role::Operate, "cross-site", false),
            (&anyone, Role::Admin, "same-site", false),
            (&anyone, Role::Read, "cross-site", true),
            (&anyone, Role::Operate, "none", true),
            (&anyone, Role::Operate, "same-origin", true),
            (&with_token, Role::Operate, "cross-site", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("sec-fetch-site", HeaderValue::from_static(site));
            let found = check_page(operator, role, &headers);
            assert_eq!(found.is_ok(), allowed, "{role:?} {site}");
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
            access.operator(&headers).err().map(|error| error.code)
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

    #[test]
    #[contract("S6")]
    fn two_authorization_fields_are_refused_before_any_token_is_looked_up() {
        let (right, wrong) = ("Bearer 0123456789abcdef", "Bearer other");
        for (one, other) in [(right, right), (right, wrong), (wrong, right)] {
            let mut headers = HeaderMap::new();
            for value in [one, other] {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            }
            for access in [access(Some("0123456789abcdef"), false), access(None, true)] {
                let code = access.operator(&headers).err().map(|error| error.code);
                assert_eq!(code, Some(ErrorCode::InvalidRequest), "{one}, {other}");
            }
        }
    }
}
