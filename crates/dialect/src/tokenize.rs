//! The bodies of `/tokenize` and `/detokenize`.
//!
//! Unlike generations, the router answers these itself where it can, so it rejects what an engine
//! would reject. Engines read them leniently (`"no"` is a flag, `"7"` a number) and ignore unknown
//! fields.

use std::borrow::Cow;

use crate::{
    json::{self, BodyMembers, RawJson},
    view::{PromptPart, Rendering, ViewError},
};

/// The body of `/tokenize`.
#[derive(Clone, Debug)]
pub struct TokenizeView<'a> {
    /// The requested model, if there is one.
    pub model: Option<Cow<'a, str>>,
    /// [`PromptPart::Messages`] or [`PromptPart::Text`].
    pub prompt: PromptPart<'a>,
    /// Fields that change how the prompt becomes tokens. Fields that exist only in generations are
    /// `None`.
    pub rendering: Rendering<'a>,
    /// Whether the client also wants the tokens as strings of the vocabulary.
    pub return_token_strs: bool,
}

/// The body of `/detokenize`.
#[derive(Clone, Debug)]
pub struct DetokenizeView<'a> {
    /// The requested model, if there is one.
    pub model: Option<Cow<'a, str>>,
    /// Token ids.
    pub tokens: Vec<u32>,
}

/// Reads the body of `/tokenize`.
///
/// ```
/// use dialect::{PromptPart, tokenize_view};
///
/// let view = tokenize_view(br#"{"prompt": "hello", "add_special_tokens": false}"#).unwrap();
/// assert_eq!(view.prompt, PromptPart::Text("hello".into()));
/// assert_eq!(view.rendering.add_special_tokens, Some(false));
/// ```
pub fn tokenize_view(body: &[u8]) -> Result<TokenizeView<'_>, ViewError> {
    const KEYS: [&str; 10] = [
        "model",
        "prompt",
        "messages",
        "add_special_tokens",
        "return_token_strs",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "chat_template_kwargs",
        "tools",
    ];
    let [
        model,
        prompt,
        messages,
        special,
        token_strs,
        generation_prompt,
        continued,
        chat_template,
        chat_template_kwargs,
        tools,
    ] = fields(body, KEYS)?;
    let prompt = prompt_of(prompt, messages)?;
    let add_special_tokens = flag(special, "add_special_tokens")?;
    let return_token_strs = flag(
        token_strs.filter(|value| !value.is_null()),
        "return_token_strs",
    )?
    .unwrap_or(false);
    let mut rendering = Rendering {
        add_special_tokens,
        ..Rendering::default()
    };
    // A text has no template whose fields could be wrong.
    if matches!(prompt, PromptPart::Messages(_)) {
        rendering.add_generation_prompt = flag(generation_prompt, "add_generation_prompt")?;
        rendering.continue_final_message = flag(continued, "continue_final_message")?;
        let is_set = |value: &RawJson<'_>| !value.is_null();
        rendering.chat_template = chat_template.filter(is_set);
        rendering.chat_template_kwargs = chat_template_kwargs.filter(is_set);
        rendering.tools = tools.filter(is_set);
    }
    Ok(TokenizeView {
        model: name(model)?,
        prompt,
        rendering,
        return_token_strs,
    })
}

/// Returns the prompt: the messages if they are a chat, else the text.
fn prompt_of<'a>(
    prompt: Option<RawJson<'a>>,
    messages: Option<RawJson<'a>>,
) -> Result<PromptPart<'a>, ViewError> {
    // A body with both fields is a chat if its messages are valid, as engines read it.
    let chat = messages.filter(|messages| {
        messages
            .elements()
            .is_some_and(|mut all| all.next().is_some())
    });
    let text = prompt.and_then(RawJson::string);
    if let (Some(raw), Some(text)) = (prompt, &text)
        && half_a_pair(raw.as_str(), text)
    {
        return Err(bad(
            "prompt",
            "whole characters; it has half of a surrogate pair",
        ));
    }
    Ok(match (chat, text, messages, prompt) {
        (Some(messages), ..) => PromptPart::Messages(messages.into()),
        (None, Some(text), ..) => PromptPart::Text(text),
        (None, None, Some(_), _) => return Err(bad("messages", "a list of at least one message")),
        (None, None, None, Some(_)) => {
            return Err(bad("prompt", "a string; token ids go to /detokenize"));
        }
        (None, None, None, None) => {
            return Err(bad(
                "prompt",
                "a string, or a list in messages in its place",
            ));
        }
    })
}

/// Reads the body of `/detokenize`.
pub fn detokenize_view(body: &[u8]) -> Result<DetokenizeView<'_>, ViewError> {
    let [model, tokens] = fields(body, ["model", "tokens"])?;
    let id = |value: RawJson<'_>| match value.as_str() {
        "true" => Some(1),
        "false" => Some(0),
        _ => value.integer().and_then(|id| u32::try_from(id).ok()),
    };
    let ids = tokens
        .and_then(RawJson::elements)
        .and_then(|all| all.map(id).collect::<Option<Vec<_>>>());
    let tokens =
        ids.ok_or_else(|| bad("tokens", "a list of token ids, whole numbers from 0 on"))?;
    Ok(DetokenizeView {
        model: name(model)?,
        tokens,
    })
}

