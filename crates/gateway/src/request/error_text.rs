//! The text of an engine's refusal: whether its client may have it.
//!
//! Clients read in it what is wrong with their request, so it passes unchanged, unless it is of the
//! engine's server. What cannot be read here is not passed on either.

use dialect::InternalDetail;
use http::{HeaderMap, header, response::Parts};

use super::{accept::AcceptedRequest, dispatch::AttemptTarget};

/// Returns why the client does not get the text of this error; `None`: it does. Operators find it in
/// the log of the engine.
pub(super) fn withheld(
    head: &Parts,
    text: &[u8],
    call: &AcceptedRequest,
    to: &AttemptTarget,
) -> Option<&'static str> {
    let host = to.worker.connection.host.to_str().unwrap_or_default();
    let why = reason(&head.headers, text, call.body.bytes(), host)?;
    let status = head.status.as_u16();
    tracing::debug!(worker = %to.worker.name, status, why, "the text of a worker's error is withheld");
    Some(why)
}

/// Returns why this text is withheld. `request`: the client's body, `host`: that of the worker.
fn reason(fields: &HeaderMap, text: &[u8], request: &[u8], host: &str) -> Option<&'static str> {
    if text.is_empty() {
        return None;
    }
    if is_encoded(fields) {
        return Some("an encoding");
    }
    if text.contains(&0) || std::str::from_utf8(text).is_err() {
        return Some("no text");
    }
    dialect::internal_detail(text, request, host).map(InternalDetail::as_str)
}

fn is_encoded(fields: &HeaderMap) -> bool {
    let encodings = fields.get_all(header::CONTENT_ENCODING).iter();
    encodings
        .map(|value| value.as_bytes().trim_ascii())
        .any(|value| !value.is_empty() && !value.eq_ignore_ascii_case(b"identity"))
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use http::HeaderValue;

    use super::*;

    fn reason_for(encoding: Option<&'static str>, text: &[u8]) -> Option<&'static str> {
        let mut fields = HeaderMap::new();
        if let Some(encoding) = encoding {
            let encoding = HeaderValue::from_static(encoding);
            fields.insert(header::CONTENT_ENCODING, encoding);
        }
        reason(&fields, text, b"{}", "engine:8000")
    }

    #[test]
    #[contract("S71")]
    fn a_text_that_cannot_be_read_is_withheld() {
        let text = br#"{"message":"no such model"}"#;
        for plain in [None, Some("identity"), Some(" Identity "), Some("")] {
            assert_eq!(reason_for(plain, text), None, "{plain:?}");
        }
        for encoded in ["gzip", "br", "identity, gzip", "x"] {
            assert_eq!(reason_for(Some(encoded), text), Some("an encoding"));
            assert_eq!(reason_for(Some(encoded), b""), None, "there is no text");
        }
        for binary in [&b"\xff\xfe\x30"[..], b"0\0x\0", b"\x1f\x8b\x08"] {
            assert_eq!(reason_for(None, binary), Some("no text"), "{binary:?}");
        }
    }

    #[test]
    #[contract("S71")]
    fn a_text_with_a_detail_of_the_server_is_withheld() {
        for (text, why) in [
            ("at 0x7f3a5c001240", "a pointer"),
            ("Traceback (most recent call last):", "a stack trace"),
            ("in /usr/lib/engine", "a path"),
            ("engine:8000 refused", "an address"),
        ] {
            assert_eq!(reason_for(None, text.as_bytes()), Some(why));
        }
    }
}
