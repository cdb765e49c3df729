//! Accept: from a request head on a socket to an accepted request.
//!
//! Checks come in this order: route, sizes, the key and its tenant's limits (`key_check`), the body.
//! No body is buffered for an unauthorized caller.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use config::ServerSection;
use dialect::{ApiError, ErrorCode};
use http::{HeaderMap, Method, Uri, header, request::Parts, uri::PathAndQuery};
use kv_blocks::Moment;
use net::{
    Clock,
    server::{KeyThrottle, PeerAddress},
};
use prompt::SaltGroup;
use proxy::{BodyBuffer, BodyRest, ClientUpgrade, RequestBody, RestLimits, headers};
use routing::SloTargets;
use tenants::{DEFAULT_TENANT, Tenant, TenantPermit, Tenants};

use super::{
    body_budget::{BodyBudget, BodyLimits, BodySender, BufferedBody},
    origin,
    overrides::{self, HeaderOverrides, printable},
    rights, slo,
};
use crate::{
    errors,
    key_validation::KeyValidator,
    memory::MemoryPressure,
    process_limits::ProcessLimits,
    response_affinity::ResponseOwner,
    routes::{self, BodyMode, Route, RouteHandler, RouteMatch},
};

/// A request with a known route and an authorized caller.
#[derive(Clone, Debug)]
pub(crate) struct AcceptedRequest {
    pub(crate) request_id: Arc<str>,
    pub(crate) received: Moment,
    /// The method of the route.
    pub(crate) method: Method,
    pub(crate) target: PathAndQuery,
    pub(crate) headers: HeaderMap,
    pub(crate) body: BufferedBody,
    /// The rest of a body of which only the beginning is buffered.
    pub(crate) rest: Option<BodyRest>,
    pub(crate) overrides: HeaderOverrides,
    /// Its own latency targets, else those of its tenant.
    pub(crate) slo: SloTargets,
    pub(crate) sender: RequestSender,
    /// The owner of the client's key; `None` on a route that needs none.
    pub(crate) tenant: Option<Arc<Tenant>>,
    /// Whether its body has the salt of its tenant.
    pub(crate) salted: bool,
    /// The client's connection, where the route leaves HTTP and the client wants to.
    pub(crate) upgrade: Option<ClientUpgrade>,
}

impl AcceptedRequest {
    /// Returns the same request in another dialect.
    pub(crate) fn with_dialect(&self, target: PathAndQuery, body: Bytes) -> Self {
        let body = self.body.with_extra(body);
        let (mut headers, overrides) = (self.headers.clone(), self.overrides.clone());
        // The router reads the reply itself.
        headers.remove(header::ACCEPT_ENCODING);
        Self {
            request_id: Arc::clone(&self.request_id),
            received: self.received,
            method: self.method.clone(),
            target,
            headers,
            body,
            rest: None,
            overrides,
            slo: self.slo,
            sender: self.sender,
            tenant: self.tenant.clone(),
            salted: self.salted,
            upgrade: None,
        }
    }

    /// Returns the response of this id that the tenant created.
    pub(crate) fn response<'a>(&'a self, id: &'a str) -> ResponseOwner<'a> {
        let tenant = self.tenant_name();
        ResponseOwner { tenant, id }
    }

    /// Returns the name of the tenant.
    pub(crate) fn tenant_name(&self) -> &str {
        let tenant = self.tenant.as_ref();
        tenant.map_or(DEFAULT_TENANT, |tenant| tenant.name())
    }

    /// Returns the requests with which it shares remembered work where its body has no salt.
    pub(crate) fn salt_group(&self) -> SaltGroup {
        let tenant = self.tenant.as_ref();
        SaltGroup::of(tenant.and_then(|tenant| tenant.cache_salt(None)).as_deref())
    }

    /// Returns whether the tenant may use any model.
    pub(crate) fn may_use_all_models(&self) -> bool {
        let tenant = self.tenant.as_ref();
        tenant.is_none_or(|tenant| tenant.models().is_all())
    }
}

