//! Unusual requests with the recorded verdict of a real vLLM 0.32.0: accepted ones have the same
//! ids here, refused ones are refused here; those that only an engine can decide are forwarded to
//! it, and counted.

use dialect::{PromptPart, RawJson, TokenizeView, detokenize_view, tokenize_view};
use prompt::{ChatRequest, PromptError, PromptModel};
use serde_json::Value;

use crate::recorded::{self, ids, tiny_qwen};

fn lines(route: &str) -> Vec<Value> {
    let all = recorded::lines("tokenize-edges-tiny-qwen.jsonl");
    all.into_iter()
        .filter(|line| line["route"] == route && line["status"] != 404)
        .collect()
}

/// The outcome of a request here.
#[derive(Debug)]
enum EngineAnswer {
    Ids(Vec<u32>),
    /// Refused as by the engine.
    Refused(String),
    /// Only the engine can decide.
    HandedOn(String),
}

impl From<PromptError> for EngineAnswer {
    fn from(error: PromptError) -> Self {
        if error.is_refusal() {
            Self::Refused(error.to_string())
        } else {
            Self::HandedOn(error.to_string())
        }
    }
}

fn tokenize(model: &PromptModel, body: &str) -> EngineAnswer {
    let TokenizeView {
        prompt, rendering, ..
    } = match tokenize_view(body.as_bytes()) {
        Ok(view) => view,
        Err(error) => return EngineAnswer::Refused(error.to_string()),
    };
    let special = rendering.add_special_tokens;
    let tokens = match prompt {
        PromptPart::Messages(messages) => {
            let chat = ChatRequest {
                messages: messages.as_str(),
                tools: rendering.tools.map(RawJson::as_str),
                documents: None,
                chat_template: rendering.chat_template.map(RawJson::as_str),
                chat_template_kwargs: rendering.chat_template_kwargs.map(RawJson::as_str),
                reasoning_effort: None,
                add_generation_prompt: rendering.add_generation_prompt.unwrap_or(true),
                continue_final_message: rendering.continue_final_message.unwrap_or(false),
                add_special_tokens: special.unwrap_or(false),
            };
            model.chat_tokens(&chat, 0).map(|rendered| rendered.tokens)
        }
        PromptPart::Text(text) => model.text_tokens(&text, special.unwrap_or(true)),
        other => return EngineAnswer::HandedOn(format!("{other:?}")),
    };
    tokens.map_or_else(EngineAnswer::from, EngineAnswer::Ids)
}

#[test]
fn every_recorded_request_has_the_engine_s_ids_or_refusal_or_is_forwarded() {
    let model = tiny_qwen();
    let (mut wrong, mut answered, mut refused) = (Vec::new(), 0, 0);
    let (mut handed_on, mut handed_on_to_be_refused) = (Vec::new(), Vec::new());
    for line in lines("/tokenize") {
        let body = line["body"]
            .as_str()
            .expect("each line has the body that was sent");
        match (tokenize(&model, body), line["status"] == 200) {
            (EngineAnswer::Ids(tokens), true) if tokens == ids(&line["reply"]) => answered += 1,
            (EngineAnswer::Refused(_), false) => refused += 1,
            (EngineAnswer::HandedOn(why), true) => handed_on.push(format!("{body}\n  {why}")),
            (EngineAnswer::HandedOn(why), false) => {
                handed_on_to_be_refused.push(format!("{body}\n  {why}"))
            }
            (EngineAnswer::Ids(tokens), true) => wrong.push(format!(
                "{body}\n  ours   {:?}\n  engine {:?}",
                model.decode(&tokens).unwrap_or_default(),
                model.decode(&ids(&line["reply"])).unwrap_or_default()
            )),
            (EngineAnswer::Ids(_), false) => {
                wrong.push(format!("{body}\n  accepted here, refused by the engine"))
            }
            (EngineAnswer::Refused(why), true) => {
                wrong.push(format!(
                    "{body}\n  refused here ({why}), accepted by the engine"
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert_eq!(
        (answered, refused),
        (334, 179),
        "lines answered, and lines refused here"
    );
    assert_eq!(
        handed_on.len(),
        10,
        "lines that only an engine can answer:\n{}",
        handed_on.join("\n")
    );
    let listed = handed_on_to_be_refused.join("\n");
    assert_eq!(
        handed_on_to_be_refused.len(),
        36,
        "lines that are left to the engine to refuse:\n{listed}"
    );
}

#[test]
fn every_recorded_list_of_ids_has_the_engine_s_text_or_its_refusal() {
    let model = tiny_qwen();
    for line in lines("/detokenize") {
        let body = line["body"]
            .as_str()
            .expect("each line has the body that was sent");
        let text = detokenize_view(body.as_bytes())
            .ok()
            .map(|view| model.decode(&view.tokens).expect("ids have a text"));
        assert_eq!(text.as_deref(), line["reply"]["prompt"].as_str(), "{body}");
    }
}

#[test]
fn tokens_are_spelled_as_the_engine_spells_them() {
    let model = tiny_qwen();
    let mut with_strings = 0;
    for line in lines("/tokenize") {
        let Some(expected) = line["reply"]["token_strs"].as_array() else {
            continue;
        };
        let strings: Vec<String> = model
            .token_strings(&ids(&line["reply"]))
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(
            strings,
            expected
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>(),
            "{}",
            line["body"]
        );
        with_strings += 1;
    }
    assert!(with_strings > 1);
}