/// Returns whether a string has half of a surrogate pair: it reads as U+FFFD, which then occurs
/// more often than it was written.
fn half_a_pair(raw: &str, text: &str) -> bool {
    const STAND_IN: char = '\u{fffd}';
    if !text.contains(STAND_IN) {
        return false;
    }
    let written =
        raw.matches(STAND_IN).count() + raw.to_ascii_lowercase().matches("\\ufffd").count();
    text.matches(STAND_IN).count() > written
}

/// Returns the values of `keys`, in their order; other keys are skipped.
pub(crate) fn fields<'a, const N: usize>(
    body: &'a [u8],
    keys: [&'static str; N],
) -> Result<[Option<RawJson<'a>>; N], ViewError> {
    fields_and_members(body, keys).map(|(found, _)| found)
}

/// Returns the values of `keys`, in their order, and all members.
pub(crate) fn fields_and_members<'a, const N: usize>(
    body: &'a [u8],
    keys: [&'static str; N],
) -> Result<([Option<RawJson<'a>>; N], BodyMembers<'a>), ViewError> {
    let text = json::utf8(body).map_err(|at| ViewError::Utf8 { at })?;
    if !text
        .trim_start_matches([' ', '\n', '\r', '\t'])
        .starts_with('{')
    {
        json::whole(text)?;
        return Err(ViewError::NotAnObject);
    }
    let mut found = [None; N];
    let mut twice = None;
    let mut members = BodyMembers::of(text);
    for member in json::body_members(text, None) {
        let member = member?;
        members.add(member);
        let key = json::decode(member.key);
        let Some(at) = keys.iter().position(|known| *known == key) else {
            continue;
        };
        if found[at].replace(member.value).is_some() {
            twice = twice.or(Some(keys[at]));
        }
    }
    // Reported after the walk: a body that is not JSON at all reports that error first.
    match twice {
        Some(key) => Err(ViewError::DuplicateKey { key }),
        None => Ok((found, members)),
    }
}

fn flag(value: Option<RawJson<'_>>, field: &'static str) -> Result<Option<bool>, ViewError> {
    value
        .map(|value| value.flag().ok_or_else(|| bad(field, "true or false")))
        .transpose()
}

/// Returns the requested model; an empty name counts as absent, as engines read it.
fn name(value: Option<RawJson<'_>>) -> Result<Option<Cow<'_, str>>, ViewError> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let name = value.string().ok_or(ViewError::Model {
        found: "not a string",
    })?;
    Ok(Some(name).filter(|name| !name.is_empty()))
}

fn bad(field: &'static str, expected: &'static str) -> ViewError {
    ViewError::Field { field, expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_take_precedence_over_a_prompt_unless_empty() {
        let prompt = |body: &'static str| tokenize_view(body.as_bytes()).unwrap().prompt;
        assert!(matches!(
            prompt(r#"{"prompt":"a","messages":[{}]}"#),
            PromptPart::Messages(_)
        ));
        assert_eq!(
            prompt(r#"{"prompt":"a","messages":[]}"#),
            PromptPart::Text("a".into())
        );
        assert_eq!(
            prompt(r#"{"prompt":"","messages":null}"#),
            PromptPart::Text("".into())
        );
        assert_eq!(
            prompt(r#"{"prompt":"\ud83d\ude00 \uFFFD"}"#),
            PromptPart::Text("😀 \u{fffd}".into())
        );
    }

    #[test]
    fn the_error_of_an_invalid_body_names_the_field_and_the_expected_form() {
        let error_of = |body: &str| tokenize_view(body.as_bytes()).unwrap_err().to_string();
        for (body, field) in [
            (r#"{"messages":[]}"#, "messages"),
            (r#"{"prompt":["a"]}"#, "prompt"),
            (r#"{"prompt":"a \ud800"}"#, "prompt"),
            ("{}", "prompt"),
            (
                r#"{"prompt":"a","add_special_tokens":null}"#,
                "add_special_tokens",
            ),
            (r#"{"prompt":"a","model":7}"#, "model"),
        ] {
            let message = error_of(body);
            assert!(
                message.starts_with(field) && message.contains("expected"),
                "{body}: {message}"
            );
        }
    }

    #[test]
    fn token_ids_are_read_as_engines_read_them() {
        let ids = |list: &str| {
            let body = format!("{{\"tokens\":{list}}}");
            detokenize_view(body.as_bytes()).map(|view| view.tokens)
        };
        assert_eq!(
            ids(r#"[1,"2",3.0,true,4294967295]"#),
            Ok(vec![1, 2, 3, 1, u32::MAX])
        );
        for list in [
            "[-1]",
            "[4294967296]",
            "[1.5]",
            "[null]",
            "[[1]]",
            "\"1\"",
            "7",
            "null",
        ] {
            assert!(ids(list).is_err(), "{list}");
        }
    }
}