/// Most header fields of a request.
pub(crate) const MAX_HEADERS: usize = 100;
/// Longest request target, in bytes.
const MAX_TARGET: usize = 8 * 1024;
/// Limits for draining a rejected body: bytes, and time.
const UNWANTED_BYTES: usize = 1024 * 1024;
const UNWANTED_TIME: Duration = Duration::from_secs(1);
/// Bytes of a form that are buffered: a form up to this size can be sent again. A longer one names
/// its model in its beginning.
const FORM_START: usize = 1024 * 1024;
/// Base time limit of a body of any size; a body gets one more second per KiB.
const BODY_GRACE: Duration = Duration::from_secs(10);
const BODY_BYTES_PER_SECOND: u64 = 1024;

/// Returns the route of the request, before any other check.
pub(crate) fn route(parts: &Parts) -> Result<&'static Route, ApiError> {
    let path = parts.uri.path();
    match routes::find(&parts.method, path) {
        RouteMatch::Route(route) => Ok(route),
        RouteMatch::OtherMethod(route) => Err(ApiError::new(
            ErrorCode::MethodNotAllowed,
            format!(
                "{} does not answer {}: use {}",
                route.path, parts.method, route.method
            ),
        )),
        RouteMatch::Nothing if !is_of_resources(&parts.method) => Err(ApiError::new(
            ErrorCode::MethodNotAllowed,
            format!(
                "the method {} is not served here",
                printable(parts.method.as_str())
            ),
        )),
        RouteMatch::Nothing => Err(ApiError::new(
            ErrorCode::UnknownRoute,
            format!(
                "no route {}: the API of this router is under /v1/",
                printable(path)
            ),
        )),
    }
}

/// Returns whether a method is one for resources of a server: not a proxy's (CONNECT), TRACE, or an
/// unknown one.
fn is_of_resources(method: &Method) -> bool {
    [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ]
    .contains(method)
}

/// Returns the methods of an existing path, for the `Allow` header of a 405.
pub(crate) fn allowed_methods(parts: &Parts) -> Option<&'static str> {
    match routes::find(&parts.method, parts.uri.path()) {
        RouteMatch::OtherMethod(route) if route.endpoint == RouteHandler::StoredResponse => {
            Some("DELETE, GET, HEAD, POST")
        }
        RouteMatch::OtherMethod(route) if route.method == Method::GET => Some("GET, HEAD"),
        RouteMatch::OtherMethod(route) if route.endpoint == RouteHandler::PrefillComplete => {
            Some("DELETE, POST")
        }
        RouteMatch::OtherMethod(_) => Some("POST"),
        RouteMatch::Route(_) | RouteMatch::Nothing => None,
    }
}

/// The limits and budgets by which requests are accepted.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    pub(crate) server: Arc<ServerSection>,
    pub(crate) process: ProcessLimits,
    pub(crate) tenants: Arc<Tenants>,
    /// Set where services decide which keys are valid.
    pub(crate) key_validator: Option<Arc<KeyValidator>>,
    pub(crate) wrong_keys: Arc<KeyThrottle>,
    pub(crate) bodies: Arc<BodyBudget>,
    pub(crate) memory: Arc<MemoryPressure>,
    pub(crate) clock: Clock,
}

/// A request whose route is known.
#[derive(Debug)]
pub(crate) struct RequestHead {
    pub(crate) parts: Parts,
    pub(crate) route: &'static Route,
    pub(crate) arrival: Arrival,
}

/// Where and when a request came in, and its name.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) request_id: Arc<str>,
    pub(crate) received: Moment,
    pub(crate) sender: RequestSender,
}

/// The peer of the connection on which a request came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSender {
    /// The client, by whose share its body counts.
    pub(crate) share: PeerAddress,
    /// Its whole address; `None` for a unix socket.
    pub(crate) address: Option<IpAddr>,
}

impl Admission {
    /// Checks the head and the key, and takes the request's place among those of its tenant. `None`:
    /// the route needs no key.
    pub(crate) async fn admit(&self, head: &RequestHead) -> Result<Option<TenantPermit>, ApiError> {
        let parts = &head.parts;
        head_fits(parts, self.server.max_head_bytes)?;
        host_is_plain(&parts.headers, &parts.uri)?;
        match head.route.scope {
            Some(scope) => self.check_key(head, scope).await.map(Some),
            None => Ok(None),
        }
    }

