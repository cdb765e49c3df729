//! A model's files are untrusted data: loading and rendering stay within memory and time for any
//! content.

#![allow(
    clippy::disallowed_methods,
    reason = "a limit of real time, far above what it takes"
)]

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use contract_id::contract;
use prompt::{Artefacts, CancelFlag, ChatRequest, PromptError, PromptModel};
use serde_json::{Value, json};

/// Memory limit: far more than any case needs, far less than an unbounded one takes.
const MOST_MEMORY: usize = 1 << 30;

/// Time limit: no case comes near it; an unbounded one takes minutes or more.
const MOST_TIME: Duration = Duration::from_secs(60);

fn tokenizer_json() -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/vllm-real/tiny-qwen/tokenizer.json");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The smallest tokenizer, for cases that do not depend on it.
const SMALL: &[u8] =
    br#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0,"u":1},"unk_token":"u"}}"#;

fn load(tokenizer_json: &[u8], template: &str) -> Result<PromptModel, prompt::LoadError> {
    PromptModel::load(Artefacts {
        tokenizer_json,
        tokenizer_config: None,
        chat_template: Some(template),
    })
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

/// Returns the peak memory of this process in bytes.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status")
        .expect("Linux reports the memory of a process");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .expect("the peak is reported");
    let kibibytes: usize = line
        .split_whitespace()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("a number");
    kibibytes << 10
}

/// Runs on a stack as small as those of a server's threads, within the memory and time limits.
fn bounded<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (before, started) = (peak_memory(), Instant::now());
    let thread = std::thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(work)
        .expect("a thread can be started");
    let result = thread.join().unwrap_or_else(|_| panic!("{what}: panicked"));
    let (grown, took) = (peak_memory().saturating_sub(before), started.elapsed());
    assert!(grown < MOST_MEMORY, "{what}: took {grown} bytes");
    assert!(took < MOST_TIME, "{what}: took {took:?}");
    result
}

