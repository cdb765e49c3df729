//! Templates of the families that are in use, in our own words: what each needs of the renderer.

use prompt::{Artefacts, ChatRequest, PromptError, PromptModel};

/// A tokenizer of whole words that puts `<s>` before a plain prompt.
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
    model.chat_text(chat, 1_762_000_205).expect("the template takes this chat")
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

const SPECIAL: &str = r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}}"#;

#[test]
fn chatml_with_reasoning_and_calls() {
    let model = model(CHATML, "{}");
    let messages = r#"[{"role":"user","content":"q"},
        {"role":"assistant","content":"<think>old</think>\n\na","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":\"é\"}"}}]},
        {"role":"assistant","content":"","reasoning_content":"\nhm\n"}]"#;
    assert_eq!(
        text(&model, &chat(messages)),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na\n<call>f {\"b\": 1, \"a\": \"é\"}</call><|im_end|>\n\
         <|im_start|>assistant\n<think>hm</think><|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn variables_of_the_client_reach_the_template() {
    let model = model(CHATML, "{}");
    let quiet = ChatRequest { chat_template_kwargs: Some(r#"{"enable_thinking":false}"#), ..chat("[]") };
    assert_eq!(text(&model, &quiet), "<|im_start|>assistant\n<think></think>");
    for own in [r#"{"messages":[]}"#, r#"{"tokenize":true}"#, r#"{"chat_template":"x"}"#] {
        let error = model.chat_text(&ChatRequest { chat_template_kwargs: Some(own), ..chat("[]") }, 0);
        assert!(matches!(error, Err(PromptError::Unsupported { .. })), "{own}");
    }
}

#[test]
fn the_reasoning_effort_reaches_the_template_and_says_whether_to_think() {
    let model = model("{{ reasoning_effort }} {{ enable_thinking }}", "{}");
    let with = |effort, kwargs| ChatRequest { reasoning_effort: effort, chat_template_kwargs: kwargs, ..chat("[]") };
    assert_eq!(text(&model, &with(Some("\"high\""), None)), "high True");
    assert_eq!(text(&model, &with(Some("\"none\""), None)), "none False");
    assert_eq!(text(&model, &with(Some("\"none\""), Some(r#"{"enable_thinking":true}"#))), "none True");
    assert_eq!(text(&model, &with(Some("\"low\""), Some(r#"{"reasoning_effort":"high"}"#))), "low True");
    assert_eq!(text(&model, &with(Some("null"), Some(r#"{"reasoning_effort":"high"}"#))), "high ");
    let odd = model.chat_text(&with(Some("7"), None), 0);
    assert!(matches!(odd, Err(PromptError::Json { field: "reasoning_effort", .. })), "{odd:?}");
}

#[test]
fn a_template_that_writes_its_own_start_is_not_given_a_second_one() {
    let model = model(BOS_FIRST, SPECIAL);
    let messages = r#"[{"role":"system","content":" be brief "},{"role":"user","content":" hello "}]"#;
    let rendered = model.chat_tokens(&chat(messages), 1_762_000_205).expect("the template takes this chat");
    assert_eq!(rendered.text, "<s>[head]Today: 01 Nov 2025\nbe brief[/head][user]hello</s>[assistant]");
    assert_eq!(rendered.tokens.iter().filter(|id| **id == 1).count(), 1);
    let doubled = ChatRequest { add_special_tokens: true, ..chat(messages) };
    let rendered = model.chat_tokens(&doubled, 0).expect("the template takes this chat");
    assert_eq!(rendered.tokens.iter().filter(|id| **id == 1).count(), 2);
    assert_eq!(model.text_tokens("hello", true).expect("any text has ids"), [1, 2]);
    assert_eq!(model.text_tokens("hello", false).expect("any text has ids"), [2]);
}

#[test]
fn tools_are_filled_in_as_the_engine_fills_them_in() {
    let model = model(BOS_FIRST, SPECIAL);
    let tools = r#"[{"function":{"parameters":{"z":1,"a":[]},"name":"f","strict":true}}]"#;
    let with_tools = ChatRequest { tools: Some(tools), ..chat(r#"[{"role":"user","content":"x"}]"#) };
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
fn a_template_s_own_refusal_is_an_error_with_its_words() {
    let model = model(ALTERNATING, SPECIAL);
    let good = r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]"#;
    assert_eq!(text(&model, &chat(good)), "<s>[INST] a [/INST]b</s>[INST] c [/INST]");
    let error =
        model.chat_text(&chat(r#"[{"role":"assistant","content":"b"}]"#), 0).expect_err("roles do not alternate");
    assert!(matches!(&error, PromptError::Template(reason) if reason.contains("roles must alternate")), "{error}");
}

#[test]
fn a_template_over_parts_gets_parts_and_its_blocks_are_trimmed() {
    let model = model(PARTS, "{}");
    let messages = r#"[{"role":"user","content":"plain"},{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},
        {"role":"tool","content":[{"type":"text","text":"r"}]}]"#;
    assert_eq!(text(&model, &chat(messages)), "user:\nplain\nuser:\none\ntwo\ntool:\nr\n");
}

#[test]
fn an_open_last_message_ends_where_its_text_ends() {
    let open = |template: &str, content: &str| {
        let messages = serde_json::json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]);
        let messages = messages.to_string();
        let open = ChatRequest { add_generation_prompt: false, continue_final_message: true, ..chat(&messages) };
        text(&model(template, SPECIAL), &open)
    };
    assert_eq!(open(CHATML, "partial "), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\npartial ");
    assert!(open(BOS_FIRST, "partial ").ends_with("[assistant]partial"), "the template trims");
    assert!(open(PARTS, "p q").ends_with("assistant:\np q"));
    let both = ChatRequest { continue_final_message: true, ..chat(r#"[{"role":"user","content":"q"}]"#) };
    assert!(matches!(model(CHATML, "{}").chat_text(&both, 0), Err(PromptError::Template(_))));
}

#[test]
fn what_only_the_engine_can_render_is_said_not_guessed() {
    let model = model(CHATML, "{}");
    for messages in [
        r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]"#,
        r#"[{"role":"system","content":"a"},{"role":"developer","content":"b"}]"#,
        r#"[{"role":"user","content":7}]"#,
        r#"[{"content":"x"}]"#,
        r#"["x"]"#,
        r#"[{"role":"assistant","tool_calls":[{"type":"custom"}]}]"#,
    ] {
        let error = model.chat_text(&chat(messages), 0);
        assert!(matches!(error, Err(PromptError::Unsupported { .. })), "{messages}: {error:?}");
    }
    let own = ChatRequest { chat_template: Some("\"x\""), ..chat("[]") };
    assert!(matches!(model.chat_text(&own, 0), Err(PromptError::Unsupported { .. })));
    assert!(matches!(
        model.chat_text(&chat(r#"[{"role":"user","content":"\ud800"}]"#), 0),
        Err(PromptError::Json { .. })
    ));
}

#[test]
fn a_developer_is_a_system_to_templates_that_do_not_know_the_role() {
    let messages = r#"[{"role":"developer","content":"rules"},{"role":"user","content":"x"}]"#;
    assert!(text(&model(CHATML, "{}"), &chat(messages)).starts_with("<|im_start|>system\nrules"));
    let knows = format!("{CHATML}{{# developer #}}");
    assert!(text(&model(&knows, "{}"), &chat(messages)).starts_with("<|im_start|>developer\nrules"));
}

#[test]
fn a_model_may_have_a_template_for_tools() {
    let config = r#"{"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"tools {{ tools | length }}"}]}"#;
    let artefacts =
        Artefacts { tokenizer_json: WORDS.as_bytes(), tokenizer_config: Some(config.as_bytes()), chat_template: None };
    let model = PromptModel::load(artefacts).expect("the test's own files are usable");
    assert_eq!(text(&model, &chat("[]")), "plain");
    assert_eq!(text(&model, &ChatRequest { tools: Some("[]"), ..chat("[]") }), "tools 0");
}

#[test]
fn a_broken_call_does_not_end_a_conversation() {
    let model = model(CHATML, "{}");
    for arguments in [r#""{broken""#, r#""[1]""#, r#""""#, "null", "7", "{}"] {
        let messages = format!(
            r#"[{{"role":"assistant","content":null,"tool_calls":[{{"function":{{"name":"f","arguments":{arguments}}}}}]}}]"#
        );
        assert!(text(&model, &chat(&messages)).contains("<call>f {}</call>"), "{arguments}");
    }
}