    /// Reads the override headers and the body of an admitted request.
    pub(crate) async fn accept(
        &self,
        head: RequestHead,
        tenant: Option<Arc<Tenant>>,
        body: &mut RequestBody,
    ) -> Result<AcceptedRequest, ApiError> {
        let RequestHead {
            mut parts,
            route,
            arrival,
        } = head;
        let Arrival {
            request_id,
            received,
            sender,
        } = arrival;
        let body_sender = BodySender {
            peer: sender.share,
            tenant: tenant
                .as_ref()
                .filter(|tenant| !tenant.is_alone())
                .map(|tenant| Arc::clone(tenant.name())),
        };
        origin::remove_untrusted_forwarding(&self.server, &mut parts.headers, sender.address);
        identity_encoding(&parts.headers)?;
        let may_override = rights::may_override(tenant.as_deref());
        if let Some(name) = overrides::first(&parts.headers).filter(|_| !may_override) {
            return Err(errors::override_not_allowed(name));
        }
        let usual = tenant.as_ref().map(|tenant| tenant.queue_share());
        let usual_priority = usual.map_or(0, |usual| usual.priority);
        let overrides = overrides::read(&parts.headers, usual_priority)?;
        let usual_targets = usual.map_or_else(SloTargets::default, |usual| SloTargets {
            ttft: usual.slo_ttft,
            tpot: usual.slo_tpot,
        });
        let slo = slo::read(&parts.headers, usual_targets)?;
        let upgrade = upgrade(route, &mut parts, body);
        let (body, rest) = match route.body {
            BodyMode::None => {
                let permit = self.bodies.empty(body_sender, self.body_limits());
                (BufferedBody::new(Bytes::new(), permit), None)
            }
            BodyMode::Limited => (self.read(body, body_sender, usize::MAX).await?.0, None),
            BodyMode::Form => self.read_form(body, body_sender).await?,
        };
        let target = parts
            .uri
            .path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/"));
        Ok(AcceptedRequest {
            request_id,
            received,
            method: route.method.clone(),
            target,
            headers: parts.headers,
            body,
            rest,
            overrides,
            slo,
            sender,
            tenant,
            salted: false,
            upgrade,
        })
    }

    /// Returns the limits of the body budget.
    fn body_limits(&self) -> BodyLimits {
        BodyLimits {
            max_buffered: self.server.max_held_bytes,
            max_body: self.server.max_body_bytes as u64,
        }
    }

    /// Reads the beginning of a form; the rest, if there is one, is read as it is sent.
    async fn read_form(
        &self,
        body: &mut RequestBody,
        sender: BodySender,
    ) -> Result<(BufferedBody, Option<BodyRest>), ApiError> {
        let (first, ended) = self.read(body, sender, FORM_START).await?;
        let rest = (!ended).then(|| {
            let limits = RestLimits {
                most: self
                    .server
                    .max_body_bytes
                    .saturating_sub(first.bytes().len()) as u64,
                pause: BODY_GRACE,
                total: self.server.body_timeout,
                bytes_per_second: BODY_BYTES_PER_SECOND,
            };
            let body = std::mem::replace(body, RequestBody::chunked([]));
            BodyRest::new(body, limits)
        });
        Ok((first, rest))
    }

    /// Reads a body within the limits of size, time and memory: until it has `enough` bytes. Returns
    /// whether it ended.
    async fn read(
        &self,
        body: &mut RequestBody,
        sender: BodySender,
        enough: usize,
    ) -> Result<(BufferedBody, bool), ApiError> {
        let limit = self.server.max_body_bytes;
        let too_large = |size: u64| {
            ApiError::new(
                ErrorCode::BodyTooLarge,
                format!("the request body has {size} bytes or more, at most {limit} are accepted"),
            )
        };
        let announced = body.announced();
        if let Some(size) = announced.filter(|size| *size > limit as u64) {
            return Err(too_large(size));
        }
        let buffered = announced.map(|size| size.min(enough as u64));
        self.memory.admit(buffered.unwrap_or(0))?;
        let mut permit = self.bodies.reserve(sender, buffered, self.body_limits())?;
        // Nearly every body arrives in one or two frames: the first is kept uncopied, and copied only
        // if a second follows.
        let mut buffer = BodyBuffer::of_length(buffered);
        let (started, most) = (tokio::time::Instant::now(), self.server.body_timeout);
        let ended = loop {
            if buffer.len() >= enough {
                break body.is_end();
            }
            let allowed =
                BODY_GRACE + Duration::from_secs(buffer.len() as u64 / BODY_BYTES_PER_SECOND);
            let data = tokio::time::timeout_at(started + allowed.min(most), body.next_data())
                .await
                .map_err(|_| too_slow(buffer.len(), most))?;
            let Some(data) = data else { break true };
            let data = data.map_err(|_| {
                ApiError::new(
                    ErrorCode::InvalidRequest,
                    "the request body ended early or is not validly framed",
                )
            })?;
            let size = buffer.len() + data.len();
            if size > limit {
                return Err(too_large(size as u64));
            }
            if announced.is_none() {
                self.memory.admit(size as u64)?;
            }
            permit.grow_to(size as u64)?;
            buffer.push(data);
        };
        Ok((BufferedBody::new(buffer.into_bytes(), permit), ended))
    }
}

