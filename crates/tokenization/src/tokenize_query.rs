//! The `/tokenize` query for a request.

use std::time::Duration;

use bytes::Bytes;
use dialect::{PromptPart, RawJson, RequestView};
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::{
    engine_query::{EngineQuery, QueryKind},
    local,
    tokenized_prompt::prompt_bytes,
};

/// Longest query, bytes: an engine would compute longer on it than a request should wait.
const LONGEST: usize = 256 << 10;
/// Cost of a query per byte: parsed, written and hashed.
const COST_PER_BYTE: Duration = Duration::from_nanos(6);

/// Returns the query for a request; `None` where the answer would differ from the tokens of the
/// generation.
pub(crate) fn build(view: &RequestView<'_>) -> Option<EngineQuery> {
    let body = body(view)?;
    let salt = view.cache_salt.as_deref().unwrap_or_default();
    // An answer is for requests of the same salt: its cache tells no tenant of another one.
    let digest = Sha256::new()
        .chain_update((salt.len() as u64).to_be_bytes())
        .chain_update(salt)
        .chain_update(&body)
        .finalize()
        .into();
    Some(EngineQuery {
        kind: QueryKind::Tokenize,
        body,
        digest,
    })
}

/// Returns the approximate cost of [`build`].
pub(crate) fn cost(view: &RequestView<'_>) -> Duration {
    let size = size(view);
    // No longer query is built.
    local::cost_of(if size > LONGEST { 0 } else { size }, COST_PER_BYTE)
}

/// Returns the approximate number of bytes that go into a query.
fn size(view: &RequestView<'_>) -> usize {
    let template = [
        view.rendering.chat_template,
        view.rendering.chat_template_kwargs,
    ];
    prompt_bytes(view)
        + template
            .into_iter()
            .flatten()
            .map(|value| value.as_str().len())
            .sum::<usize>()
}

/// The fields of a request that decide its tokens, as `/tokenize` takes them.
#[derive(Serialize)]
struct TokenizeFields<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    add_special_tokens: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    add_generation_prompt: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    continue_final_message: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template_kwargs: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
}

/// Builds the query's body; `None` where the answer would differ from the tokens of the generation.
fn body(view: &RequestView<'_>) -> Option<Bytes> {
    let rendering = &view.rendering;
    // Options that `/tokenize` lacks.
    if rendering.truncate_prompt_tokens.is_some()
        || rendering.documents.is_some()
        || rendering.reasoning_effort.is_some()
        || size(view) > LONGEST
    {
        return None;
    }
    let mut fields = TokenizeFields {
        model: &view.model,
        prompt: None,
        messages: None,
        add_special_tokens: rendering.add_special_tokens,
        add_generation_prompt: None,
        continue_final_message: None,
        chat_template: None,
        chat_template_kwargs: None,
        tools: None,
    };
    match &view.prompt {
        PromptPart::Text(text) => fields.prompt = Some(text),
        PromptPart::Messages(messages) => {
            // Generations accept this field under two names, `/tokenize` under one.
            if messages.as_str().contains("\"reasoning_content\"")
                || !prompt::text_only(messages.as_str())
            {
                return None;
            }
            fields.messages = Some(serde_json::from_str(messages.as_str()).ok()?);
            fields.add_generation_prompt = rendering.add_generation_prompt;
            fields.continue_final_message = rendering.continue_final_message;
            fields.chat_template = raw(rendering.chat_template).ok()?;
            fields.chat_template_kwargs = raw(rendering.chat_template_kwargs).ok()?;
            fields.tools = raw(rendering.tools).ok()?;
        }
        PromptPart::TokenIds(_)
        | PromptPart::TokenIdsWithMedia { .. }
        | PromptPart::Batch { .. }
        | PromptPart::None => return None,
    }
    serde_json::to_vec(&fields).ok().map(Bytes::from)
}

