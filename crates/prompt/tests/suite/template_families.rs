//! Templates modelled on the families in use, each with its demands on the renderer.

use prompt::{Artefacts, ChatRequest, PromptError, PromptModel};

/// A tokenizer of whole words that adds `<s>` before a plain prompt.
const WORDS: &str = r#"{
  "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
  "added_tokens": [{"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
  "pre_tokenizer": {"type": "WhitespaceSplit"},
  "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
  "model": {"type": "WordLevel", "vocab": {"?": 0, "<s>": 1, "hello": 2, "user": 3}, "unk_token": "?"}
}"#;

fn model(template: &str, config: &str) -> PromptModel {
    let artefacts = Artefacts {
        tokenizer_json: WORDS.as_bytes(),
        tokenizer_config: Some(config.as_bytes()),
        chat_template: Some(template),
    };
    PromptModel::load(artefacts).expect("the test's own files are usable")
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

fn text(model: &PromptModel, chat: &ChatRequest<'_>) -> String {
    model
        .chat_text(chat, 1_762_000_205)
        .expect("the template takes this chat")
}

const CHATML: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' }}
    {%- if message.reasoning_content and loop.last %}
        {{- '<think>' ~ message.reasoning_content.strip('\\n') ~ '</think>' }}
    {%- endif %}
    {{- message.content.split('</think>')[-1].lstrip('\\n') }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<call>' ~ call.function.name ~ ' ' ~ (call.function.arguments | tojson) ~ '</call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think></think>' }}
    {%- endif %}
{%- endif %}";

const BOS_FIRST: &str = "\
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- if messages[0].role == 'system' %}
    {%- set ns.system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- '[head]' + 'Today: ' + strftime_now('%d %b %Y') + '\\n' + ns.system + '[/head]' }}
{%- if tools is not none %}
    {{- 'tools:' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- '\\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '[' + message['role'] + ']' + message['content'] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[assistant]' }}
{%- endif %}";

const ALTERNATING: &str = "\
{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}";

const PARTS: &str = "\
{% for message in messages %}
{{ message.role }}:
{% for part in message.content %}
{% if part.type == 'text' %}
{{ part.text }}
{% endif %}
{% endfor %}
{% if message.content is string %}
{{ message.content }}
{% endif %}
{% endfor %}";

/// Returns a chat of one message.
const ONE: &str = r#"[{"role":"user","content":"x"}]"#;

const SPECIAL: &str = r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}}"#;