fn refused_render(template: String) {
    bounded(&template.chars().take(120).collect::<String>(), move || {
        let model = load(SMALL, &template).expect("a bad template does not fail the load");
        let result = model.chat_text(&chat(r#"[{"role":"user","content":"x"}]"#), 0);
        assert!(
            matches!(
                result,
                Err(PromptError::Refused(_)
                    | PromptError::Unsupported { .. }
                    | PromptError::NoTemplate(_))
            ),
            "{}: {:?}",
            template.chars().take(120).collect::<String>(),
            result.map(|text| text.len())
        );
    });
}

#[test]
#[contract("S65")]
fn values_that_grow_inside_a_template_are_stopped() {
    let doubled = |start: &str, step: &str, times: usize| {
        format!(
            "{{% set ns = namespace(x={start}) %}}{{% for i in range({times}) %}}{step}{{% endfor %}}{{{{ ns.x | length }}}}"
        )
    };
    for template in [
        doubled("'aaaa'", "{% set ns.x = ns.x ~ ns.x %}", 60),
        doubled("'aaaa'", "{% set ns.x = ns.x + ns.x %}", 60),
        doubled("'aaaa'", "{% set ns.x = ns.x * 8 %}", 60),
        doubled("'aaaa'", "{% set ns.x = ns.x | replace('a', 'aaaa') %}", 60),
        doubled("'aaaa'", "{% set ns.x = ns.x.replace('a', 'aaaa') %}", 60),
        doubled("'aaaa'", "{% set ns.x = [ns.x, ns.x] | join('a') %}", 60),
        doubled(
            "'aaaa'",
            "{% set ns.x = ns.x.join([ns.x, ns.x, ns.x]) %}",
            60,
        ),
        doubled("'aaaa'", "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}", 60),
        doubled("'aaaa'", "{% set ns.x = '{0}{0}'.format(ns.x) %}", 60),
        doubled(
            "'aaaa'",
            "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
            60,
        ),
        doubled(
            "'aaaa'",
            "{% set ns.x %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}",
            60,
        ),
        doubled("'a\\na'", "{% set ns.x = ns.x | indent(100000000) %}", 60),
        doubled("['a']", "{% set ns.x = ns.x + ns.x %}", 70),
        doubled("['a']", "{% set ns.x = ns.x * 1000 %}", 60),
        doubled("['a']", "{% set ns.x = [ns.x, ns.x] %}", 60) + "{{ ns.x }}",
        doubled("['a']", "{% set ns.x = [ns.x, ns.x] %}", 60) + "{{ ns.x | tojson }}",
        doubled("['a']", "{% set ns.x = [ns.x, ns.x] %}", 60) + "{{ ns.x == ns.x ~ '' }}",
        doubled("{}", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}", 60) + "{{ ns.x }}",
        doubled("['a']", "{% set ns.x = ns.x | chain(ns.x) %}", 60) + "{{ ns.x | list }}",
        doubled("['a']", "{% set ns.x = ns.x | zip(ns.x) %}", 60) + "{{ ns.x | list }}",
        "{% set ns = namespace(x='') %}{% for i in range(100000) %}{% set ns.x %}".to_owned()
            + &"raw text ".repeat(5_000)
            + "{% endset %}{% endfor %}",
        "{% set x %}{% for i in range(100000) %}".to_owned()
            + &"raw text ".repeat(5_000)
            + "{% endfor %}{% endset %}",
    ] {
        refused_render(template);
    }
}

#[test]
#[contract("S65")]
fn constants_are_not_expanded_while_a_template_is_compiled() {
    let term = "'a' * 99999999";
    for template in [
        format!("{{{{ {} }}}}", [term; 300].join(" ~ ")),
        format!("{{{{ {} }}}}", [term; 300].join(" + ")),
        format!("{{% set x = [{}] %}}", [term; 300].join(", ")),
        format!("{{{{ ('a' * 99999999 * 1) == ({term}) }}}}"),
    ] {
        refused_render(template);
    }
}

#[test]
#[contract("S65")]
fn allowed_work_cannot_be_repeated_without_bound() {
    for template in [
        "{% set c = 'a' %}{% for i in range(100000) %}{% set x = c * 99999999 %}{% endfor %}".to_owned(),
        "{% set c = 'a' * 1000000 %}{% set d = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = c == d %}{% endfor %}"
            .to_owned(),
        "{% set c = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = 'b' in c %}{% endfor %}".to_owned(),
        "{% set c = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = c[1:2] %}{% endfor %}".to_owned(),
        "{% set c = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = c | upper %}{% endfor %}".to_owned(),
        "{% set c = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = c.find('b') %}{% endfor %}".to_owned(),
        "{% set c = 'a' * 1000000 %}{% for i in range(100000) %}{% set x = c is startingwith(c) %}{% endfor %}"
            .to_owned(),
        "{% set l = range(100000) | list %}{% for i in range(100000) %}{% set x = l | sort %}{% endfor %}".to_owned(),
        "{% set l = range(100000) | list %}{% for i in range(100000) %}{% set x = -1 in l %}{% endfor %}".to_owned(),
        "{% set c = 'a' * 1000000 %}{% set x = range(100000) | map('replace', 1, c) | list %}".to_owned(),
        "{% set c = 'a' * 100000 %}{% set x = ([c] * 100000) | sort %}".to_owned(),
    ] {
        refused_render(template);
    }
}

#[test]
#[contract("S65")]
fn nesting_does_not_overflow_the_stack() {
    let tags = |open: &str, close: &str| open.repeat(2_000) + &close.repeat(2_000);
    for template in [
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}".to_owned(),
        "{% set ns = namespace(x={}) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}".to_owned(),
        "{% set ns = namespace(x={}) %}{% for i in range(100000) %}{% set ns.x = dict(a=ns.x) %}{% endfor %}"
            .to_owned(),
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}"
            .to_owned(),
        "{% set ns = namespace() %}{% set ns.x = ns %}".to_owned(),
        "{% set ns = namespace() %}{% set ns.x = [ns] %}".to_owned(),
        "{% set ns = namespace() %}{% macro m() %}{{ ns }}{% endmacro %}{% set ns.x = m %}".to_owned(),
        format!("{{{{ {} }}}}", vec!["1"; 16_000].join("+")),
        format!("{{{{ {} }}}}", vec!["x"; 16_000].join(".")),
        format!("{{{{ x{} }}}}", "|list".repeat(8_000)),
        format!("{{{{ {}x }}}}", "not ".repeat(12_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(30_000)),
        format!("{{{{ x{} }}}}", "[0]".repeat(10_000)),
        format!("{{{{ {}1 }}}}", "1 if 0 else ".repeat(4_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(4_000)),
        tags("{% if 1 %}", "{% endif %}"),
        tags("{% for i in [1] %}", "{% endfor %}"),
        format!("{{{{ {}{} }}}}", "[".repeat(10_000), "]".repeat(10_000)),
        format!("{{{{ {}{} }}}}", "(".repeat(10_000), ")".repeat(10_000)),
    ] {
        let ends = template.clone();
        bounded(&template.chars().take(120).collect::<String>(), move || {
            let model = load(SMALL, &ends).expect("a bad template does not fail the load");
            // It may render, if the render ends.
            let _ = model.chat_text(&chat(r#"[{"role":"user","content":"x"}]"#), 0);
        });
    }
}

/// Renders a template with a client's `chat_template_kwargs`.
fn render_with(template: &str, kwargs: &str) -> Result<String, PromptError> {
    let model = load(SMALL, template).expect("a bad template does not fail the load");
    let request = ChatRequest {
        chat_template_kwargs: Some(kwargs),
        ..chat(r#"[{"role":"user","content":"x"}]"#)
    };
    model.chat_text(&request, 0)
}

#[test]
#[contract("S65")]
fn a_clients_arguments_of_any_json_are_seen_by_the_template_as_the_engine_sees_them() {
    for (template, kwargs, expected) in [
        ("{{ x }}", r#"{"x": true}"#, "True"),
        ("{{ x[1].y }}", r#"{"x": [1, {"y": "b"}]}"#, "b"),
        (
            "{{ x | tojson }}",
            r#"{"x": {"a": [1, null]}}"#,
            r#"{"a": [1, null]}"#,
        ),
    ] {
        let text = render_with(template, kwargs).expect("it renders");
        assert_eq!(text, expected, "{template}");
    }
}

#[test]
#[contract("S65")]
fn a_clients_nested_arguments_are_held_by_the_limits_of_any_render() {
    let numbers = format!("[{}]", vec!["1"; 50_000].join(","));
    let text = "a".repeat(1_000_000);
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let in_all = "{% for a in x %}{% for b in x %}{% for c in x %}{{ a }}{% endfor %}{% endfor %}{% endfor %}";
    let doubled = "{% set ns = namespace(y=x) %}{% for i in range(60) %}{% set ns.y = ns.y + ns.y %}{% endfor %}";
    let shared = "{% set ns = namespace(y=x) %}{% for i in range(60) %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.y }}";
    let deeper = "{% set ns = namespace(y=x) %}{% for i in range(1000) %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.y }}";
    let walked = "{% macro walk(v) %}{% if v is iterable %}{% for w in v %}{{ walk(w) }}{{ walk(w) }}{% endfor %}{% endif %}\
                  {% endmacro %}{{ walk(x) }}";
    for (template, value) in [
        (in_all, numbers.clone()),
        (doubled, numbers.clone()),
        (shared, numbers.clone()),
        (
            "{% for a in x %}{{ x | tojson }}{% endfor %}",
            numbers.clone(),
        ),
        (
            "{% for a in x %}{% set y = x | sort %}{% endfor %}",
            numbers,
        ),
        (doubled, format!("\"{text}\"")),
        (shared, format!("\"{text}\"")),
        (
            "{% for i in range(100000) %}{{ x }}{% endfor %}",
            format!("\"{text}\""),
        ),
        ("{{ x * 100000 }}", format!("\"{text}\"")),
        (deeper, nested(100)),
        (walked, nested(100)),
        ("{{ x }}", nested(100_000)),
        ("{{ x | tojson }}", nested(100_000)),
    ] {
        let kwargs = format!("{{\"x\": {value}}}");
        let what = format!("{template} of {} bytes", kwargs.len());
        let refused = bounded(&what, move || render_with(template, &kwargs));
        assert!(
            matches!(
                refused,
                Err(PromptError::Refused(_)
                    | PromptError::Unsupported { .. }
                    | PromptError::NoTemplate(_))
            ),
            "{what}: {:?}",
            refused.map(|text| text.len())
        );
    }
}

/// Returns the fixture's file with one change.
fn changed(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut file: Value = serde_json::from_slice(&tokenizer_json()).expect("the fixture is JSON");
    change(&mut file);
    serde_json::to_vec(&file).expect("JSON can be written")
}

fn refused_load(what: &str, json: Vec<u8>) {
    let name = what.to_owned();
    bounded(what, move || {
        let error = load(&json, "").map(drop).expect_err(&name).to_string();
        assert!(
            error.starts_with("tokenizer.json is not usable: "),
            "{name}: {error}"
        );
    });
}

#[test]
#[contract("S64")]
fn ids_far_beyond_the_vocabulary_are_refused() {
    for id in [
        4_294_967_294_u64,
        4_294_967_295,
        1_000_000_000,
        200_000,
        u64::MAX,
    ] {
        refused_load(
            &format!("added token {id}"),
            changed(|file| file["added_tokens"][0]["id"] = json!(id)),
        );
        refused_load(
            &format!("token {id}"),
            changed(|file| file["model"]["vocab"]["far"] = json!(id)),
        );
    }
    let with_gap = changed(|file| {
        let highest = file["added_tokens"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|token| token["id"].as_u64())
            .max();
        let mut token = file["added_tokens"][0].clone();
        token["id"] = json!(highest.unwrap() + 1_000);
        token["content"] = json!("<|far|>");
        file["added_tokens"].as_array_mut().unwrap().push(token);
    });
    assert!(load(&with_gap, "").is_ok(), "reserved ids leave gaps");
}

#[test]
#[contract("S64")]
fn steps_that_expand_a_text_are_refused() {
    let mut charsmap = vec![4, 0, 0, 0, 0, 0, 0, 0];
    charsmap.extend(std::iter::repeat_n(b'a', 100_000));
    let charsmap = base64_of(&charsmap);
    let grow = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    for (what, step) in [
        (
            "long content",
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(1 << 20)}),
        ),
        (
            "regex content",
            json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "b".repeat(1 << 12)}),
        ),
        (
            "growing chain",
            json!({"type": "Sequence", "normalizers": vec![grow; 40]}),
        ),
        (
            "long prefix",
            json!({"type": "Prepend", "prepend": "b".repeat(1 << 20)}),
        ),
        (
            "character map",
            json!({"type": "Precompiled", "precompiled_charsmap": charsmap}),
        ),
        (
            "many steps",
            json!({"type": "Sequence", "normalizers": vec![json!({"type": "NFC"}); 100_000]}),
        ),
    ] {
        refused_load(what, changed(|file| file["normalizer"] = step));
    }
    let twice =
        json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    let template =
        json!({"type": "TemplateProcessing", "single": twice, "pair": [], "special_tokens": {}});
    refused_load(
        "repeated prompt",
        changed(|file| file["post_processor"] = template.clone()),
    );
    let steps = json!({"type": "Sequence", "processors": vec![template; 30]});
    refused_load(
        "repeated prompts",
        changed(|file| file["post_processor"] = steps),
    );
}

/// Encodes as in RFC 4648.
fn base64_of(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk
            .iter()
            .fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let character = LETTERS[(word >> (18 - 6 * index)) as usize & 63];
            text.push(if index > chunk.len() {
                '='
            } else {
                char::from(character)
            });
        }
    }
    text
}

#[test]
#[contract("S64")]
fn numbers_sizes_and_nesting_are_bounded() {
    let token = |id: usize| json!({"id": id, "content": format!("<{id}>"), "special": true});
    refused_load(
        "many added tokens",
        changed(|file| file["added_tokens"] = (0..300_000).map(token).collect()),
    );
    refused_load(
        "long added token",
        changed(|file| file["added_tokens"][0]["content"] = json!("x".repeat(1 << 20))),
    );
    refused_load(
        "long prefix",
        changed(|file| file["model"]["continuing_subword_prefix"] = json!("x".repeat(1 << 20))),
    );
    let pattern = json!({"type": "Split", "pattern": {"Regex": "(a|".repeat(100_000)}, "behavior": "Isolated"});
    refused_load(
        "long pattern",
        changed(|file| file["pre_tokenizer"] = pattern),
    );
    let nested = (0..100).fold(
        json!({"type": "NFC"}),
        |step, _| json!({"type": "Sequence", "normalizers": [step]}),
    );
    refused_load("nested steps", changed(|file| file["normalizer"] = nested));
    let words = json!({
        "type": "WordPiece", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]",
        "continuing_subword_prefix": "##", "max_input_chars_per_word": 1_000_000_000,
    });
    refused_load(
        "long words",
        changed(|file| (file["model"], file["added_tokens"]) = (words, json!([]))),
    );
    refused_load(
        "empty lists",
        [&b"{\"model\":["[..], &b"[],".repeat(10_000_000), b"[]]}"].concat(),
    );
    let file = String::from_utf8(tokenizer_json()).expect("the fixture is text");
    let again = file.trim_end().trim_end_matches('}').to_owned()
        + r#","added_tokens":[{"id":9,"content":"x"}]}"#;
    refused_load("a duplicate key", again.into_bytes());
}

#[test]
#[contract("F82")]
fn rendering_and_tokenization_end_when_their_caller_cancels() {
    let model = load(
        &tokenizer_json(),
        "{% for m in messages %}{% for n in range(100000) %}{% set x = m.content ~ n %}{% endfor %}{% endfor %}",
    )
    .expect("it loads");
    let flag = CancelFlag::default();
    assert!(flag.run(|| model.text_tokens("a b", false)).is_ok());
    flag.cancel();
    let error = flag.run(|| model.chat_text(&chat(r#"[{"role":"user","content":"x"}]"#), 0));
    assert!(matches!(error, Err(PromptError::Cancelled)), "{error:?}");
    assert!(matches!(
        flag.run(|| model.text_tokens("a b", false)),
        Err(PromptError::Cancelled)
    ));
    assert!(
        model.text_tokens("a b", false).is_ok(),
        "the flag applies only inside its own scope"
    );
}
