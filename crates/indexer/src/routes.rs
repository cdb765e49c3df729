//! HTTP routes of the API.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::Response,
    routing::{MethodRouter, get, post},
};
use serde::Serialize;

use crate::{
    Indexer,
    body::ReceivedBody,
    error::{CallError, CallErrorKind},
    field_map::{FieldMap, FieldSpec},
    query::{OverlapQuery, QUERY, QUERY_BY_HASH},
    registration::{REGISTER, Registration, RegistrationKey, UNREGISTER},
    reply::{body_encoding, reply, reply_encoding},
};

/// Bodies above this size, in bytes, are read on a separate thread, so that other tasks do not
/// wait.
const LONG: usize = 64 << 10;

/// The paths of the Conductor's routes.
pub const PATHS: [&str; 6] = [
    "/register",
    "/unregister",
    "/query",
    "/query_by_hash",
    "/services",
    "/global_view",
];

/// Returns the Conductor's routes, to be mounted beside others. Access control belongs to the
/// listener.
pub fn routes(indexer: Arc<Indexer>) -> Router {
    Router::new()
        .route("/register", posted(post(register)))
        .route("/unregister", posted(post(unregister)))
        .route("/query", posted(post(query)))
        .route("/query_by_hash", posted(post(query_by_hash)))
        .route("/services", got(get(services)))
        .route("/global_view", got(get(global_view)))
        .with_state(indexer)
}

/// Returns the listener's refusal of a call in the error format of these routes; `None` for other
/// paths.
pub fn refusal(
    uri: &Uri,
    headers: &HeaderMap,
    status: StatusCode,
    message: &str,
) -> Option<Response> {
    if !PATHS.contains(&uri.path()) {
        return None;
    }
    let kind = match status {
        StatusCode::UNAUTHORIZED => CallErrorKind::Stranger,
        StatusCode::TOO_MANY_REQUESTS => CallErrorKind::Throttled,
        _ => CallErrorKind::Forbidden,
    };
    let error = CallError::new(kind, message);
    Some(reply::<()>(Err(error), reply_encoding(headers)))
}

/// Returns the same routes for a listener that serves nothing else.
pub fn stand_alone(indexer: Arc<Indexer>) -> Router {
    routes(indexer).fallback(unknown_route)
}

fn posted(route: MethodRouter<Arc<Indexer>>) -> MethodRouter<Arc<Indexer>> {
    route.fallback(|method: Method, uri: Uri, headers: HeaderMap| async move {
        other_method(&method, &uri, "POST", &headers)
    })
}

fn got(route: MethodRouter<Arc<Indexer>>) -> MethodRouter<Arc<Indexer>> {
    route.fallback(|method: Method, uri: Uri, headers: HeaderMap| async move {
        other_method(&method, &uri, "GET", &headers)
    })
}

async fn register(State(indexer): State<Arc<Indexer>>, request: Request) -> Response {
    call(indexer, request, REGISTER, |indexer, form| {
        indexer.register(Registration::of(&form, indexer.destinations())?)
    })
    .await
}

async fn query(State(indexer): State<Arc<Indexer>>, request: Request) -> Response {
    call(indexer, request, QUERY, |indexer, form| {
        Ok(indexer.answer_query(&OverlapQuery::by_tokens(&form, indexer.scheme())?))
    })
    .await
}

async fn query_by_hash(State(indexer): State<Arc<Indexer>>, request: Request) -> Response {
    call(indexer, request, QUERY_BY_HASH, |indexer, form| {
        Ok(indexer.answer_query(&OverlapQuery::by_hashes(&form)?))
    })
    .await
}

async fn unregister(State(indexer): State<Arc<Indexer>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let key = match received(&indexer, &head.headers, body).await {
        Ok(received) => FieldMap::read(&received.bytes, body_encoding(&head.headers), UNREGISTER)
            .and_then(|form| RegistrationKey::of(&form)),
        Err(error) => Err(error),
    };
    let result = match key {
        Ok(key) => indexer.unregister(key).await,
        Err(error) => Err(error),
    };
    reply(result, reply_encoding(&head.headers))
}

