//! Neither the fast library nor cached pieces of earlier prompts change an id.

use std::{path::PathBuf, sync::OnceLock};

use prompt::{Artefacts, PromptModel, SaltGroup, sample_text};
use proptest::prelude::*;

const TINY_QWEN: &str = "../../tests/fixtures/vllm-real/tiny-qwen/tokenizer.json";
const SIMULATED: &str = "../engine-sim/assets/tokenizer.json";

fn tokenizer_json(file: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn load(json: &str) -> PromptModel {
    let artefacts = Artefacts {
        tokenizer_json: json.as_bytes(),
        tokenizer_config: None,
        chat_template: None,
    };
    PromptModel::load(artefacts).expect("the tests' own files are usable")
}

/// Returns the other library alone, without cut points.
fn reference(json: &str) -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_bytes(json).expect("the tests' own files are usable")
}

fn ids(reference: &tokenizers::Tokenizer, text: &str, special: bool) -> Vec<u32> {
    reference
        .encode_fast(text, special)
        .expect("any text has ids")
        .get_ids()
        .to_vec()
}

#[test]
fn the_fast_library_serves_the_models_of_the_fixtures() {
    for file in [TINY_QWEN, SIMULATED] {
        let model = load(&tokenizer_json(file));
        assert_eq!(
            (model.tokenizer_engine(), model.self_test()),
            ("fastokens", "ok"),
            "{file}"
        );
    }
}

#[test]
fn a_model_that_the_fast_library_cannot_load_is_served_by_the_other() {
    let words = r#"{"version":"1.0","added_tokens":[],"pre_tokenizer":{"type":"WhitespaceSplit"},
        "model":{"type":"WordLevel","vocab":{"?":0,"hello":1},"unk_token":"?"}}"#;
    let model = load(words);
    assert_eq!(
        (model.tokenizer_engine(), model.self_test()),
        ("tokenizers", "skipped")
    );
    assert_eq!(
        model
            .text_tokens("hello there", true)
            .expect("any text has ids"),
        [1, 0]
    );
}

#[test]
fn a_model_on_which_the_libraries_differ_is_served_by_the_other() {
    // Half of all merges are left out at random: no two encodings agree.
    let json = tokenizer_json(TINY_QWEN).replace("\"dropout\": null", "\"dropout\": 0.5");
    let model = load(&json);
    assert_eq!(
        (model.tokenizer_engine(), model.self_test()),
        ("tokenizers", "failed")
    );
}

#[test]
fn a_model_with_a_whole_word_token_is_served_by_the_other_library() {
    let json =
        tokenizer_json(TINY_QWEN).replacen("\"single_word\": false", "\"single_word\": true", 1);
    let model = load(&json);
    assert_eq!(
        (model.tokenizer_engine(), model.self_test()),
        ("tokenizers", "skipped")
    );
    let reference = reference(&json);
    for text in [
        "a<|endoftext|>b",
        "a <|endoftext|> b",
        "<|endoftext|><|im_end|>",
    ] {
        assert_eq!(
            model.text_tokens(text, false).expect("any text has ids"),
            ids(&reference, text, false),
            "{text}"
        );
    }
}

#[test]
fn long_and_hostile_texts_have_the_other_library_s_ids() {
    let json = tokenizer_json(TINY_QWEN);
    let (model, reference) = (load(&json), reference(&json));
    let mut texts: Vec<String> = [
        "a",
        " ",
        "\n",
        "1",
        "^",
        " \t",
        "👨\u{200d}",
        "e\u{301}",
        "日",
        "<|im_start",
        "'s",
        "\r\n",
    ]
    .iter()
    .map(|text| text.repeat((96 << 10) / text.len()))
    .collect();
    texts.push(sample_text(300_000));
    for text in texts {
        let same = model.text_tokens(&text, true).expect("any text has ids")
            == ids(&reference, &text, true);
        assert!(same, "{:?}", &text[..text.floor_char_boundary(20)]);
    }
    assert_eq!(
        model.tokenizer_engine(),
        "fastokens",
        "no text caused a failure"
    );
}

