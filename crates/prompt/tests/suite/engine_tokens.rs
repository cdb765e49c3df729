//! Token ids equal those of a real vLLM 0.32.0, for every recorded line.

use prompt::{ChatRequest, SaltGroup};
use serde_json::Value;

use crate::recorded::{self, ids, tiny_qwen};

/// Returns every recorded line of a kind. The engine accepted all of them; refused requests have
/// their own file.
fn lines(kind: &str) -> Vec<Value> {
    let all = recorded::lines("tokens-tiny-qwen.jsonl");
    all.into_iter()
        .filter(|line| line["kind"] == kind)
        .inspect(|line| assert_eq!(line["status"], 200))
        .collect()
}

#[test]
fn prompts_tokenise_as_in_the_engine_with_and_without_special_tokens() {
    let model = tiny_qwen();
    let lines = lines("prompt");
    assert_eq!(lines.len(), 124);
    for line in lines {
        let text = line["prompt"].as_str().expect("a prompt is a text");
        let special = line["add_special_tokens"]
            .as_bool()
            .expect("each line has the flag");
        assert_eq!(
            model
                .text_tokens(text, special)
                .expect("no recorded prompt is refused"),
            ids(&line),
            "{text:?}"
        );
    }
}

#[test]
fn ids_decode_as_in_the_engine() {
    let model = tiny_qwen();
    for line in lines("prompt") {
        assert_eq!(
            model.decode(&ids(&line)).expect("the ids are the model's"),
            line["detokenized"],
            "{}",
            line["prompt"]
        );
    }
}

#[test]
fn chats_render_and_tokenise_as_in_the_engine() {
    let model = tiny_qwen();
    let lines = lines("chat");
    let mut wrong = Vec::new();
    for line in &lines {
        let request = &line["request"];
        let field = |name: &str| request.get(name).map(Value::to_string);
        let flag = |name: &str, default| {
            request
                .get(name)
                .and_then(Value::as_bool)
                .unwrap_or(default)
        };
        let (messages, tools, kwargs) = (
            field("messages"),
            field("tools"),
            field("chat_template_kwargs"),
        );
        let chat = ChatRequest {
            messages: messages.as_deref().expect("a chat has messages"),
            tools: tools.as_deref(),
            documents: None,
            chat_template: None,
            chat_template_kwargs: kwargs.as_deref(),
            reasoning_effort: None,
            add_generation_prompt: flag("add_generation_prompt", true),
            continue_final_message: flag("continue_final_message", false),
            add_special_tokens: flag("add_special_tokens", false),
        };
        match model.chat_tokens(&chat, 0) {
            Ok(rendered) if rendered.tokens == ids(line) => {}
            Ok(rendered) => wrong.push(format!(
                "{request}\n  ours   {:?}\n  engine {:?}",
                rendered.text,
                model.decode(&ids(line)).unwrap_or_default()
            )),
            Err(error) => wrong.push(format!("{request}\n  {error}")),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} differ:\n{}",
        wrong.len(),
        lines.len(),
        wrong.join("\n")
    );
    assert_eq!(lines.len(), 32);
}

#[test]
fn only_the_new_turn_of_a_conversation_is_tokenised() {
    let model = tiny_qwen();
    let first = "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>";
    let second = format!("{first}\n<|im_start|>user\nthree<|im_end|>");
    assert_eq!(
        model.new_bytes(SaltGroup::UNSALTED, &second, false),
        second.len()
    );
    model.text_tokens(first, false).expect("any text has ids");
    assert_eq!(
        model.new_bytes(SaltGroup::UNSALTED, &second, false),
        second.len() - first.len()
    );
    assert_eq!(
        model.new_bytes(SaltGroup::UNSALTED, &second, true),
        second.len(),
        "special tokens are added to a whole text"
    );
}

#[test]
fn the_artefacts_report_their_properties() {
    let model = tiny_qwen();
    assert_eq!(model.max_len(), Some(8192));
    assert_eq!(model.tokenizer_digest().len(), 16);
    assert_eq!(model.template_digest().map(str::len), Some(16));
    assert_eq!(model.template_source().as_str(), "tokenizer_config");
    assert_eq!(model.template_problem(), None);
}