fn raw(value: Option<RawJson<'_>>) -> serde_json::Result<Option<&RawValue>> {
    value
        .map(|value| serde_json::from_str(value.as_str()))
        .transpose()
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use dialect::Dialect;

    use super::*;

    fn query(dialect: Dialect, body: &str) -> Option<EngineQuery> {
        let view = dialect::view(dialect, body.as_bytes()).expect("a good body");
        build(&view)
    }

    fn sent(dialect: Dialect, body: &str) -> serde_json::Value {
        let query = query(dialect, body).expect("it can be asked");
        serde_json::from_slice(&query.body).expect("JSON")
    }

    #[test]
    fn a_chat_is_asked_with_its_messages_and_every_field_that_its_template_reads() {
        let chat = sent(
            Dialect::Chat,
            r#"{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}],
                "chat_template":"t","chat_template_kwargs":{"b":1},"add_generation_prompt":false,
                "continue_final_message":true,"temperature":0.5,"stream":true,"max_tokens":7}"#,
        );
        assert_eq!(
            chat,
            serde_json::json!({
                "model": "m", "messages": [{"role": "user", "content": "a"}],
                "tools": [{"type": "function"}], "chat_template": "t",
                "chat_template_kwargs": {"b": 1}, "add_generation_prompt": false,
                "continue_final_message": true,
            })
        );
        let completion = r#"{"model":"m","prompt":"a","add_special_tokens":false,"n":2}"#;
        let expected =
            serde_json::json!({"model": "m", "prompt": "a", "add_special_tokens": false});
        assert_eq!(sent(Dialect::Completions, completion), expected);
    }

    #[test]
    fn a_prompt_whose_tokens_the_engine_would_count_otherwise_is_not_asked() {
        let message = r#""messages":[{"role":"user","content":"a"}]"#;
        let image = r#""messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]"#;
        let reasoning =
            r#""messages":[{"role":"assistant","reasoning_content":"a","content":"b"}]"#;
        for (dialect, fields) in [
            (
                Dialect::Chat,
                format!(r#"{message},"truncate_prompt_tokens":5"#),
            ),
            (
                Dialect::Chat,
                format!(r#"{message},"documents":[{{"text":"a"}}]"#),
            ),
            (
                Dialect::Chat,
                format!(r#"{message},"reasoning_effort":"low""#),
            ),
            (Dialect::Chat, image.to_owned()),
            (Dialect::Chat, reasoning.to_owned()),
            (Dialect::Completions, r#""prompt":[1,2]"#.to_owned()),
            (Dialect::Completions, r#""prompt":["a","b"]"#.to_owned()),
        ] {
            let body = format!(r#"{{"model":"m",{fields}}}"#);
            assert!(query(dialect, &body).is_none(), "{body}");
        }
        let plain = format!(r#"{{"model":"m",{message}}}"#);
        assert!(query(Dialect::Chat, &plain).is_some());
    }

    #[test]
    fn a_prompt_too_long_to_wait_for_is_not_asked_and_costs_nothing() {
        for (length, is_built) in [(LONGEST, true), (LONGEST + 1, false)] {
            let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "a".repeat(length));
            assert_eq!(query(Dialect::Completions, &body).is_some(), is_built);
            let view = dialect::view(Dialect::Completions, body.as_bytes()).expect("good");
            assert_eq!(cost(&view) > Duration::from_millis(1), is_built);
        }
    }

    #[test]
    #[contract("S55", "G18")]
    fn equal_prompts_are_one_query_and_other_models_prompts_or_salts_are_not() {
        let digest = |body: &str| query(Dialect::Completions, body).expect("asked").digest;
        let own = digest(r#"{"model":"m","prompt":"a"}"#);
        assert_eq!(own, digest(r#"{"max_tokens":1,"prompt":"a","model":"m"}"#));
        for other in [
            r#"{"model":"n","prompt":"a"}"#,
            r#"{"model":"m","prompt":"b"}"#,
            r#"{"model":"m","prompt":"a","add_special_tokens":false}"#,
            r#"{"model":"m","prompt":"a","cache_salt":"b"}"#,
        ] {
            assert_ne!(own, digest(other), "{other}");
        }
    }
}