/// Takes the client's connection if it may leave HTTP for a WebSocket after this request.
fn upgrade(route: &Route, parts: &mut Parts, body: &RequestBody) -> Option<ClientUpgrade> {
    let may = route.endpoint == RouteHandler::Realtime
        && parts.method == Method::GET
        && headers::is_websocket(&parts.headers)
        && body.is_end();
    may.then(|| ClientUpgrade::take(&mut parts.extensions))?
}

fn head_fits(parts: &Parts, limit: usize) -> Result<(), ApiError> {
    let target = parts
        .uri
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    if target > MAX_TARGET {
        return Err(ApiError::new(
            ErrorCode::UriTooLong,
            format!("the request target has {target} bytes, at most {MAX_TARGET} are accepted"),
        ));
    }
    // A connection of HTTP/1 refuses more before they come here.
    let count = parts.headers.len();
    if count > MAX_HEADERS {
        return Err(ApiError::new(
            ErrorCode::HeadTooLarge,
            format!("the request head has {count} fields, at most {MAX_HEADERS} are accepted"),
        ));
    }
    // Name, value, and the four bytes `: ` and CRLF of each line.
    let fields: usize = parts
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    if fields + target > limit {
        return Err(ApiError::new(
            ErrorCode::HeadTooLarge,
            format!(
                "the request head has {} bytes, at most {limit} are accepted",
                fields + target
            ),
        ));
    }
    Ok(())
}

/// Checks for one `Host` of host and port only. The router decides nothing by it and passes it to
/// no downstream parser.
fn host_is_plain(headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let plain = |bytes: &[u8]| {
        bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]~".contains(byte))
    };
    let fine = second.is_none()
        && first.is_none_or(|host| !host.is_empty() && plain(host.as_bytes()))
        && uri
            .authority()
            .is_none_or(|authority| first.is_some_and(|host| host == authority.as_str()));
    if fine {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::InvalidRequest,
        "the Host header must be one host, with or without a port",
    ))
}

fn identity_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    match encodings.find(|it| !it.as_bytes().eq_ignore_ascii_case(b"identity")) {
        Some(_) => Err(ApiError::new(
            ErrorCode::UnsupportedEncoding,
            "the body is content-encoded: send it as it is (Content-Encoding: identity)",
        )),
        None => Ok(()),
    }
}

fn too_slow(size: usize, most: Duration) -> ApiError {
    ApiError::new(
        ErrorCode::InvalidRequest,
        format!(
            "the request body was not complete after {size} bytes: send it at 1 KiB/s or more, and within {} s \
             (server.body_timeout)",
            most.as_secs_f64()
        ),
    )
}

/// Drains the rest of a rejected body, so that the client gets the reply and not a connection
/// reset. Gives up after a while: the connection is then unusable. A client that sent `Expect:
/// 100-continue` gets no 100.
pub(crate) async fn drain_body(body: &mut RequestBody, expects_continue: bool) -> bool {
    if body.is_end() {
        return true;
    }
    if expects_continue {
        return false;
    }
    let reading = async {
        let mut size = 0;
        while let Some(Ok(data)) = body.next_data().await {
            size += data.len();
            if size > UNWANTED_BYTES {
                return false;
            }
        }
        body.is_end()
    };
    tokio::time::timeout(UNWANTED_TIME, reading)
        .await
        .unwrap_or(false)
}

/// Returns whether the reply must have no body.
pub(crate) fn is_head(method: &Method) -> bool {
    *method == Method::HEAD
}

#[cfg(test)]
mod tests {
    use http::Request;
    use prometheus_client::metrics::gauge::Gauge;

    use tenants::{TenantSecrets, TenantsSection};

    use super::*;

    fn one_key(key: &str) -> Tenants {
        Tenants::new(&TenantsSection::default(), TenantSecrets::of_key(key))
    }

