//! Session recognition: by a name from the client, or because a request begins with all of an
//! earlier one.
//!
//! A name counts as a whole and leaves this module only as a hash, together with the model and the
//! salt: equal names of two models, or under two salts, are two sessions.

use std::sync::Arc;

use dialect::{PromptPart, RequestView};
use http::{HeaderMap, HeaderName, HeaderValue};
use routing::{PromptGrowth, SessionKeys, SessionMode};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Headers in which agent clients name a session, after the configured ones: Claude Code; Codex
/// CLI, now and before; opencode with its own gateway and with others; NVIDIA Dynamo.
const AGENT_HEADERS: [HeaderName; 6] = [
    HeaderName::from_static("x-claude-code-session-id"),
    HeaderName::from_static("session-id"),
    HeaderName::from_static("session_id"),
    HeaderName::from_static("x-opencode-session"),
    HeaderName::from_static("x-session-affinity"),
    HeaderName::from_static("x-dynamo-session-id"),
];

/// Returns the name: from the first of these headers, else from the body's fields (contract V25).
pub(super) fn name<'a>(
    configured: &[HeaderName],
    headers: &'a HeaderMap,
    view: &'a RequestView<'_>,
) -> Option<&'a [u8]> {
    let named = |name: &HeaderName| {
        headers
            .get(name)
            .map(HeaderValue::as_bytes)
            .filter(|value| !value.is_empty())
    };
    let header = configured.iter().chain(&AGENT_HEADERS).find_map(named);
    header.or_else(|| view.session.key().map(str::as_bytes))
}

/// Returns the keys by which the router may recognise the session; hashes only those that it uses.
pub(super) fn keys(
    mode: SessionMode,
    name: Option<&[u8]>,
    view: &RequestView<'_>,
) -> Option<Arc<SessionKeys>> {
    if mode == SessionMode::Off {
        return None;
    }
    let model = xxh3_64(view.model.as_bytes());
    let apart = view
        .cache_salt
        .as_ref()
        .map_or(model, |salt| xxh3_64_with_seed(salt.as_bytes(), model));
    // A name alone decides.
    let growth = if name.is_some() {
        None
    } else {
        growth(apart, &view.prompt)
    };
    let name = name.map(|name| xxh3_64_with_seed(name, apart));
    (name.is_some() || growth.is_some()).then(|| Arc::new(SessionKeys { name, growth }))
}

/// Separates equal hashes of different kinds of keys.
const CHAT: u64 = 1;
const TEXT: u64 = 2;
const IDS: u64 = 3;

