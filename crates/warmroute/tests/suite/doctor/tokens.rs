//! Tokenizers and templates that differ from the engine's.

use std::path::Path;

use contract_id::contract;
use serde_json::{Value, json};

use super::look::{DoctorRun, endpoint_of, engine, look_at, look_with, write};

/// A directory with the tokenizer of another model than the engine's built-in one.
pub(crate) fn tiny_qwen() -> String {
    let dir =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vllm-real/tiny-qwen");
    dir.display().to_string()
}

const OTHER: &str = "set models.entries[\"{model}\"].tokenizer to the directory of the model that the engine serves, or use \
                     --tokenizer {model}=DIR";

#[test]
#[contract("G28")]
fn tokenizer_of_another_model() {
    let engine_of = |flags: &[&str]| engine(flags);
    let other = format!("sim={}", tiny_qwen());
    let seen = look_at(&engine_of(&[]), &["--tokenizer", &other]);
    let check = seen.fails(&["w1"], "tokenizer", OTHER, &[("model", "sim")]);
    assert!(
        check["message"]
            .as_str()
            .is_some_and(|message| message.contains("tiny-qwen")),
        "{check}"
    );
    assert_eq!(seen.check("w1", "chat_template")["status"], "skip");
    // The same directory on both sides is correct.
    look_at(&engine_of(&["--tokenizer", &tiny_qwen()]), &[]).green();
}

#[test]
#[contract("G28")]
fn the_engine_has_to_tokenize_and_cannot() {
    let engine = engine(&["--without", "/tokenize"]);
    let seen = look_with(&engine, "", "models: {defaults: {tokenizer: engine}}");
    let check = seen.fails(&["w1"], "tokenizer", OTHER, &[("model", "sim")]);
    assert!(
        check["message"]
            .as_str()
            .is_some_and(|message| message.contains("has no /tokenize")),
        "{check}"
    );
    look_at(&engine, &[]).green();
}

#[test]
#[contract("G28")]
fn special_tokens_are_added_on_one_side_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine-sim/assets");
    let text = |name: &str| std::fs::read_to_string(assets.join(name)).expect("an asset");
    let mut tokenizer: Value = serde_json::from_str(&text("tokenizer.json")).expect("json");
    let start = json!({"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}});
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [start, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [2045], "tokens": ["<|endoftext|>"]}},
    });
    write(dir.path(), "tokenizer.json", &tokenizer.to_string());
    write(
        dir.path(),
        "tokenizer_config.json",
        &text("tokenizer_config.json"),
    );
    let fix = "set models.entries[\"{model}\"].tokenizer to the directory of the model that the engine serves, or use \
               --tokenizer {model}=DIR with its tokenizer_config.json";
    let ours = format!("sim={}", dir.path().display());
    look_at(&engine(&[]), &["--tokenizer", &ours]).fails(
        &["w1"],
        "special_tokens",
        fix,
        &[("model", "sim")],
    );
}

#[test]
#[contract("G28")]
fn altered_template() {
    let dir = tempfile::tempdir().expect("a directory");
    let template = "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') \
                    + '<|im_end|>\\n' }}{%- endfor -%}";
    let file = write(dir.path(), "altered.jinja", template);
    let altered = engine(&["--chat-template", &file]);
    let seen = look_at(&altered, &[]);
    let fix = "set models.entries[\"{model}\"].chat_template to the file that the engine was started with \
               (--chat-template), or start the engine without it";
    let check = seen.fails(&["w1"], "chat_template", fix, &[("model", "sim")]);
    assert!(
        check["message"]
            .as_str()
            .is_some_and(|message| message.contains("a user message")),
        "{check}"
    );
    // With the same template the router agrees; an engine with another one then differs.
    let known = format!("models: {{defaults: {{chat_template: \"{file}\"}}}}");
    look_with(&altered, "", &known).green();
    let fix = "start the engine with --chat-template {file}, or set models.entries[\"{model}\"].chat_template to the \
               engine's own";
    let values = [("file", file.as_str()), ("model", "sim")];
    look_with(&engine(&[]), "", &known).fails(&["w1"], "chat_template", fix, &values);
}

/// An engine without these routes, checked with explicit endpoints of its publisher and replay
/// socket.
fn look_at_older(flags: &[&str], without: &str, keys: &str) -> DoctorRun {
    let engine = engine(&[&["--without", without], flags].concat());
    let (events, replay) = (
        endpoint_of(&engine, "kv_events"),
        endpoint_of(&engine, "replay"),
    );
    let keys =
        format!("{keys} kv_events: {{endpoint: \"{events}\", replay_endpoint: \"{replay}\"}}");
    look_with(&engine, &keys, "")
}

#[test]
#[contract("G28")]
fn engines_with_fewer_endpoints_pass_too() {
    for flags in [
        // Chats only; with ids in the replies, with ids from `/tokenize`, with neither.
        &["--without", "/v1/completions"][..],
        &["--without", "/v1/completions", "--no-token-ids"],
        &["--without", "/v1/completions,/tokenize", "--no-token-ids"],
        &["--without", "/v1/completions,/tokenize"],
        &["--without", "/tokenize", "--no-token-ids"],
        &["--without", "/metrics"],
        &["--details-on-hits-only"],
        &["--dp-size", "2", "--without", "/tokenize", "--no-token-ids"],
    ] {
        let seen = look_at(&engine(flags), &[]).green();
        for id in [
            "tokenizer",
            "prefix_caching",
            "events_arriving",
            "hash_alias",
        ] {
            assert_eq!(seen.check("w1", id)["status"], "ok", "{flags:?} {id}");
        }
    }
    look_at_older(&[], "/kv_event_sources", "").green();
}

#[test]
#[contract("G28")]
fn one_wrong_setting_is_one_failure_on_an_engine_with_fewer_endpoints_too() {
    let other = format!("sim={}", tiny_qwen());
    for without in ["/tokenize", "/v1/completions,/tokenize"] {
        for flags in [
            &["--without", without][..],
            &["--without", without, "--no-token-ids"],
        ] {
            let seen = look_at(&engine(flags), &["--tokenizer", &other]);
            seen.fails_only("tokenizer", &["models.entries[\"sim\"].tokenizer"]);
        }
    }
    look_at_older(&["--block-size", "128"], "/metrics", "block_size: 16,").fails_only(
        "block_size",
        &["--block-size 16", "workers[0].block_size: 128"],
    );
    let off = ["--no-prefix-caching", "--details-on-hits-only"];
    look_at(&engine(&off), &[]).fails_only("prefix_caching", &["--enable-prefix-caching"]);
    let blind = look_at(
        &engine(&[&off[..], &["--without", "/metrics"]].concat()),
        &[],
    );
    assert_eq!(
        blind.with("fail"),
        ["w1 events_arriving"],
        "no reason is given"
    );
    let fix = blind.check("w1", "events_arriving")["fix"].to_string();
    assert!(fix.contains("--enable-prefix-caching"), "{fix}");
}
