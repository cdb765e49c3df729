//! The text of an engine's refusal: whether its client may have it.
//!
//! Clients read in it what is wrong with their request, so it passes unchanged, unless it is of the
//! engine's server. What cannot be read here is not passed on either.

use dialect::{InternalDetail, KnownText};
use fleet::{SaltHandling, WorkerView};
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
    let why = reason(&head.headers, text, call.body.bytes(), &to.worker)?;
    let status = head.status.as_u16();
    tracing::debug!(worker = %to.worker.name, status, why, "the text of a worker's error is withheld");
    Some(why)
}

/// Returns why this text is withheld. `request`: the client's body.
fn reason(
    fields: &HeaderMap,
    text: &[u8],
    request: &[u8],
    worker: &WorkerView,
) -> Option<&'static str> {
    if text.is_empty() {
        return None;
    }
    if is_encoded(fields) {
        // A service, which refuses salts too, compresses all that it sends, and nothing of it is of
        // the operator's servers.
        let is_own = worker.salt_handling() != SaltHandling::Refuses;
        return is_own.then_some("an encoding");
    }
    if text.contains(&0) || std::str::from_utf8(text).is_err() {
        return Some("no text");
    }
    let served = worker.served.models.iter();
    // Replies and lists of models name them.
    let models: Vec<&str> = served.map(|model| &*model.id).collect();
    let known = KnownText {
        request,
        models: &models,
    };
    let host = worker.connection.host.to_str().unwrap_or_default();
    dialect::internal_detail(text, known, host).map(InternalDetail::as_str)
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
    use fleet::{EngineKind, ServedModel};
    use http::HeaderValue;

    use super::{super::test_support, *};

    fn encoded(encoding: &'static str) -> HeaderMap {
        let encoding = HeaderValue::from_static(encoding);
        HeaderMap::from_iter([(header::CONTENT_ENCODING, encoding)])
    }

    /// Why a text of worker 1 is withheld.
    fn reason_for(encoding: Option<&'static str>, text: &[u8]) -> Option<&'static str> {
        let fields = encoding.map(encoded).unwrap_or_default();
        reason(&fields, text, b"{}", &test_support::worker(1))
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
    fn a_compressed_text_of_a_service_passes() {
        let mut worker = test_support::worker(1);
        worker.engine.kind = EngineKind::Anthropic;
        let text = b"\x1f\x8b\x08";
        assert_eq!(reason(&encoded("gzip"), text, b"{}", &worker), None);
        let plain = HeaderMap::new();
        let why = reason(&plain, text, b"{}", &worker);
        assert_eq!(why, Some("no text"));
    }

    #[test]
    #[contract("S71")]
    fn a_text_with_a_detail_of_the_server_is_withheld() {
        for (text, why) in [
            ("at 0x7f3a5c001240", "a pointer"),
            ("Traceback (most recent call last):", "a stack trace"),
            ("in /usr/lib/engine", "a path"),
            ("127.0.0.1:9001 refused", "an address"),
        ] {
            assert_eq!(reason_for(None, text.as_bytes()), Some(why));
        }
    }

    #[test]
    #[contract("S71")]
    fn the_name_of_a_model_that_is_a_path_passes_and_paths_below_it_do_not() {
        let mut worker = test_support::worker(1);
        worker.served.models.push(ServedModel {
            id: "/mnt/models/m.gguf".into(),
            root: Some("/srv/m.gguf".into()),
            max_model_len: None,
            created: 0,
            owned_by: "vllm".into(),
        });
        let plain = HeaderMap::new();
        for (text, why) in [
            ("The model `/mnt/models/m.gguf` does not exist.", None),
            ("/mnt/models/m.gguf is not a multimodal model", None),
            ("no /mnt/models/m.gguf/config", Some("a path")),
            ("no /srv/m.gguf", Some("a path")),
        ] {
            let found = reason(&plain, text.as_bytes(), b"{}", &worker);
            assert_eq!(found, why, "{text}");
        }
    }
}
