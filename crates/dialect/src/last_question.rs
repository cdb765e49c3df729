//! Separates the last question of a request from the rest of it.
//!
//! Two requests with the same rest differ only in their last question. This module extracts both;
//! it does not compare meanings.

use std::borrow::Cow;

use crate::{
    Dialect, Edit, RepeatabilityView, RequestKey,
    json::{self, RawJson},
    prefix_key::content_text,
    splice,
};

/// Maximum length of a question in characters: a part of a longer one would have to represent the
/// whole.
const MOST_CHARS: usize = 8_000;

/// Fields that make a reply repeat parts of its prompt.
const REPEATS: [&str; 4] = [
    "echo",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
];

/// A request in two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastQuestion {
    /// The text of the last user message.
    pub text: String,
    /// The digest of everything else, as a [`crate::RequestKey`].
    pub rest: RequestKey,
}

/// Returns the last question of a request; `None` if the last message is not a user's, or is not
/// text alone.
///
/// ```
/// use dialect::{Dialect, last_question};
///
/// let of = |body: &str| last_question(Dialect::Chat, body.as_bytes(), "default", "/v1/chat/completions", &[]).unwrap();
/// let (a, b) = (
///     of(r#"{"model": "m", "messages": [{"role": "user", "content": "How tall is K2?"}]}"#),
///     of(r#"{"model": "m", "messages": [{"role": "user", "content": "What is K2's height?"}]}"#),
/// );
/// assert_eq!(a.text, "How tall is K2?");
/// assert_eq!(a.rest, b.rest);
/// ```
pub fn last_question(
    dialect: Dialect,
    body: &[u8],
    tenant: &str,
    route: &str,
    headers: &[(&str, &[u8])],
) -> Option<LastQuestion> {
    let whole = json::object(body)?;
    // A reply that repeats the prompt cannot answer another one.
    if REPEATS.iter().any(|field| {
        whole
            .member(field)
            .is_some_and(|value| !matches!(value.as_str(), "false" | "null"))
    }) {
        return None;
    }
    let (text, field, without) = match dialect {
        Dialect::Chat | Dialect::Messages => {
            let (text, others) = of_messages(whole.member("messages")?)?;
            (text, "messages", others)
        }
        Dialect::Completions => (
            whole.member("prompt")?.string()?,
            "prompt",
            "null".to_owned(),
        ),
        Dialect::Responses
        | Dialect::Embeddings
        | Dialect::Rerank
        | Dialect::Score
        | Dialect::ChatBatch
        | Dialect::TokenIds
        | Dialect::SglangGenerate => return None,
    };
    if text.trim().is_empty() || text.chars().nth(MOST_CHARS).is_some() {
        return None;
    }
    let rest = splice(body, &[Edit::Set(field, &without)]).ok()?;
    let rest =
        RepeatabilityView::read(&rest)?.key(tenant, &format!("last_question:{route}"), headers);
    Some(LastQuestion {
        text: text.into_owned(),
        rest,
    })
}

/// Returns the last message's text, and all messages without it.
fn of_messages<'a>(messages: RawJson<'a>) -> Option<(Cow<'a, str>, String)> {
    let all: Vec<RawJson<'_>> = messages.elements()?.collect();
    let (last, before) = all.split_last()?;
    if last.member("role").and_then(RawJson::string).as_deref() != Some("user") {
        return None;
    }
    let content = last.member("content")?;
    // An image beside the text is part of the question, but not of its text.
    let is_text = |part: RawJson<'_>| {
        part.member("type").and_then(RawJson::string).as_deref() == Some("text")
            && part.member("text").and_then(RawJson::string).is_some()
            // Any other member is part of the request too.
            && part.members().is_some_and(|members| members.count() == 2)
    };
    let only_text = content.string().is_some() || content.elements()?.all(is_text);
    let text = content_text(content).filter(|_| only_text)?;
    let mut others = String::from("[");
    for message in before {
        others.push_str(message.as_str());
        others.push(',');
    }
    others.push('{');
    for (name, value) in last.members()?.filter(|(name, _)| name != "content") {
        json::write_string(&mut others, &name);
        others.push(':');
        others.push_str(value.as_str());
        others.push(',');
    }
    others.push_str("\"content\":null}]");
    Some((text, others))
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn of(tenant: &str, body: &str) -> Option<LastQuestion> {
        last_question(
            Dialect::Chat,
            body.as_bytes(),
            tenant,
            "/v1/chat/completions",
            &[],
        )
    }

    fn body_with(content: &str, other: &str) -> String {
        format!(
            r#"{{"model": "m", "temperature": 0{other}, "messages": [{{"role": "system", "content": "be brief"}}, {{"role": "user", "content": {content}}}]}}"#
        )
    }

    #[test]
    #[contract("V44")]
    fn the_rest_excludes_only_the_text_of_the_last_question() {
        let usual = of("a", &body_with(r#""why?""#, "")).expect("a question");
        assert_eq!(usual.text, "why?");
        let same = of(
            "a",
            &body_with(
                r#"[{"type": "text", "text": "how come?"}]"#,
                ", \"stream\": true",
            ),
        )
        .expect("another");
        assert_eq!((same.text.as_str(), same.rest), ("how come?", usual.rest));
        for other in [
            of("b", &body_with(r#""why?""#, "")),
            of("a", &body_with(r#""why?""#, ", \"max_tokens\": 5")),
        ] {
            assert_ne!(other.expect("a question").rest, usual.rest);
        }
        let before = body_with(r#""why?""#, "").replace("be brief", "be long");
        assert_ne!(of("a", &before).expect("a question").rest, usual.rest);
        let named = body_with(r#""why?""#, "")
            .replace(r#""role": "user""#, r#""role": "user", "name": "Ann""#);
        assert_ne!(of("a", &named).expect("a question").rest, usual.rest);
    }

    #[test]
    #[contract("V44")]
    fn only_a_plain_text_user_message_is_a_question() {
        let image = r#"[{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": "x"}}]"#;
        for body in [
            body_with(image, ""),
            body_with(r#""  ""#, ""),
            body_with("null", ""),
            body_with(&format!("\"{}\"", "x".repeat(MOST_CHARS + 1)), ""),
            body_with(r#""why?""#, "").replace(r#""user""#, r#""tool""#),
            body_with(
                r#"[{"type": "text", "text": "why?", "cache_control": {}}]"#,
                "",
            ),
            body_with(r#""why?""#, ", \"echo\": true"),
            body_with(r#""why?""#, ", \"prompt_logprobs\": 0"),
            r#"{"model": "m", "messages": []}"#.to_owned(),
            r#"{"model": "m"}"#.to_owned(),
            "[".to_owned(),
        ] {
            assert_eq!(of("a", &body), None, "{body}");
        }
    }
}
