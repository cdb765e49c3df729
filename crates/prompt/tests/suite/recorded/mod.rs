//! Recorded replies of a real vLLM 0.32.0, and the files of the model that it served.

use std::path::PathBuf;

use prompt::{Artefacts, PromptModel};
use serde_json::Value;

pub(crate) fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/vllm-real")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn tiny_qwen() -> PromptModel {
    PromptModel::load(Artefacts {
        tokenizer_json: &fixture("tiny-qwen/tokenizer.json"),
        tokenizer_config: Some(&fixture("tiny-qwen/tokenizer_config.json")),
        chat_template: None,
    })
    .expect("the fixture is a model's own files")
}

pub(crate) fn lines(file: &str) -> Vec<Value> {
    let text = String::from_utf8(fixture(file)).expect("the fixture is text");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("each line is json"))
        .collect()
}

/// Returns the token ids of an accepted request.
pub(crate) fn ids(reply: &Value) -> Vec<u32> {
    serde_json::from_value(reply["tokens"].clone()).expect("an accepted request has ids")
}