async fn services(State(indexer): State<Arc<Indexer>>, headers: HeaderMap) -> Response {
    reply(Ok(indexer.services()), reply_encoding(&headers))
}

async fn global_view(State(indexer): State<Arc<Indexer>>, headers: HeaderMap) -> Response {
    reply(Ok(indexer.global_view()), reply_encoding(&headers))
}

/// Reads the `fields` of a body and runs the call with them.
async fn call<T: Serialize + Send + 'static>(
    indexer: Arc<Indexer>,
    request: Request,
    fields: &'static [FieldSpec],
    act: fn(&Indexer, FieldMap) -> Result<T, CallError>,
) -> Response {
    let (head, body) = request.into_parts();
    let encoding = body_encoding(&head.headers);
    let result = match received(&indexer, &head.headers, body).await {
        Ok(received) => {
            let long = received.bytes.len() > LONG;
            let work = move || {
                FieldMap::read(&received.bytes, encoding, fields)
                    .and_then(|form| act(&indexer, form))
            };
            if long {
                beside_the_runtime(work).await
            } else {
                work()
            }
        }
        Err(error) => Err(error),
    };
    reply(result, reply_encoding(&head.headers))
}

async fn beside_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> Result<T, CallError> {
    let ended = |_| CallError::new(CallErrorKind::Full, "the call was broken off: ask again");
    runtime::spawn_blocking(work).await.map_err(ended)?
}

async fn received(
    indexer: &Indexer,
    headers: &HeaderMap,
    body: Body,
) -> Result<ReceivedBody, CallError> {
    not_from_another_page(headers)?;
    indexer.bodies.read(body).await
}

/// Refuses requests that come from a web page. A page in a browser can post to a listener on its
/// own machine without seeing the reply; browsers send the origin of such a request, API clients do
/// not.
fn not_from_another_page(headers: &HeaderMap) -> Result<(), CallError> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let host = headers.get(header::HOST).map(|host| host.as_bytes());
    let from = origin.as_bytes().split(|byte| *byte == b'/').next_back();
    if host.is_some() && from == host {
        return Ok(());
    }
    Err(CallError::new(
        CallErrorKind::Forbidden,
        "the call comes from a page of another site: call without an Origin header",
    ))
}

fn other_method(method: &Method, uri: &Uri, answers: &str, headers: &HeaderMap) -> Response {
    let message = format!("{} does not answer {method}: use {answers}", path(uri));
    let error = CallError::new(CallErrorKind::Method, message);
    reply::<()>(Err(error), reply_encoding(headers))
}

async fn unknown_route(uri: Uri, headers: HeaderMap) -> Response {
    let message = format!(
        "no route {}: there are POST /register, /unregister, /query, /query_by_hash and GET /services, /global_view",
        path(&uri)
    );
    let error = CallError::new(CallErrorKind::Unknown, message);
    reply::<()>(Err(error), reply_encoding(&headers))
}

fn path(uri: &Uri) -> String {
    uri.path()
        .chars()
        .filter(|c| !c.is_control())
        .take(100)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use api::{HashQuery, RegisterRequest, TokenQuery, UnregisterRequest};
    use axum::http::HeaderValue;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_fields_that_are_read_are_those_of_the_described_bodies() {
        for (fields, body) in [
            (REGISTER, json!(RegisterRequest::default())),
            (UNREGISTER, json!(UnregisterRequest::default())),
            (QUERY, json!(TokenQuery::default())),
            (QUERY_BY_HASH, json!(HashQuery::default())),
        ] {
            let read: BTreeSet<&str> = fields.iter().map(|(field, _)| *field).collect();
            let described = body.as_object().unwrap().keys();
            assert_eq!(read, described.map(String::as_str).collect());
        }
    }

    #[test]
    fn a_call_from_another_origin_is_refused() {
        let from = |origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:13333"));
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            not_from_another_page(&headers)
        };
        assert!(from("http://127.0.0.1:13333").is_ok());
        for other in ["http://evil.test", "null", "", "http://127.0.0.1:80"] {
            assert_eq!(
                from(other).unwrap_err().kind,
                CallErrorKind::Forbidden,
                "{other}"
            );
        }
        assert!(not_from_another_page(&HeaderMap::new()).is_ok());
    }
}
