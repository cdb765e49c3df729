//! The complete key of a request: two requests have the same one only if they ask for the same thing (contract A6).
//!
//! It covers every field that can change the output, also those that nobody here knows, and leaves out only fields that
//! are known not to. What is in it is told apart by lengths, so no two different requests can run into each other.
//!
//! **Invariant**: changing any field of a body that is not in the list below gives another key.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::json::{self, RawJson};

/// Fields of a body that never change what the model says.
const IGNORED: [&str; 6] = ["stream", "stream_options", "user", "metadata", "request_id", "rid"];

/// A request, as far as it can change the reply.
#[derive(Clone, Copy, Debug)]
pub struct KeyedRequest<'a> {
    /// Whose it is: nobody gets another's reply.
    pub tenant: &'a str,
    /// The path, which says the dialect too.
    pub route: &'a str,
    /// Headers that change the reply, in an order that is always the same.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// The body as it goes to the worker.
    pub body: &'a [u8],
}

/// The key: a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey([u8; 32]);

/// The key of a request; `None` if its body is not one JSON object.
///
/// ```
/// use dialect::{KeyedRequest, request_key};
///
/// let key = |body: &str| {
///     let request = KeyedRequest { tenant: "default", route: "/v1/completions", headers: &[], body: body.as_bytes() };
///     request_key(request).unwrap()
/// };
/// assert_eq!(key(r#"{"model":"m","seed":1}"#), key(r#"{ "seed" : 1, "model" : "m", "user": "me" }"#));
/// assert_ne!(key(r#"{"model":"m","seed":1}"#), key(r#"{"model":"m","seed":2}"#));
/// ```
pub fn request_key(request: KeyedRequest<'_>) -> Option<RequestKey> {
    let members = members(request.body)?;
    let mut digest = Sha256::new();
    // The form's own version: another form never meets an old key.
    field(&mut digest, b"warmroute.request/1");
    field(&mut digest, request.tenant.as_bytes());
    field(&mut digest, request.route.as_bytes());
    digest.update((request.headers.len() as u64).to_le_bytes());
    for (name, value) in request.headers {
        field(&mut digest, name.as_bytes());
        field(&mut digest, value);
    }
    let mut compact = Vec::new();
    for (name, value) in members.iter().filter(|(name, _)| !IGNORED.contains(&&**name)) {
        field(&mut digest, name.as_bytes());
        compact_into(value.as_str(), &mut compact);
        field(&mut digest, &compact);
    }
    Some(RequestKey(digest.finalize().into()))
}

/// How a request wants its reply, in few bytes: those with one key and one form get the same bytes.
pub fn reply_form(body: &[u8]) -> Option<RequestKey> {
    let mut digest = Sha256::new();
    let mut compact = Vec::new();
    for (name, value) in members(body)?.iter().filter(|(name, _)| matches!(&**name, "stream" | "stream_options")) {
        field(&mut digest, name.as_bytes());
        compact_into(value.as_str(), &mut compact);
        field(&mut digest, &compact);
    }
    Some(RequestKey(digest.finalize().into()))
}

/// Whether a request itself asks for a repeatable answer (contract B6): `temperature` 0, or a `seed`.
///
/// ```
/// assert!(dialect::asks_repeatable(br#"{"temperature": 0.0}"#));
/// assert!(dialect::asks_repeatable(br#"{"seed": 7, "temperature": 1}"#));
/// assert!(!dialect::asks_repeatable(br#"{"model": "m"}"#));
/// ```
pub fn asks_repeatable(body: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(body) else { return false };
    // Most bodies have neither, and are not walked for it.
    if !text.contains("\"temperature\"") && !text.contains("\"seed\"") {
        return false;
    }
    let Some(members) = members(body) else { return false };
    members.iter().any(|(name, value)| match &**name {
        "temperature" => value.as_str().parse::<f64>() == Ok(0.0),
        "seed" => value.as_str().parse::<i64>().is_ok(),
        _ => false,
    })
}

/// The members of the object, by name; those of one name stay in their order.
fn members(body: &[u8]) -> Option<Vec<(Cow<'_, str>, RawJson<'_>)>> {
    let text = std::str::from_utf8(body).ok()?;
    let mut members = Vec::new();
    for member in json::members(text) {
        let (key, value) = member.ok()?;
        members.push((json::decode(key), value));
    }
    members.sort_by(|(one, _), (other, _)| one.cmp(other));
    Some(members)
}

fn field(digest: &mut Sha256, bytes: &[u8]) {
    digest.update((bytes.len() as u64).to_le_bytes());
    digest.update(bytes);
}

/// A value without the space between its parts, which means nothing.
fn compact_into(value: &str, out: &mut Vec<u8>) {
    out.clear();
    let (mut inside, mut escaped) = (false, false);
    out.extend(value.bytes().filter(|byte| {
        if inside {
            (inside, escaped) = (escaped || *byte != b'"', !escaped && *byte == b'\\');
            return true;
        }
        inside = *byte == b'"';
        !byte.is_ascii_whitespace()
    }));
}
