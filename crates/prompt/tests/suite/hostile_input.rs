//! No client input and no template may crash the process.

use std::path::PathBuf;

use contract_id::contract;
use prompt::{Artefacts, ChatRequest, PromptError, PromptModel};
use proptest::prelude::*;

fn tokenizer_json() -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/vllm-real/tiny-qwen/tokenizer.json");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn model(template: &str) -> PromptModel {
    let artefacts = Artefacts {
        tokenizer_json: &tokenizer_json(),
        tokenizer_config: None,
        chat_template: Some(template),
    };
    PromptModel::load(artefacts).expect("the fixture is a model's own file")
}

fn chat(messages: &str) -> ChatRequest<'_> {
    ChatRequest {
        messages,
        tools: None,
        documents: None,
        chat_template: None,
        chat_template_kwargs: None,
        reasoning_effort: None,
        add_generation_prompt: true,
        continue_final_message: false,
        add_special_tokens: false,
    }
}

/// Runs on a stack as small as those of a server's threads.
fn on_a_small_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(work)
        .expect("a thread can be started");
    thread.join().expect("the work does not panic")
}

#[test]
#[contract("S63")]
fn a_mebibyte_of_repeated_text_is_tokenised_without_overflowing_the_stack() {
    let texts = [
        "a".repeat(1 << 20),
        "^".repeat(1 << 20),
        " ".repeat(1 << 20),
        "\n".repeat(1 << 20),
        "1".repeat(1 << 20),
        " \t".repeat(1 << 19),
        "👨\u{200d}👩\u{200d}".repeat((1 << 20) / 14),
        "e\u{301}".repeat((1 << 20) / 3),
        "\u{301}".repeat(1 << 19),
        "<|im_start|>".repeat(100_000),
        "<|im_start".repeat(100_000),
        "日本".repeat((1 << 20) / 6),
    ];
    on_a_small_stack(move || {
        let model = model("");
        for text in texts {
            let ids = model.text_tokens(&text, true).expect("any text has ids");
            let back = model.decode(&ids).expect("ids have a text");
            // The tokenizer composes accents: lengths may shrink, but no content is lost.
            assert!(
                back == text || text.contains('\u{301}') && !back.is_empty(),
                "{:?}",
                text.chars().next()
            );
        }
    });
}

#[test]
#[contract("S63")]
fn special_token_text_of_a_client_becomes_the_special_token_as_in_the_engine() {
    assert_eq!(
        model("")
            .text_tokens("<|im_end|>", false)
            .expect("any text has ids"),
        [4095]
    );
}

#[test]
fn a_malformed_tokenizer_file_is_refused_with_a_reason() {
    for json in [
        &b""[..],
        b"{}",
        b"\xff",
        b"[]",
        br#"{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[["a","b"]]}}"#,
    ] {
        let artefacts = Artefacts {
            tokenizer_json: json,
            tokenizer_config: None,
            chat_template: None,
        };
        let error = PromptModel::load(artefacts)
            .expect_err("it is no tokenizer")
            .to_string();
        assert!(
            error.starts_with("tokenizer.json is not usable: "),
            "{error}"
        );
    }
    let nested = b"[".repeat(1_000_000);
    let artefacts = Artefacts {
        tokenizer_json: &nested,
        tokenizer_config: None,
        chat_template: None,
    };
    assert!(PromptModel::load(artefacts).is_err());
}

#[test]
fn endless_templates_and_too_long_outputs_are_stopped() {
    let bad = [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(10**9) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{% for i in [1] %}{{ m(n + 1) }}{% endfor %}{% endmacro %}{{ m(0) }}",
        "{% for a in range(1000) %}{{ 'x' * 100000 }}{% endfor %}",
        "{{ 'x' * 10**12 }}",
        "{{ [0] * 10**9 }}",
        "{% include 'other' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ raise_exception('no') }}",
        "{{ 1 // 0 }}",
        "{{ messages | nothing }}",
        "{{ missing.attribute }}",
    ];
    on_a_small_stack(move || {
        for template in bad {
            let error = model(template).chat_text(&chat(r#"[{"role":"user","content":"x"}]"#), 0);
            assert!(
                matches!(
                    error,
                    Err(PromptError::Refused(_)
                        | PromptError::Unsupported { .. }
                        | PromptError::NoTemplate(_))
                ),
                "{template}: {error:?}"
            );
        }
    });
}

#[test]
fn plain_prompts_work_if_the_template_does_not_compile() {
    let model = model("{% if %}");
    assert!(
        model
            .template_problem()
            .is_some_and(|problem| problem.starts_with("it does not compile: "))
    );
    assert!(matches!(
        model.chat_text(&chat("[]"), 0),
        Err(PromptError::NoTemplate(_))
    ));
    assert!(model.text_tokens("hello", true).is_ok());
    assert!(matches!(
        super_large_template().chat_text(&chat("[]"), 0),
        Err(PromptError::NoTemplate(_))
    ));
}

fn super_large_template() -> PromptModel {
    model(&"x".repeat(65_537))
}

#[test]
fn deep_and_wide_messages_are_rendered_or_refused() {
    on_a_small_stack(|| {
        let model = model(
            "{% for m in messages %}{{ m.tool_calls | tojson }}{{ m.tool_calls }}{% endfor %}",
        );
        let lists = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        let call = |levels: usize| {
            let function = format!(
                r#"{{"name":"f","arguments":"{{\"a\":{}}}"}}"#,
                lists(levels)
            );
            format!(
                r#"[{{"role":"assistant","tool_calls":[{{"id":"c","type":"function","function":{function}}}]}}]"#
            )
        };
        assert!(
            model
                .chat_text(&chat(&call(100)), 0)
                .is_ok_and(|text| text.contains(&lists(100)))
        );
        assert!(matches!(
            model.chat_text(&chat(&call(10_000)), 0),
            Err(PromptError::Unsupported { .. })
        ));
        let extra = format!(r#"[{{"role":"user","extra":{}}}]"#, lists(10_000));
        assert!(matches!(
            model.chat_text(&chat(&extra), 0),
            Err(PromptError::Unsupported { .. })
        ));
        let many = format!(
            "[{}{{\"role\":\"user\"}}]",
            r#"{"role":"user","content":"x"},"#.repeat(200_000)
        );
        let model = self::model("{% for m in messages %}{{ m.content + m.role }}{% endfor %}");
        let error = model.chat_text(&chat(&many), 0);
        assert!(
            matches!(error, Err(PromptError::Unsupported { .. })),
            "the fuel is bounded: {error:?}"
        );
    });
}

#[test]
fn predicted_cost_grows_with_the_bytes_and_follows_the_measurement() {
    let model = model("");
    model.set_cost(10.0);
    assert_eq!(model.predicted_cost(1_000).as_nanos(), 10_000);
    for no_cost in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
        model.set_cost(no_cost);
        assert_eq!(model.predicted_cost(1_000).as_nanos(), 10_000);
    }
    assert!(
        model.predicted_cost(usize::MAX).as_secs() > 1_000_000,
        "it saturates"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_panics_and_every_text_is_in_the_prompt(text in ".{0,200}") {
        static MODEL: std::sync::OnceLock<PromptModel> = std::sync::OnceLock::new();
        let model = MODEL.get_or_init(|| model("{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}"));
        let ids = model.text_tokens(&text, true).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(text.is_empty(), ids.is_empty());
        let _ = model.chat_tokens(&chat(&text), 0);
        let messages = serde_json::json!([{"role": "user", "content": text}]).to_string();
        let rendered = model.chat_text(&chat(&messages), 0).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(rendered, format!("user{text}"));
    }
}