    fn admission(tenants: Tenants) -> Admission {
        Admission {
            server: Arc::new(ServerSection {
                max_head_bytes: 200,
                max_body_bytes: 10,
                max_held_bytes: 1000,
                body_timeout: Duration::from_secs(1),
                ..ServerSection::default()
            }),
            process: ProcessLimits {
                memory_budget: None,
                max_connections: 1,
            },
            tenants: Arc::new(tenants),
            key_validator: None,
            wrong_keys: Arc::default(),
            bodies: BodyBudget::new(Gauge::default()),
            memory: Arc::default(),
            clock: Clock::system(),
        }
    }

    /// Accepts a chat with this header field and body.
    async fn accept(
        tenants: Tenants,
        field: (&'static str, &str),
        body: &mut RequestBody,
    ) -> Result<AcceptedRequest, ApiError> {
        let request = Request::post("/v1/chat/completions").header(field.0, field.1);
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        let head = RequestHead {
            route: route(&parts).expect("a route"),
            parts,
            arrival: Arrival {
                request_id: "r1".into(),
                received: Moment::START,
                sender: RequestSender {
                    share: PeerAddress::Local,
                    address: None,
                },
            },
        };
        let admission = admission(tenants);
        let permit = admission.admit(&head).await?;
        let tenant = permit.as_ref().map(|permit| Arc::clone(permit.tenant()));
        admission.accept(head, tenant, body).await
    }

    const HOST: (&str, &str) = ("host", "router");

    fn frames(texts: &[&'static str]) -> RequestBody {
        let bytes = |text: &&'static str| Bytes::from_static(text.as_bytes());
        RequestBody::chunked(texts.iter().map(bytes))
    }

    #[tokio::test]
    async fn a_body_is_accepted_as_it_came_in_however_many_frames() {
        for mut body in [
            RequestBody::of_length("0123456789"),
            frames(&["0123456789"]),
            frames(&["01", "", "23456", "789"]),
        ] {
            let call = accept(Tenants::default(), HOST, &mut body).await;
            assert_eq!(call.expect("it fits").body.bytes(), "0123456789");
        }
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_is_refused_by_its_length_or_as_soon_as_it_exceeds_the_limit() {
        let mut announced = RequestBody::of_length("01234567890");
        let mut chunked = frames(&["012345", "67890", "never read"]);
        for body in [&mut announced, &mut chunked] {
            let refused = accept(Tenants::default(), HOST, body).await;
            let code = refused.map(|_| ()).map_err(|error| error.code);
            assert_eq!(code, Err(ErrorCode::BodyTooLarge));
            assert!(!body.is_end(), "the rest is not read");
        }
    }

    #[tokio::test]
    async fn a_head_is_refused_before_its_body_is_read() {
        let long = "x".repeat(200);
        for (tenants, field, code) in [
            (one_key("k"), HOST, ErrorCode::MissingApiKey),
            (
                Tenants::default(),
                ("x-long", &*long),
                ErrorCode::HeadTooLarge,
            ),
            (
                Tenants::default(),
                ("content-encoding", "gzip"),
                ErrorCode::UnsupportedEncoding,
            ),
            (
                Tenants::default(),
                ("host", "a b"),
                ErrorCode::InvalidRequest,
            ),
            (
                Tenants::default(),
                ("x-warmroute-policy", "none such"),
                ErrorCode::UnknownPolicy,
            ),
            (
                Tenants::default(),
                ("x-warmroute-priority", "101"),
                ErrorCode::InvalidRequest,
            ),
        ] {
            let mut body = frames(&["0123"]);
            let refused = accept(tenants, field, &mut body).await;
            let found = refused.map(|_| ()).map_err(|error| error.code);
            assert_eq!(found, Err(code), "{field:?}");
            assert!(!body.is_end(), "{field:?}");
        }
    }

    #[tokio::test]
    async fn a_refused_body_is_drained_unless_it_is_long_or_the_client_waits_for_a_100() {
        assert!(drain_body(&mut frames(&["a", "b"]), false).await);
        assert!(!drain_body(&mut frames(&["a"]), true).await);
        let piece = Bytes::from(vec![b'x'; UNWANTED_BYTES]);
        let mut long = RequestBody::chunked([piece.clone(), piece.clone(), piece]);
        assert!(!drain_body(&mut long, false).await);
    }
}
