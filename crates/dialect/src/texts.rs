//! Extracts two texts of a request: the beginning of its prompt, and the last user message.

use std::borrow::Cow;

use crate::{
    PromptPart, RawJson, RequestView, prefix_key::content_text, volatile_prefix::steady_text,
};

/// Returns the first `max_chars` characters of the prompt: of its text, or of the texts of its
/// messages with their roles, without the line that agent clients change with every request. `None`
/// if there is no text.
///
/// ```
/// use dialect::{Dialect, opening, view};
///
/// let body = br#"{"model": "m", "prompt": "once upon a time"}"#;
/// assert_eq!(opening(&view(Dialect::Completions, body).unwrap(), 4).as_deref(), Some("once"));
/// ```
pub fn opening(view: &RequestView<'_>, max_chars: usize) -> Option<String> {
    let mut text = String::new();
    match &view.prompt {
        PromptPart::Text(prompt) => text.extend(prompt.chars().take(max_chars)),
        PromptPart::Messages(messages) => {
            let mut left = max_chars;
            for message in messages.elements()? {
                let role = message.member("role").and_then(RawJson::string);
                let content = message
                    .member("content")
                    .and_then(content_text)
                    .map(steady_text);
                for part in [role, content].into_iter().flatten() {
                    let before = text.len();
                    text.extend(part.chars().chain(['\n']).take(left));
                    left -= text[before..].chars().count();
                }
                if left == 0 {
                    break;
                }
            }
        }
        PromptPart::TokenIds(_)
        | PromptPart::TokenIdsWithMedia { .. }
        | PromptPart::Batch { .. }
        | PromptPart::None => {}
    }
    (!text.is_empty()).then_some(text)
}

/// Returns the last user message, or the prompt outside a chat; at most `max_chars` characters of
/// it. `None` if there is no such text.
///
/// ```
/// use dialect::{Dialect, last_said, view};
///
/// let body = br#"{"model": "m", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
/// assert_eq!(last_said(&view(Dialect::Chat, body).unwrap(), 10).as_deref(), Some("a"));
/// ```
pub fn last_said(view: &RequestView<'_>, max_chars: usize) -> Option<String> {
    let text = match &view.prompt {
        PromptPart::Text(text) => text.clone(),
        PromptPart::Messages(messages) => {
            let of_user = |message: &RawJson<'_>| {
                message.member("role").and_then(RawJson::string).as_deref() == Some("user")
            };
            messages
                .elements()?
                .filter(of_user)
                .last()?
                .member("content")
                .and_then(content_text)?
        }
        PromptPart::TokenIds(_)
        | PromptPart::TokenIdsWithMedia { .. }
        | PromptPart::Batch { .. }
        | PromptPart::None => return None,
    };
    let cut = text
        .char_indices()
        .nth(max_chars)
        .map_or(text.len(), |(at, _)| at);
    let text = match text {
        Cow::Borrowed(text) => text[..cut].to_owned(),
        Cow::Owned(mut text) => {
            text.truncate(cut);
            text
        }
    };
    (!text.trim().is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dialect, view};

    fn chat(messages: &str) -> String {
        format!(r#"{{"model": "m", "messages": {messages}}}"#)
    }

    #[test]
    fn the_beginning_of_a_prompt_is_its_first_characters_whatever_follows() {
        let opening = |body: &str, most| {
            opening(&view(Dialect::Chat, body.as_bytes()).expect("a body"), most)
        };
        let body = chat(
            r#"[{"role": "system", "content": "äöü"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]"#,
        );
        assert_eq!(
            opening(&body, 256).as_deref(),
            Some("system\näöü\nuser\nhi\n")
        );
        assert_eq!(opening(&body, 9).as_deref(), Some("system\näö"));
        assert_eq!(opening(&chat("[]"), 9), None);
        assert_eq!(opening(&chat("5"), 9), None);
    }

    #[test]
    fn the_last_question_is_the_last_user_message() {
        let last_text = |body: &str, most| {
            last_said(&view(Dialect::Chat, body.as_bytes()).expect("a body"), most)
        };
        let body = chat(
            r#"[{"role": "user", "content": "first"}, {"role": "user", "content": [{"type": "text", "text": "äöü"}]},
                {"role": "assistant", "content": "no"}]"#,
        );
        assert_eq!(last_text(&body, 100).as_deref(), Some("äöü"));
        assert_eq!(last_text(&body, 2).as_deref(), Some("äö"));
        assert_eq!(
            last_text(&chat(r#"[{"role": "system", "content": "a"}]"#), 10),
            None
        );
        assert_eq!(
            last_text(&chat(r#"[{"role": "user", "content": " "}]"#), 10),
            None
        );
    }
}
