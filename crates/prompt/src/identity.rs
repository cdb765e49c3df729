//! The identity of a prompt without known tokens: its text, in a form that a later turn continues.
//!
//! Identities are compared by their leading bytes, so they contain nothing that changes from turn
//! to turn, and no count or closing mark. They are not the text that the engine sees.
//!
//! **Invariant**: the identity of the first n messages is a prefix of that of the first n + 1.

use serde_json::Value;

/// Average bytes of a token in current vocabularies.
const BYTES_PER_TOKEN: usize = 4;

/// Returns the identity of a chat: `tools` (JSON), then role, content and the rest of each message
/// of `messages` (JSON).
///
/// It does not depend on notation: insignificant spaces and escapes in strings make no difference.
/// Text that this crate cannot parse is used unchanged.
pub fn chat_identity(messages: &str, tools: Option<&str>) -> Vec<u8> {
    let mut identity = Vec::with_capacity(messages.len());
    if let Some(tools) = tools {
        match serde_json::from_str::<Value>(tools) {
            Ok(Value::Array(list)) if list.is_empty() => {}
            Ok(Value::Null) => {}
            Ok(tools) => field(&mut identity, b"tools", tools.to_string().as_bytes()),
            Err(_) => field(&mut identity, b"tools", tools.as_bytes()),
        }
    }
    match serde_json::from_str::<Vec<Value>>(messages) {
        Ok(messages) => messages.iter().for_each(|one| message(&mut identity, one)),
        // Without its closing bracket a list is the start of any longer one.
        Err(_) => identity.extend_from_slice(
            messages
                .trim_end()
                .trim_end_matches(']')
                .trim_end()
                .as_bytes(),
        ),
    }
    identity
}

/// Returns the identity of a plain prompt: its bytes.
pub fn text_identity(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

/// Returns the approximate number of tokens of a text with this many bytes.
pub fn estimate_tokens(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX)
}

fn message(identity: &mut Vec<u8>, message: &Value) {
    let Some(members) = message.as_object() else {
        return field(identity, b"", message.to_string().as_bytes());
    };
    field(
        identity,
        b"role",
        members
            .get("role")
            .and_then(Value::as_str)
            .unwrap_or("")
            .as_bytes(),
    );
    match members.get("content") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => field(identity, b"content", text.as_bytes()),
        Some(Value::Array(parts)) => {
            parts
                .iter()
                .for_each(|part| match part.get("text").and_then(Value::as_str) {
                    // A single text part is equivalent to a plain text.
                    Some(text) => field(identity, b"content", text.as_bytes()),
                    None => field(identity, b"part", part.to_string().as_bytes()),
                })
        }
        Some(other) => field(identity, b"content", other.to_string().as_bytes()),
    }
    let mut rest: Vec<_> = members
        .iter()
        .filter(|(key, value)| !matches!(&***key, "role" | "content") && !value.is_null())
        .collect();
    rest.sort_unstable_by_key(|(key, _)| *key);
    for (key, value) in rest {
        field(identity, key.as_bytes(), value.to_string().as_bytes());
    }
}

/// Appends a name and a value. The marks are bytes that never occur in UTF-8, so no other pair has
/// equal bytes, and the identities of two values have the same common prefix as the values.
fn field(identity: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    identity.extend_from_slice(name);
    identity.push(0xFE);
    identity.extend_from_slice(value);
    identity.push(0xFF);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_json_spelling_does_not_change_the_identity() {
        let plain = chat_identity(r#"[{"role":"user","content":"é"}]"#, None);
        assert_eq!(
            plain,
            chat_identity(
                "[ {\"content\" : \"\\u00e9\", \"role\": \"user\", \"name\": null} ]",
                Some("[]")
            )
        );
        assert_eq!(
            plain,
            chat_identity(
                r#"[{"role":"user","content":[{"type":"text","text":"é"}]}]"#,
                Some("null")
            )
        );
    }

    #[test]
    fn requests_that_differ_for_the_engine_have_different_identities() {
        let chats = [
            (r#"[{"role":"user","content":"ab"}]"#, None),
            (
                r#"[{"role":"user","content":"a"},{"role":"user","content":"b"}]"#,
                None,
            ),
            (r#"[{"role":"system","content":"ab"}]"#, None),
            (
                r#"[{"role":"user","content":"ab"}]"#,
                Some(r#"[{"type":"function"}]"#),
            ),
            (
                r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"ab"}}]}]"#,
                None,
            ),
            (r#"[{"role":"user","tool_calls":[{"id":"ab"}]}]"#, None),
        ];
        let identities: std::collections::HashSet<_> = chats
            .iter()
            .map(|(chat, tools)| chat_identity(chat, *tools))
            .collect();
        assert_eq!(identities.len(), chats.len());
    }

    #[test]
    fn messages_with_equal_beginnings_share_a_prefix() {
        let first = chat_identity(
            r#"[{"role":"user","content":"the same document; one question"}]"#,
            None,
        );
        let second = chat_identity(
            r#"[{"role":"user","content":"the same document; another, longer question"}]"#,
            None,
        );
        let shared = first
            .iter()
            .zip(&second)
            .take_while(|(a, b)| a == b)
            .count();
        assert!(shared > "the same document; ".len());
    }

    #[test]
    fn a_token_is_estimated_as_four_bytes() {
        assert_eq!(
            (
                estimate_tokens(0),
                estimate_tokens(1),
                estimate_tokens(8),
                estimate_tokens(9)
            ),
            (0, 1, 2, 3)
        );
    }

    #[test]
    fn unparsable_messages_still_extend_their_prefix() {
        let first = chat_identity(r#"[{"role":"user","content":"\ud800"}]"#, None);
        let second = chat_identity(
            r#"[{"role":"user","content":"\ud800"} ,{"role":"user","content":"b"}]"#,
            None,
        );
        assert!(second.starts_with(&first) && !first.is_empty());
    }

    proptest! {
        #[test]
        fn a_turn_starts_with_the_turn_before(texts in prop::collection::vec((any::<bool>(), ".{0,20}"), 1..8), tools in any::<bool>()) {
            let tools = tools.then_some(r#"[{"type":"function","function":{"name":"f"}}]"#);
            let messages: Vec<_> = texts
                .iter()
                .map(|(user, text)| json!({"role": if *user { "user" } else { "assistant" }, "content": text}))
                .collect();
            let identity = |count: usize| chat_identity(&Value::from(messages[..count].to_vec()).to_string(), tools);
            for count in 1..messages.len() {
                let (turn, next) = (identity(count), identity(count + 1));
                prop_assert!(next.starts_with(&turn) && next.len() > turn.len());
            }
        }

        #[test]
        fn no_text_panics(messages in ".{0,60}", tools in prop::option::of(".{0,20}")) {
            let _ = chat_identity(&messages, tools.as_deref());
        }
    }
}
