//! `/v1/responses/{id}` and below: a stored response, at the worker that created it.
//!
//! Engines store responses in their own memory, so only that worker can answer. Its request is
//! forwarded as received, with its query, and its reply is relayed like any other: also a stream
//! that the client takes up again. Which of these routes exist, the engine decides.

use std::sync::Arc;

use dialect::{ApiError, ErrorCode};
use fleet::{ModelView, Snapshot};
use http::{Method, Response};
use kv_blocks::WorkerId;
use routing::Pin;

use super::{
    accept::AcceptedRequest, overrides::printable, path_id::percent_decoded, record::RequestGuard,
    reply::refused, reply_body::ReplyBody, tokenize_api::ForwardRules, translate::ApiSupport,
};
use crate::{Gateway, errors, response_affinity::ResponseHome};

/// Longest id, in bytes of the path.
const MAX_ID: usize = 256;
/// Characters of an id beside letters and digits. None of them can end the id in the worker's path.
const MARKS: &[u8] = b"-_.~:=+@";

/// Answers a request about a stored response; `rest`: the path below `/v1/responses/`.
pub(super) async fn stored_response(
    gateway: &Arc<Gateway>,
    call: AcceptedRequest,
    rest: String,
    mut guard: Box<RequestGuard>,
) -> Response<ReplyBody> {
    if call.method == Method::GET
        && asks_stream(call.target.query().unwrap_or_default())
        && let Err(error) = guard.begin_stream()
    {
        return refused(guard, &error);
    }
    let (model, worker) = match target(gateway, &call, &rest) {
        Ok(target) => target,
        Err(error) => return refused(guard, &error),
    };
    let rules = ForwardRules {
        api_support: ApiSupport::Openai,
        pin: Some(Pin { worker, rank: None }),
        // A second cancellation or deletion has another reply than the first.
        may_repeat: call.method == Method::GET,
    };
    let stages = &gateway.generation;
    stages.forward_by(call, model, rules, guard).await
}

/// Returns whether a query asks for the response as a stream. A word that engines may take for yes
/// is one.
fn asks_stream(query: &str) -> bool {
    query.split('&').any(|parameter| {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let is_no = ["false", "0", "no", "off", "f", "n"];
        percent_decoded(key).as_deref() == Some("stream")
            && !is_no.iter().any(|no| value.eq_ignore_ascii_case(no))
    })
}

/// Finds the worker of the response, and a model by which it can be sent a request.
fn target(
    gateway: &Gateway,
    call: &AcceptedRequest,
    rest: &str,
) -> Result<(Arc<ModelView>, WorkerId), ApiError> {
    let id = id_in_path(&call.method, rest)?;
    let responses = &gateway.generation.responses;
    let home = responses.find(call.response(&id), call.received);
    let home = home.ok_or_else(|| errors::response_not_remembered(&id, "response_id"))?;
    let model = model_of(&gateway.fleet().snapshot(), &id, &home)?;
    Ok((model, home.worker))
}

/// Returns the response's id, if there is such a route.
fn id_in_path(method: &Method, rest: &str) -> Result<String, ApiError> {
    let (id, below) = match rest.split_once('/') {
        Some((id, below)) => (id, Some(below)),
        None => (rest, None),
    };
    let exists = match below {
        None => method != Method::POST,
        Some("input_items") => method == Method::GET,
        Some("cancel") => method == Method::POST,
        Some(_) => false,
    };
    if !exists {
        return Err(ApiError::new(
            ErrorCode::UnknownRoute,
            format!(
                "no route {method} /v1/responses/{}: expected GET or DELETE of /v1/responses/ID, GET of \
                 /v1/responses/ID/input_items, or POST of /v1/responses/ID/cancel",
                printable(rest)
            ),
        ));
    }
    if id.len() > MAX_ID {
        return Err(unusable_id(format!("has {} bytes", id.len())));
    }
    percent_decoded(id)
        .filter(|id| has_only_known_characters(id))
        .ok_or_else(|| unusable_id(format!("is {:?}", printable(id))))
}

fn has_only_known_characters(id: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || MARKS.contains(&byte);
    !matches!(id, "" | "." | "..") && id.bytes().all(is_known)
}