fn turn(role: &str, text: &str) -> String {
    format!("<|im_start|>{role}\n{text}<|im_end|>\n")
}

#[test]
fn a_turn_of_a_conversation_tokenises_only_its_new_text() {
    let json = tokenizer_json(TINY_QWEN);
    let (model, reference) = (load(&json), reference(&json));
    let mut conversation = turn("system", &sample_text(4_000)) + &turn("user", "first question");
    let lead_in = "<|im_start|>assistant\n";
    let tokenize = |conversation: &str| {
        let text = format!("{conversation}{lead_in}");
        let (tokens, new_tokens) = model
            .text_tokens_counted(SaltGroup::UNSALTED, &text, false)
            .expect("any text has ids");
        assert_eq!(tokens, ids(&reference, &text, false));
        (tokens.len(), new_tokens as usize)
    };
    let (tokens, new_tokens) = tokenize(&conversation);
    assert_eq!(new_tokens, tokens);
    let lead_in_tokens = ids(&reference, &format!("\n{lead_in}"), false).len();
    assert_eq!(
        tokenize(&conversation),
        (tokens, lead_in_tokens),
        "the same prompt again"
    );
    let added = turn("assistant", "first answer") + &turn("user", "second question");
    conversation.push_str(&added);
    let (_, new_tokens) = tokenize(&conversation);
    assert_eq!(
        new_tokens,
        ids(&reference, &added, false).len() + lead_in_tokens
    );
    let plain = model
        .text_tokens_counted(SaltGroup::UNSALTED, &conversation, true)
        .expect("any text has ids");
    assert_eq!(
        plain.0.len(),
        plain.1 as usize,
        "a prompt with added special tokens is not cut"
    );
}

#[test]
fn turns_are_cached_with_either_library() {
    let words = r#"{"version":"1.0","pre_tokenizer":{"type":"Whitespace"},
        "added_tokens":[{"id":2,"content":"<end>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
        "model":{"type":"WordLevel","vocab":{"?":0,"hello":1,"<end>":2},"unk_token":"?"}}"#;
    let model = load(words);
    assert_eq!(model.tokenizer_engine(), "tokenizers");
    let tokenize = |text| {
        model
            .text_tokens_counted(SaltGroup::UNSALTED, text, false)
            .expect("any text has ids")
    };
    assert_eq!(tokenize("hello<end>hello"), (vec![1, 2, 1], 3));
    assert_eq!(
        tokenize("hello<end>hello there<end>"),
        (vec![1, 2, 1, 0, 2], 3)
    );
}

/// Draws texts of a conversation: whole and broken special tokens among characters that merge and
/// compose across them.
fn pieces() -> impl Strategy<Value = String> {
    let special = prop::sample::select(vec![
        "<|im_end|>",
        "<|im_start|>",
        "<|endoftext|>",
        "<|im_end|",
        "|im_end|>",
        "<",
        "|",
        "\n",
        " ",
        "  ",
        "\u{301}",
        "e",
        "'s",
        "1",
        "日",
        "a",
        "\r\n",
        "\u{1161}",
        "\u{1100}",
    ]);
    let piece = prop_oneof![3 => special.prop_map(str::to_owned), 1 => ".{0,12}"];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_text_has_the_other_library_s_ids(text in pieces(), more in pieces()) {
        static MODELS: OnceLock<Vec<(PromptModel, tokenizers::Tokenizer)>> = OnceLock::new();
        let models = MODELS.get_or_init(|| {
            let files = [TINY_QWEN, SIMULATED].map(tokenizer_json);
            files.iter().map(|json| (load(json), reference(json))).collect()
        });
        for (model, reference) in models {
            // Twice, so that the second uses the cache of the first; then a continuation.
            for text in [&text, &text, &format!("{text}{more}")] {
                for special in [false, true] {
                    let (tokens, new_tokens) =
                        model.text_tokens_counted(SaltGroup::UNSALTED, text, special).map_err(|error| TestCaseError::fail(error.to_string()))?;
                    prop_assert!(new_tokens as usize <= tokens.len());
                    prop_assert_eq!(tokens, ids(reference, text, special), "{:?}", text);
                }
            }
        }
    }
}