#[test]
fn chatml_with_reasoning_and_calls() {
    let model = model(CHATML, "{}");
    let messages = r#"[{"role":"user","content":"q"},
        {"role":"assistant","content":"<think>old</think>\n\na","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":\"é\"}"}}]},
        {"role":"assistant","content":"","reasoning_content":"\nhm\n"}]"#;
    assert_eq!(
        text(&model, &chat(messages)),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na\n<call>f {\"b\": 1, \"a\": \"é\"}</call><|im_end|>\n\
         <|im_start|>assistant\n<think>hm</think><|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn template_variables_of_the_client_are_set() {
    let model = model(CHATML, "{}");
    let with = |kwargs| ChatRequest {
        chat_template_kwargs: Some(kwargs),
        ..chat(ONE)
    };
    let quiet = text(&model, &with(r#"{"enable_thinking":false}"#));
    assert!(
        quiet.ends_with("<|im_start|>assistant\n<think></think>"),
        "{quiet}"
    );
    let error = model.chat_text(&with(r#"{"messages":[]}"#), 0);
    assert!(matches!(error, Err(PromptError::Refused(_))), "{error:?}");
    for own in [r#"{"tools":[]}"#, r#"{"chat_template":"x"}"#] {
        let error = model.chat_text(&with(own), 0);
        assert!(
            matches!(error, Err(PromptError::Unsupported { .. })),
            "{own}: {error:?}"
        );
    }
}

#[test]
fn the_reasoning_effort_is_set_in_the_template_and_decides_on_thinking() {
    let model = model("{{ reasoning_effort }} {{ enable_thinking }}", "{}");
    let with = |effort, kwargs| ChatRequest {
        reasoning_effort: effort,
        chat_template_kwargs: kwargs,
        ..chat(ONE)
    };
    assert_eq!(text(&model, &with(Some("\"high\""), None)), "high True");
    assert_eq!(text(&model, &with(Some("\"none\""), None)), "none False");
    assert_eq!(
        text(
            &model,
            &with(Some("\"none\""), Some(r#"{"enable_thinking":true}"#))
        ),
        "none True"
    );
    assert_eq!(
        text(
            &model,
            &with(Some("\"low\""), Some(r#"{"reasoning_effort":"high"}"#))
        ),
        "low True"
    );
    assert_eq!(
        text(
            &model,
            &with(Some("null"), Some(r#"{"reasoning_effort":"high"}"#))
        ),
        "high "
    );
    let odd = model.chat_text(&with(Some("7"), None), 0);
    assert!(
        matches!(
            odd,
            Err(PromptError::Json {
                field: "reasoning_effort",
                ..
            })
        ),
        "{odd:?}"
    );
}

#[test]
fn a_template_with_its_own_start_token_gets_no_second_one() {
    let model = model(BOS_FIRST, SPECIAL);
    let messages =
        r#"[{"role":"system","content":" be brief "},{"role":"user","content":" hello "}]"#;
    let rendered = model
        .chat_tokens(&chat(messages), 1_762_000_205)
        .expect("the template takes this chat");
    assert_eq!(
        rendered.text,
        "<s>[head]Today: 01 Nov 2025\nbe brief[/head][user]hello</s>[assistant]"
    );
    assert_eq!(rendered.tokens.iter().filter(|id| **id == 1).count(), 1);
    let doubled = ChatRequest {
        add_special_tokens: true,
        ..chat(messages)
    };
    let rendered = model
        .chat_tokens(&doubled, 0)
        .expect("the template takes this chat");
    assert_eq!(rendered.tokens.iter().filter(|id| **id == 1).count(), 2);
    assert_eq!(
        model.text_tokens("hello", true).expect("any text has ids"),
        [1, 2]
    );
    assert_eq!(
        model.text_tokens("hello", false).expect("any text has ids"),
        [2]
    );
}

#[test]
fn tools_are_completed_as_in_the_engine() {
    let model = model(BOS_FIRST, SPECIAL);
    let tools = r#"[{"function":{"parameters":{"z":1,"a":[]},"name":"f","strict":true}}]"#;
    let with_tools = ChatRequest {
        tools: Some(tools),
        ..chat(r#"[{"role":"user","content":"x"}]"#)
    };
    let expected = r#"tools:{
    "type": "function",
    "function": {
        "name": "f",
        "description": null,
        "parameters": {
            "z": 1,
            "a": []
        },
        "strict": true
    }
}
[user]"#;
    let text = text(&model, &with_tools);
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_template_s_own_refusal_is_an_error_with_its_text() {
    let model = model(ALTERNATING, SPECIAL);
    let good = r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]"#;
    assert_eq!(
        text(&model, &chat(good)),
        "<s>[INST] a [/INST]b</s>[INST] c [/INST]"
    );
    let error = model
        .chat_text(&chat(r#"[{"role":"assistant","content":"b"}]"#), 0)
        .expect_err("roles do not alternate");
    assert!(
        matches!(&error, PromptError::Refused(reason) if reason.contains("roles must alternate")),
        "{error}"
    );
}

#[test]
fn a_template_for_parts_gets_parts_and_its_blocks_are_trimmed() {
    let model = model(PARTS, "{}");
    let messages = r#"[{"role":"user","content":"plain"},{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},
        {"role":"tool","content":[{"type":"text","text":"r"}]}]"#;
    assert_eq!(
        text(&model, &chat(messages)),
        "user:\nplain\nuser:\none\ntwo\ntool:\nr\n"
    );
}

#[test]
fn an_open_last_message_ends_where_its_text_ends() {
    let open = |template: &str, content: &str| {
        let messages = serde_json::json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]);
        let messages = messages.to_string();
        let open = ChatRequest {
            add_generation_prompt: false,
            continue_final_message: true,
            ..chat(&messages)
        };
        text(&model(template, SPECIAL), &open)
    };
    assert_eq!(
        open(CHATML, "partial "),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\npartial "
    );
    assert!(
        open(BOS_FIRST, "partial ").ends_with("[assistant]partial"),
        "the template trims"
    );
    assert!(open(PARTS, "p q").ends_with("assistant:\np q"));
    let both = ChatRequest {
        continue_final_message: true,
        ..chat(r#"[{"role":"user","content":"q"}]"#)
    };
    assert!(matches!(
        model(CHATML, "{}").chat_text(&both, 0),
        Err(PromptError::Refused(_))
    ));
}

#[test]
fn chats_that_only_the_engine_can_render_are_reported_and_not_guessed() {
    let model = model(CHATML, "{}");
    for messages in [
        r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]"#,
        r#"[{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"n\":1e999}"}}]}]"#,
    ] {
        let error = model.chat_text(&chat(messages), 0);
        assert!(
            matches!(error, Err(PromptError::Unsupported { .. })),
            "{messages}: {error:?}"
        );
    }
    let own = ChatRequest {
        chat_template: Some("\"x\""),
        ..chat(ONE)
    };
    assert!(matches!(
        model.chat_text(&own, 0),
        Err(PromptError::Unsupported { .. })
    ));
    assert!(matches!(
        model.chat_text(&chat(r#"[{"role":"user","content":"\ud800"}]"#), 0),
        Err(PromptError::Json { .. })
    ));
}

#[test]
fn the_developer_role_becomes_system_if_the_template_lacks_it() {
    let messages = r#"[{"role":"developer","content":"rules"},{"role":"user","content":"x"}]"#;
    assert!(text(&model(CHATML, "{}"), &chat(messages)).starts_with("<|im_start|>system\nrules"));
    let knows = format!("{CHATML}{{# 'developer' #}}");
    assert!(
        text(&model(&knows, "{}"), &chat(messages)).starts_with("<|im_start|>developer\nrules")
    );
    let late = r#"[{"role":"user","content":"x"},{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"system","content":"s"}]"#;
    assert!(
        text(&model(CHATML, "{}"), &chat(late))
            .starts_with("<|im_start|>system\na\nb\n\ns<|im_end|>\n<|im_start|>user")
    );
    assert!(
        text(&model(PARTS, "{}"), &chat(late)).starts_with("system:\na\nb\n\ns\nuser:"),
        "parts are also joined"
    );
}

#[test]
fn a_model_may_have_a_template_for_tools() {
    let config = r#"{"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"tools {{ tools | length }}"}]}"#;
    let artefacts = Artefacts {
        tokenizer_json: WORDS.as_bytes(),
        tokenizer_config: Some(config.as_bytes()),
        chat_template: None,
    };
    let model = PromptModel::load(artefacts).expect("the test's own files are usable");
    assert_eq!(text(&model, &chat(ONE)), "plain");
    assert_eq!(
        text(
            &model,
            &ChatRequest {
                tools: Some("[]"),
                ..chat(ONE)
            }
        ),
        "tools 0"
    );
}

#[test]
fn a_malformed_tool_call_does_not_fail_a_conversation() {
    let model = model(CHATML, "{}");
    for arguments in [
        r#""{broken""#,
        r#""[1]""#,
        r#""""#,
        r#""null""#,
        r#""7""#,
        r#""{}""#,
    ] {
        let messages = format!(
            r#"[{{"role":"assistant","content":null,"tool_calls":[{{"id":"c","type":"function","function":{{"name":"f","arguments":{arguments}}}}}]}}]"#
        );
        assert!(
            text(&model, &chat(&messages)).contains("<call>f {}</call>"),
            "{arguments}"
        );
    }
}

#[test]
fn only_a_template_s_exception_and_a_missing_variable_are_refusals() {
    let messages = r#"[{"role":"user","content":"a secret prompt","ignored":1e400}]"#;
    let render_error = |template: &str, messages: &str| {
        let error = model(template, "{}")
            .chat_text(&chat(messages), 0)
            .expect_err("the render fails");
        (error.is_refusal(), error.to_string())
    };
    let messages_without = r#"[{"role":"user","content":"a secret prompt"}]"#;
    for template in [
        "{{ raise_exception('no') }}",
        "{% macro inner() %}{{ raise_exception(messages | length) }}{% endmacro %}{{ inner() }}",
        "{{ missing.attribute }}",
    ] {
        let (refused, message) = render_error(template, messages_without);
        assert!(
            refused && !message.contains("secret"),
            "{template}: {message}"
        );
    }
    for template in [
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{{ strftime_now('%Q') }}",
        "{{ strftime_now() }}",
        "{{ messages | tojson(colour='red') }}",
        "{{ raise_exception | tojson }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages | nothing }}",
    ] {
        let (refused, message) = render_error(template, messages_without);
        assert!(
            !refused && message.ends_with("only in the engine"),
            "{template}: {message}"
        );
        assert!(!message.contains("secret"), "{template}: {message}");
    }
    let (refused, message) = render_error("{{ messages[0].content }}", messages);
    assert!(!refused && message.contains("messages"), "{message}");
}