fn unusable_id(found: String) -> ApiError {
    let message = format!(
        "the id of the response {found}: expected 1 to {MAX_ID} bytes, letters, digits and {}, as the reply that \
         created it has it",
        String::from_utf8_lossy(MARKS)
    );
    ApiError::new(ErrorCode::InvalidRequest, message).param("response_id")
}

/// Returns a model for which the response's worker gets requests.
fn model_of(
    snapshot: &Snapshot,
    id: &str,
    home: &ResponseHome,
) -> Result<Arc<ModelView>, ApiError> {
    let (id, name) = (printable(id), &home.name);
    let Some(worker) = snapshot.worker(home.worker) else {
        let message = format!(
            "the response {id:?} was stored by worker {name:?}, which this router no longer has: create it again"
        );
        return Err(ApiError::new(ErrorCode::ResponseNotFound, message).param("response_id"));
    };
    let models = &worker.served.models;
    let mut known = models.iter().filter_map(|model| snapshot.model(&model.id));
    let serves = |model: &&Arc<ModelView>| {
        let mut candidates = model.candidates.iter();
        candidates.any(|candidate| candidate.target.worker == home.worker)
    };
    known
        .find(serves)
        .filter(|_| worker.is_ready())
        .cloned()
        .ok_or_else(|| {
            let state = worker.health.state.as_str();
            let message = format!(
                "the response {id:?} is stored by worker {name:?}, which gets no requests now (it is {state}), and \
                 no other worker has it: try again"
            );
            ApiError::new(ErrorCode::NoWorker, message).with_retry_after(1)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(method: &Method, rest: &str) -> Result<String, ErrorCode> {
        id_in_path(method, rest).map_err(|error| error.code)
    }

    #[test]
    fn a_query_asks_for_a_stream_unless_it_says_that_it_does_not() {
        for (query, expected) in [
            ("", false),
            ("include=x", false),
            ("stream=false", false),
            ("stream=False&starting_after=1", false),
            ("stream=0", false),
            ("stream=true", true),
            ("starting_after=1&stream=1", true),
            ("str%65am=true", true),
            ("stream=tru%65", true),
            ("stream=false&stream=true", true),
        ] {
            assert_eq!(asks_stream(query), expected, "{query}");
        }
    }

    #[test]
    fn each_route_of_a_response_has_its_method() {
        let unknown = Err(ErrorCode::UnknownRoute);
        for (rest, get, post, delete) in [
            ("resp_1", true, false, true),
            ("resp_1/input_items", true, false, false),
            ("resp_1/cancel", false, true, false),
            ("resp_1/", false, false, false),
            ("resp_1/cancel/", false, false, false),
            ("resp_1/cancel/x", false, false, false),
        ] {
            let methods = [
                (Method::GET, get),
                (Method::POST, post),
                (Method::DELETE, delete),
            ];
            for (method, exists) in methods {
                let expected = if exists {
                    Ok("resp_1".to_owned())
                } else {
                    unknown.clone()
                };
                assert_eq!(id(&method, rest), expected, "{method} {rest}");
            }
        }
    }

    #[test]
    fn an_id_is_decoded_for_its_lookup_and_cannot_leave_its_place_in_the_path() {
        let get = |rest: &str| id(&Method::GET, rest);
        let longest = "a".repeat(MAX_ID);
        for (rest, expected) in [
            ("resp_0-a.b~c", "resp_0-a.b~c"),
            ("resp%5F1", "resp_1"),
            ("a%3Ab", "a:b"),
            (&*longest, &*longest),
        ] {
            assert_eq!(get(rest).as_deref(), Ok(expected), "{rest}");
        }
        let too_long = "a".repeat(MAX_ID + 1);
        for bad in [
            "", ".", "..", "%2E%2e", "a%2Fb", "a%5Cb", "a%3Fb", "a%23b", "a%00b", "a%0Ab", "a%25b",
            "a%zz", "a%", "a%C3%A4", "a;b", "a,b", &too_long,
        ] {
            assert_eq!(get(bad), Err(ErrorCode::InvalidRequest), "{bad}");
        }
    }
}
