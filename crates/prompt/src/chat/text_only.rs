//! Detects chats that contain only text.

use std::borrow::Cow;

use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::content::{MessageRules, text_key};

#[derive(Deserialize)]
struct RawMessage<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawPart<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    uuid: Option<IgnoredAny>,
}

/// Returns whether `messages` (JSON) have no content but text: the engine makes tokens of images
/// and sounds that no `/tokenize` and no template reports. `false` also for input that cannot be
/// parsed.
///
/// ```
/// assert!(prompt::text_only(r#"[{"role": "user", "content": [{"type": "text", "text": "hello"}]}]"#));
/// assert!(!prompt::text_only(r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]"#));
/// ```
pub fn text_only(messages: &str) -> bool {
    let messages = serde_json::from_str::<Vec<RawMessage<'_>>>(messages);
    messages.is_ok_and(|all| all.into_iter().filter_map(|one| one.content).all(is_text))
}

fn is_text(content: &RawValue) -> bool {
    if !content.get().starts_with('[') {
        return true;
    }
    serde_json::from_str::<Vec<&RawValue>>(content.get())
        .is_ok_and(|parts| parts.into_iter().all(part_is_text))
}

fn part_is_text(part: &RawValue) -> bool {
    if !part.get().starts_with('{') {
        return true;
    }
    serde_json::from_str::<RawPart<'_>>(part.get()).is_ok_and(|part| {
        part.uuid.is_none()
            && part
                .kind
                .is_some_and(|kind| text_key(&kind, MessageRules::Custom).is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_no_text_are_found_at_any_position() {
        let with = |content: &str| {
            text_only(&format!(
                r#"[{{"role":"user","content":"a"}},{{"content":{content}}}]"#
            ))
        };
        for text in [
            "\"image_url\"",
            "null",
            "{}",
            "[]",
            r#"["a"]"#,
            r#"[{"type":"text","text":"a"},{"type":"thinking"}]"#,
        ] {
            assert!(with(text), "{text}");
        }
        for other in [
            r#"[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}]"#,
            r#"[{"\u0074ype":"\u0069nput_audio","input_audio":{}}]"#,
            r#"[{"type":"text","text":"a","uuid":"u"}]"#,
            r#"[{"text":"a"}]"#,
        ] {
            assert!(!with(other), "{other}");
        }
        assert!(!text_only("{}") && !text_only("") && !text_only("[7]"));
    }
}
