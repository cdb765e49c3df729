//! The identity of a chat whose tokens are unknown: its text, in a form that a later turn continues.
//!
//! Identities are compared by their leading bytes, so they contain nothing that changes from turn
//! to turn, and no count or closing mark. They are not the text that the engine sees. Strings stay
//! as they stand between their quotes: most clients spell them alike, and a string is copied in one
//! piece.
//!
//! **Invariant**: the identity of the first n messages is a prefix of that of the first n + 1.

use crate::{ChatMessages, RawJson, Turn, json::compact::compact, json::decode};

/// Returns the identity of a chat: `tools`, then role, content and the rest of each message.
///
/// It does not depend on notation: insignificant spaces make no difference, nor does whether a
/// character is escaped that need not be.
///
/// ```
/// use dialect::{ChatMessages, Dialect, PromptPart, chat_identity, view};
///
/// let identity = |body: &str| match view(Dialect::Chat, body.as_bytes()).unwrap().prompt {
///     PromptPart::Messages(messages) => chat_identity(&messages, None),
///     _ => panic!("a chat"),
/// };
/// let first = identity(r#"{"model":"m","messages":[{"role":"user","content":"é"}]}"#);
/// let next = identity(r#"{"model":"m","messages":[{"role": "user", "content": "\u00e9"}, {}]}"#);
/// assert!(next.starts_with(&first));
/// ```
pub fn chat_identity(messages: &ChatMessages<'_>, tools: Option<RawJson<'_>>) -> Vec<u8> {
    let text = messages.as_str();
    let tools = tools.filter(|tools| {
        tools
            .elements()
            .is_none_or(|mut list| list.next().is_some())
    });
    let mut identity =
        Vec::with_capacity(text.len() + tools.map_or(0, |tools| tools.as_str().len() + 8));
    if let Some(tools) = tools {
        field(&mut identity, "tools", |out| compact(tools.as_str(), out));
    }
    if !messages.for_each_turn(|turn| message(&mut identity, turn)) {
        identity.extend_from_slice(text.as_bytes());
    }
    identity
}

fn message(identity: &mut Vec<u8>, turn: &Turn<'_>) {
    if !turn.raw.as_str().starts_with('{') {
        return field(identity, "", |out| compact(turn.raw.as_str(), out));
    }
    let spelling = if turn.has_odd_escapes {
        Spelling::Mixed
    } else {
        Spelling::Usual
    };
    let role = turn.role.filter(|role| is_string(*role));
    field(identity, "role", |out| {
        if let Some(role) = role {
            string(out, role, spelling);
        }
    });
    if let Some(content) = turn.content {
        contents(identity, content, spelling);
    }
    if turn.has_more {
        rest(identity, turn);
    }
}

fn contents(identity: &mut Vec<u8>, content: RawJson<'_>, spelling: Spelling) {
    let parts = match content.elements() {
        Some(parts) => parts,
        None if is_string(content) => {
            return field(identity, "content", |out| string(out, content, spelling));
        }
        None => return field(identity, "content", |out| compact(content.as_str(), out)),
    };
    for part in parts {
        match part.member("text").filter(|text| is_string(*text)) {
            // A single text part is equivalent to a plain text.
            Some(text) => field(identity, "content", |out| string(out, text, spelling)),
            None => field(identity, "part", |out| compact(part.as_str(), out)),
        }
    }
}

/// Appends the members beside role and content, in the order of their names.
fn rest(identity: &mut Vec<u8>, turn: &Turn<'_>) {
    let mut rest: Vec<_> = turn
        .raw
        .members()
        .into_iter()
        .flatten()
        .filter(|(key, value)| !matches!(&**key, "role" | "content") && !value.is_null())
        .collect();
    rest.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (key, value) in rest {
        field(identity, &key, |out| compact(value.as_str(), out));
    }
}

/// Appends a name and a value. The marks are bytes that never occur in UTF-8, so no other pair has
/// equal bytes, and the identities of two values have the same common prefix as the values.
fn field(identity: &mut Vec<u8>, name: &str, value: impl FnOnce(&mut Vec<u8>)) {
    identity.extend_from_slice(name.as_bytes());
    identity.push(0xFE);
    value(identity);
    identity.push(0xFF);
}

fn is_string(value: RawJson<'_>) -> bool {
    value.as_str().starts_with('"')
}

/// How the strings of a message are spelled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// With the escapes that nearly all clients write.
    Usual,
    /// Also with others.
    Mixed,
}

/// Appends a string without its quotes, in one spelling.
fn string(out: &mut Vec<u8>, value: RawJson<'_>, spelling: Spelling) {
    let quoted = value.as_str();
    match spelling {
        Spelling::Usual => out.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]),
        Spelling::Mixed => escaped(out, &decode(quoted)),
    }
}

/// Appends a text with the escapes that JSON requires.
fn escaped(out: &mut Vec<u8>, text: &str) {
    let mut escaped = String::with_capacity(text.len() + 2);
    crate::json::write_string(&mut escaped, text);
    out.extend_from_slice(&escaped.as_bytes()[1..escaped.len() - 1]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::json::whole;

    fn identity(messages: &str, tools: Option<&str>) -> Vec<u8> {
        let messages = ChatMessages::from(whole(messages).expect("json"));
        chat_identity(&messages, tools.map(|tools| whole(tools).expect("json")))
    }

    #[test]
    fn the_json_spelling_does_not_change_the_identity() {
        let plain = identity(r#"[{"role":"user","content":"é/\n\u0008"}]"#, None);
        for (messages, tools) in [
            (
                r#"[ {"content" : "\u00e9\/\n\b", "role": "user", "name": null} ]"#,
                Some("[]"),
            ),
            (
                r#"[{"role":"user","content":[{"type":"text","text":"é/\n\u0008"}]}]"#,
                None,
            ),
        ] {
            assert_eq!(plain, identity(messages, tools), "{messages}");
        }
        let tool = |text: &str| identity("[]", Some(text));
        assert_eq!(tool(r#"[{"a":1}]"#), tool(r#" [ { "a" : 1 } ] "#.trim()));
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
            (r#"[{"role":"user","content":"\n"}]"#, None),
            (r#"[{"role":"user","content":"\\n"}]"#, None),
            (r#"[{"role":"user","content":"\u005cn"}, 7]"#, None),
            (r#"[{"role":"user","content":7}]"#, None),
        ];
        let identities: std::collections::HashSet<_> = chats
            .iter()
            .map(|(chat, tools)| identity(chat, *tools))
            .collect();
        assert_eq!(identities.len(), chats.len());
    }

    #[test]
    fn messages_with_equal_beginnings_share_a_prefix() {
        let first = identity(
            r#"[{"role":"user","content":"the same document; one question"}]"#,
            None,
        );
        let second = identity(
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

    proptest! {
        #[test]
        fn a_turn_starts_with_the_turn_before(texts in prop::collection::vec((any::<bool>(), ".{0,20}"), 1..8), tools in any::<bool>()) {
            let tools = tools.then_some(r#"[{"type":"function","function":{"name":"f"}}]"#);
            let messages: Vec<_> = texts
                .iter()
                .map(|(user, text)| json!({"role": if *user { "user" } else { "assistant" }, "content": text}))
                .collect();
            let identity = |count: usize| identity(&Value::from(messages[..count].to_vec()).to_string(), tools);
            for count in 1..messages.len() {
                let (turn, next) = (identity(count), identity(count + 1));
                prop_assert!(next.starts_with(&turn) && next.len() > turn.len());
            }
        }
    }
}
