//! `/v1/realtime`: conversations over a WebSocket, in the events of OpenAI's realtime API.
//!
//! Texts only: `session.update`, `conversation.item.create` with texts, `response.create` and
//! `response.cancel`. Sound and functions are answered with an error event, as is anything else.

mod conversation;
mod events;

use std::sync::Arc;

use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role},
};

use self::conversation::RealtimeSession;
use super::{ConnectionCut, SimApiError, SimBody, generate};
use crate::{
    fault::InjectedFault,
    server_state::{RequestCounts, ServerState},
};

/// What a connection carries after its last request, where that is a handshake.
pub(crate) type AfterHttp = Arc<Mutex<Option<BoxFuture<'static, ()>>>>;

/// Answers a handshake, subject to injected faults; `after` gets the conversation.
pub(crate) async fn answer(
    state: Arc<ServerState>,
    mut request: Request<Incoming>,
    after: &AfterHttp,
) -> Result<Response<SimBody>, ConnectionCut> {
    RequestCounts::add(&state.counts.requests);
    match state.fault.take() {
        Some(InjectedFault::Status(status)) => {
            return Ok(SimApiError::of_status(status).into_response());
        }
        Some(InjectedFault::Hang) => std::future::pending().await,
        Some(InjectedFault::Reset) => return Err(ConnectionCut),
        _ => {}
    }
    let upgrade = hyper::upgrade::on(&mut request);
    Ok(match accepted(state, &request, upgrade) {
        Ok((response, conversation)) => {
            *after.lock() = Some(conversation);
            response
        }
        Err(error) => error.into_response(),
    })
}

fn accepted(
    state: Arc<ServerState>,
    request: &Request<Incoming>,
    upgrade: OnUpgrade,
) -> Result<(Response<SimBody>, BoxFuture<'static, ()>), SimApiError> {
    let headers = request.headers();
    let key = headers
        .get("sec-websocket-key")
        .filter(|_| is_websocket(headers));
    let key = key.ok_or_else(|| {
        SimApiError::bad_request("/v1/realtime expects a WebSocket handshake.", None)
    })?;
    let query = request.uri().query().unwrap_or_default();
    let named = query.split('&').find_map(|it| it.strip_prefix("model="));
    let named = named.map(percent_decoded);
    let model = generate::known_model(&state, named.as_deref())?;
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let fields = response.headers_mut();
    fields.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    fields.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::try_from(derive_accept_key(key.as_bytes())) {
        fields.insert("sec-websocket-accept", accept);
    }
    // As OpenAI's server: browsers name it, and nothing else is agreed on.
    if headers
        .get("sec-websocket-protocol")
        .is_some_and(offers_realtime)
    {
        let realtime = HeaderValue::from_static("realtime");
        fields.insert("sec-websocket-protocol", realtime);
    }
    let headers = headers.clone();
    let conversation = async move {
        let Ok(stream) = upgrade.await else { return };
        let stream = TokioIo::new(stream);
        let socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
        RealtimeSession::new(state, headers, model)
            .run(socket)
            .await;
    };
    Ok((response, conversation.boxed()))
}

fn is_websocket(headers: &HeaderMap) -> bool {
    headers
        .get(header::UPGRADE)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

fn offers_realtime(offered: &HeaderValue) -> bool {
    let offered = offered.to_str().unwrap_or_default();
    offered.split(',').any(|one| one.trim() == "realtime")
}

/// Decodes the percent escapes of a query's value; a malformed one stays as it is.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
