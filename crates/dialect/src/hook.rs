//! The request to a hook before routing, and its answer.

use std::borrow::Cow;

use crate::json::{self, RawJson};

/// The decision of a hook about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookAnswer<'a> {
    /// The request continues unchanged.
    Allow,
    /// The request is rejected.
    Reject {
        /// The status for the client, if the hook names one of 400 to 499.
        status: Option<u16>,
        /// The message for the client.
        message: Option<Cow<'a, str>>,
    },
    /// The request continues with this body, which is an object.
    Transform(RawJson<'a>),
}

/// Returns the model that a body names at its top level. `None` if the body is not one JSON object,
/// or has no model.
///
/// ```
/// assert_eq!(dialect::named_model(br#"{"model": "m", "x": 1}"#).as_deref(), Some("m"));
/// assert_eq!(dialect::named_model(b"[1]"), None);
/// ```
pub fn named_model(body: &[u8]) -> Option<String> {
    let body = json::object(body)?;
    body.member("model")?.string().map(Cow::into_owned)
}

/// Builds the hook's request: one JSON object. `None` if `body` is not one JSON object; the hook is not
/// called for it.
///
/// ```
/// let payload = dialect::hook_question("r1", "/v1/completions", br#"{"model":"m"}"#).unwrap();
/// assert_eq!(payload, r#"{"request_id":"r1","route":"/v1/completions","model":"m","body":{"model":"m"}}"#);
/// ```
pub fn hook_question(request_id: &str, route: &str, body: &[u8]) -> Option<String> {
    let body = json::object(body)?;
    let model = body.member("model").and_then(RawJson::string);
    let mut payload = String::with_capacity(body.as_str().len() + 128);
    payload += r#"{"request_id":"#;
    json::write_string(&mut payload, request_id);
    payload += r#","route":"#;
    json::write_string(&mut payload, route);
    payload += r#","model":"#;
    match model {
        Some(model) => json::write_string(&mut payload, &model),
        None => payload += "null",
    }
    payload += r#","body":"#;
    payload += body.as_str();
    payload.push('}');
    Some(payload)
}

/// Reads a hook's reply. `None` if it is not one of the three answers.
///
/// ```
/// use dialect::{HookAnswer, hook_answer};
///
/// assert_eq!(hook_answer(br#"{"action":"allow"}"#), Some(HookAnswer::Allow));
/// assert_eq!(hook_answer(br#"{"action":"transform"}"#), None);
/// ```
pub fn hook_answer(reply: &[u8]) -> Option<HookAnswer<'_>> {
    let reply = json::object(reply)?;
    match &*reply.member("action")?.string()? {
        "allow" => Some(HookAnswer::Allow),
        "reject" => Some(HookAnswer::Reject {
            status: reply
                .member("status")
                .and_then(RawJson::integer)
                .and_then(|status| u16::try_from(status).ok())
                .filter(|status| (400..500).contains(status)),
            message: reply.member("message").and_then(RawJson::string),
        }),
        "transform" => reply
            .member("body")
            .filter(|body| body.as_str().starts_with('{'))
            .map(HookAnswer::Transform),
        _ => None,
    }
}