fn growth(apart: u64, prompt: &PromptPart<'_>) -> Option<PromptGrowth> {
    let seed = |kind: u64| xxh3_64_with_seed(&kind.to_le_bytes(), apart);
    match prompt {
        PromptPart::Messages(messages) => {
            let messages: Vec<_> = messages
                .elements()?
                .map(|message| {
                    let role = message.member("role").and_then(dialect::RawJson::string);
                    (
                        dialect::steady_message(message),
                        role.as_deref() == Some("assistant"),
                    )
                })
                .collect();
            let turns = messages
                .iter()
                .map(|(message, is_reply)| (message.as_bytes(), *is_reply));
            PromptGrowth::of_turns(seed(CHAT), turns)
        }
        PromptPart::Text(text) => PromptGrowth::of_text(seed(TEXT), text.as_bytes()),
        PromptPart::TokenIds(ids) => {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            PromptGrowth::of_text(seed(IDS), &bytes)
        }
        PromptPart::Batch { .. } | PromptPart::None => None,
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use dialect::{Dialect, view};

    use super::*;

    fn of(mode: SessionMode, headers: &[(&'static str, &str)], body: &str) -> Option<SessionKeys> {
        let dialect = if body.contains("messages") {
            Dialect::Chat
        } else {
            Dialect::Completions
        };
        let view = view(dialect, body.as_bytes()).expect("a good body");
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap()))
            .collect();
        let configured = [HeaderName::from_static("x-session-id")];
        keys(mode, name(&configured, &headers, &view), &view).map(|keys| (*keys).clone())
    }

    fn hard(headers: &[(&'static str, &str)], body: &str) -> Option<u64> {
        of(SessionMode::Hard, headers, body).and_then(|keys| keys.name)
    }

    #[test]
    #[contract("V25")]
    fn session_headers_of_agent_clients_come_after_the_configured_ones() {
        let body = r#"{"model": "m", "prompt_cache_key": "k", "metadata": {"user_id": "u_session_1"}, "prompt": "x"}"#;
        let named = |headers: &[(&'static str, &str)]| hard(headers, body);
        let a = hard(&[("x-session-id", "a")], body);
        for agent in AGENT_HEADERS {
            let agent: &'static str = agent.as_str().to_owned().leak();
            assert_eq!(named(&[(agent, "a")]), a, "{agent}");
            assert_eq!(named(&[(agent, "b"), ("x-session-id", "a")]), a, "{agent}");
            assert_ne!(named(&[(agent, "b")]), named(&[]), "{agent}");
        }
        assert_eq!(named(&[]), hard(&[("x-session-id", "k")], body));
        let metadata_only = body.replace(r#""prompt_cache_key": "k", "#, "");
        assert_eq!(
            hard(&[], &metadata_only),
            hard(&[("x-session-id", "u_session_1")], body)
        );
    }

    #[test]
    #[contract("V25")]
    fn a_session_name_matches_only_as_a_whole_and_within_its_model_and_salt() {
        let body =
            |model: &str, salt: &str| format!(r#"{{"model": "{model}", {salt} "prompt": "x"}}"#);
        let key = |name, model, salt| hard(&[("x-session-id", name)], &body(model, salt));
        let own = key("session-1", "m", "");
        assert_eq!(own, key("session-1", "m", ""));
        for other in [
            key("session-12", "m", ""),
            key("session-1", "n", ""),
            key("session-1", "m", r#""cache_salt": "s","#),
            key("session-1", "m", r#""cache_salt": "","#),
        ] {
            assert_ne!(own, other);
        }
    }

    #[test]
    fn without_a_name_a_session_is_recognized_by_its_growth() {
        let chat = |more: &str| {
            format!(r#"{{"model": "m", "messages": [{{"role": "user", "content": "one"}}{more}]}}"#)
        };
        let more =
            r#", {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}"#;
        let growth = |body: &str| of(SessionMode::Soft, &[], body).and_then(|keys| keys.growth);
        let (first, second) = (growth(&chat("")).unwrap(), growth(&chat(more)).unwrap());
        assert!(second.extends(&first));
        assert!(
            !second.extends(&growth(&chat("").replace("\"m\"", "\"n\"")).unwrap()),
            "another model"
        );
        let text = "a".repeat(400);
        let prompt =
            |text: &str| growth(&format!(r#"{{"model": "m", "prompt": "{text}"}}"#)).unwrap();
        assert!(prompt(&format!("{text} and more")).extends(&prompt(&text)));
        let ids = |count: u32| {
            let ids: Vec<u32> = (0..count).collect();
            growth(&format!(r#"{{"model": "m", "prompt": {ids:?}}}"#)).unwrap()
        };
        assert!(ids(130).extends(&ids(100)));
    }

    #[test]
    fn growth_is_computed_only_without_a_name() {
        let body = r#"{"model": "m", "messages": [{"role": "user", "content": "one"}]}"#;
        let headers = [("x-session-id", "a")];
        assert_eq!(of(SessionMode::Off, &headers, body), None);
        assert_eq!(of(SessionMode::Hard, &headers, body).unwrap().growth, None);
        assert!(of(SessionMode::Hard, &[], body).unwrap().growth.is_some());
        assert_eq!(
            of(SessionMode::Hard, &[], r#"{"model": "m", "messages": []}"#),
            None
        );
    }
}
