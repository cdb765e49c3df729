//! `GET /v1/realtime`: a WebSocket conversation, at one worker from its beginning to its end.
//!
//! The handshake is forwarded, so that client and worker agree on it among themselves; after it
//! their bytes pass unread ([`super::conversation`]). The model stands in the query, as OpenAI's
//! clients send it.

use std::{ops::Range, sync::Arc};

use dialect::{ApiError, ErrorCode};
use fleet::ModelView;
use http::{HeaderValue, Response, header, uri::PathAndQuery};

use super::{
    accept::AcceptedRequest, path_id::percent_decoded, preprocess::MODEL, queue_wait::WaitRecord,
    record::RequestGuard, reply::refused, reply_body::ReplyBody,
};
use crate::Gateway;

/// The load of a conversation, in tokens: about that of 30 s of sound.
const LOAD: u32 = 1500;
/// Longest name of a model, in bytes.
const MAX_MODEL: usize = 1024;

/// Opens a conversation with a worker of the model.
pub(super) async fn realtime(
    gateway: &Arc<Gateway>,
    mut call: AcceptedRequest,
    mut guard: Box<RequestGuard>,
) -> Response<ReplyBody> {
    if call.upgrade.is_none() {
        return upgrade_required(guard);
    }
    if let Err(error) = guard.begin_stream() {
        return refused(guard, &error);
    }
    let stages = &gateway.generation;
    let deadline = call.received + stages.request_timeout();
    let mut wait = WaitRecord::new(0, deadline).of_tenant(call.tenant.as_ref());
    let model = match find_model(gateway, &mut call, &mut wait, &mut guard).await {
        Ok(model) => model,
        Err(error) => return refused(guard, &error),
    };
    // Nothing is said before both sides have agreed: until then another worker may be tried.
    match stages.route_unread(call, model, wait, (LOAD, true), &mut guard) {
        Ok(request) => Box::pin(stages.delivery.run(request, guard)).await,
        Err(error) => refused(guard, &error),
    }
}

fn upgrade_required(guard: Box<RequestGuard>) -> Response<ReplyBody> {
    let message = "GET /v1/realtime is a WebSocket: connect with a client of the realtime API, or send Connection: \
                   Upgrade and Upgrade: websocket without a body";
    let error = ApiError::new(ErrorCode::UpgradeRequired, message);
    let mut response = refused(guard, &error);
    let websocket = HeaderValue::from_static("websocket");
    response.headers_mut().insert(header::UPGRADE, websocket);
    response
}

/// Finds the model that the query names, and puts the name by which workers know it into the query.
async fn find_model(
    gateway: &Gateway,
    call: &mut AcceptedRequest,
    wait: &mut WaitRecord,
    guard: &mut RequestGuard,
) -> Result<Arc<ModelView>, ApiError> {
    let (named, place) = match model_parameter(call.target.query().unwrap_or_default())? {
        Some((name, place)) => (Arc::from(name), Some(place)),
        None => {
            let only = gateway.fleet().only_model();
            (
                only.ok_or_else(|| unusable("is missing, and there is not exactly one model"))?,
                None,
            )
        }
    };
    let preprocessor = &gateway.edge.preprocessor;
    let model = preprocessor.model_without_json(call, &named, "conversations")?;
    if let Some(place) = place.filter(|_| model != named) {
        call.target = with_model(&call.target, place, &model)?;
        guard.notes().record_model_rename(named, MODEL);
    }
    let queue = &gateway.generation.delivery.queue;
    queue.model(&model, wait).await
}

/// Returns the parameter `model` of a query, decoded, and the place of its value.
fn model_parameter(query: &str) -> Result<Option<(String, Range<usize>)>, ApiError> {
    let mut found = None;
    let mut start = 0;
    for parameter in query.split('&') {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        // As engines read it: `m%6fdel` is the same parameter.
        if percent_decoded(&key.replace('+', " ")).as_deref() == Some(MODEL) {
            let end = start + parameter.len();
            let name = percent_decoded(&value.replace('+', " "));
            let name = name.filter(|name| (1..=MAX_MODEL).contains(&name.len()));
            let name = name.ok_or_else(|| unusable("is not a text of 1 to 1024 bytes"))?;
            if found.replace((name, end - value.len()..end)).is_some() {
                let message = "the query has the parameter model twice: send it once";
                return Err(ApiError::new(ErrorCode::DuplicateKey, message).param(MODEL));
            }
        }
        start += parameter.len() + 1;
    }
    Ok(found)
}

/// Replaces the value of the parameter at `place` of the query.
fn with_model(
    target: &PathAndQuery,
    place: Range<usize>,
    model: &str,
) -> Result<PathAndQuery, ApiError> {
    let query = target.query().unwrap_or_default();
    let (before, after) = (query.get(..place.start), query.get(place.end..));
    let mut changed = format!("{}?{}", target.path(), before.unwrap_or_default());
    for byte in model.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            changed.push(char::from(byte));
        } else {
            changed.push_str(&format!("%{byte:02X}"));
        }
    }
    changed.push_str(after.unwrap_or_default());
    PathAndQuery::try_from(changed)
        .map_err(|_| unusable("has another name at the workers, which makes the query too long"))
}

fn unusable(found: &str) -> ApiError {
    let message = format!(
        "the parameter model of the query {found}: connect to /v1/realtime?model=NAME with a model that /v1/models \
         lists"
    );
    ApiError::new(ErrorCode::InvalidRequest, message).param(MODEL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(query: &str) -> Result<Option<String>, ErrorCode> {
        let found = model_parameter(query).map_err(|error| error.code)?;
        Ok(found.map(|(name, _)| name))
    }

    #[test]
    fn the_model_is_read_from_its_one_parameter() {
        for (query, model) in [
            ("model=m", Some("m")),
            ("intent=transcription&model=a%2Fb+c%2Bd", Some("a/b c+d")),
            ("model=m&", Some("m")),
            ("", None),
            ("xmodel=m&models=n&mod%6f=x", None),
            ("m%6Fdel=m", Some("m")),
        ] {
            assert_eq!(named(query), Ok(model.map(str::to_owned)), "{query}");
        }
        let too_long = format!("model={}", "a".repeat(MAX_MODEL + 1));
        for (query, code) in [
            ("model=", ErrorCode::InvalidRequest),
            ("models=m&model", ErrorCode::InvalidRequest),
            ("model=%zz", ErrorCode::InvalidRequest),
            ("model=%ff", ErrorCode::InvalidRequest),
            (&*too_long, ErrorCode::InvalidRequest),
            ("model=a&model=a", ErrorCode::DuplicateKey),
            ("model=a&m%6fdel=b", ErrorCode::DuplicateKey),
        ] {
            assert_eq!(named(query), Err(code), "{query}");
        }
    }

    #[test]
    fn another_name_of_the_model_replaces_only_the_value_of_its_parameter() {
        for (query, changed) in [
            ("model=m", "model=a%2Fb%20%C3%A4"),
            ("x=1&model=m%2Fn&y=%20", "x=1&model=a%2Fb%20%C3%A4&y=%20"),
        ] {
            let target = PathAndQuery::try_from(format!("/v1/realtime?{query}")).expect("a target");
            let (_, place) = model_parameter(query).expect("a model").expect("a model");
            let target = with_model(&target, place, "a/b \u{e4}").expect("a target");
            assert_eq!(target.as_str(), format!("/v1/realtime?{changed}"));
        }
    }
}
