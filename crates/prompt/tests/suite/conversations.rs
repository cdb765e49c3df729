//! What is remembered of earlier turns changes no id.

mod generator;

use std::{path::PathBuf, sync::Arc};

use kv_blocks::{BlockSize, HashScheme, PromptBlocks};
use prompt::{
    Artefacts, ChatRequest, ConversationMemory, ConversationTurn, PromptModel, SaltGroup,
};
use serde_json::{Value, json};

use self::generator::Conversation;
use crate::recorded;

const SCHEME: HashScheme = HashScheme::Xxh3 { seed: 1337 };
const NOW: i64 = 1_762_000_205;

/// A template that prints the thinking of the turns after the last user message only, the date, and
/// each role in a macro.
const THINKING: &str = "\
{%- set ns = namespace(last=-1) -%}
{%- for message in messages[::-1] -%}
    {%- if ns.last == -1 and message.role == 'user' -%}
        {%- set ns.last = messages | length - 1 - loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{%- macro head(role) -%}{{- '<|im_start|>' ~ role ~ '\\n' -}}{%- endmacro -%}
{{- head('system') ~ 'Today is ' ~ strftime_now('%d %B') -}}
{%- for tool in tools or [] -%}{{- '\\n' ~ (tool | tojson) -}}{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- for message in messages -%}
    {{- head(message.role) -}}
    {%- if message.role == 'assistant' -%}
        {%- set content = message.content or '' -%}
        {%- if '</think>' in content and loop.index0 < ns.last -%}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {%- endif -%}
        {{- content -}}
        {%- for call in message.tool_calls or [] -%}
            {{- '\\n<call>' ~ (call.function | tojson) ~ '</call>' -}}
        {%- endfor -%}
    {%- else -%}
        {{- message.content | trim -}}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- head('assistant') -}}
    {%- if enable_thinking is defined and not enable_thinking -%}{{- '<think></think>' -}}{%- endif -%}
{%- endif -%}";

/// A template that takes parts, refuses two messages of one role in a row, and knows developers.
const PARTS: &str = "\
{%- for message in messages -%}
    {%- if not loop.first and messages[loop.index0 - 1].role == message.role and message.role == 'user' -%}
        {{- raise_exception('roles must alternate') -}}
    {%- endif -%}
    {{- '<|im_start|>' + ('system' if message.role == 'developer' else message.role) + '\\n' -}}
    {%- for part in message['content'] -%}
        {%- if part.type == 'text' -%}{{- part.text -}}{%- endif -%}
    {%- endfor -%}
    {{- '<|im_end|>' -}}
    {%- if loop.last and enable_thinking -%}{{- ' last of ' ~ loop.length -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

fn simulated() -> PromptModel {
    let assets = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../engine-sim/assets");
    let read = |name: &str| std::fs::read(assets.join(name)).expect("the file is there");
    load(
        &read("tokenizer.json"),
        Some(&read("tokenizer_config.json")),
        None,
    )
}

fn tiny_qwen_with(template: &str) -> PromptModel {
    load(
        &recorded::fixture("tiny-qwen/tokenizer.json"),
        None,
        Some(template),
    )
}

fn load(tokenizer: &[u8], config: Option<&[u8]>, template: Option<&str>) -> PromptModel {
    PromptModel::load(Artefacts {
        tokenizer_json: tokenizer,
        tokenizer_config: config,
        chat_template: template,
    })
    .expect("the files are usable")
}

fn models() -> Vec<PromptModel> {
    // Two templates, one of them for chats with tools.
    let two = json!({"chat_template": [
        {"name": "default", "template": PARTS},
        {"name": "tool_use", "template": THINKING},
    ]});
    let qwen = recorded::fixture("tiny-qwen/tokenizer.json");
    vec![
        recorded::tiny_qwen(),
        simulated(),
        tiny_qwen_with(THINKING),
        tiny_qwen_with(PARTS),
        load(&qwen, Some(two.to_string().as_bytes()), None),
    ]
}

/// What a request is answered with: its ids, or the error.
type Answer = Result<Vec<u32>, String>;

fn continued(
    model: &PromptModel,
    memory: &ConversationMemory,
    chat: &ChatRequest<'_>,
    now: i64,
) -> Result<prompt::TokenizedTurn, String> {
    ConversationTurn::find(model, memory, SaltGroup::UNSALTED, *chat)
        .render(now)
        .and_then(|turn| turn.tokenize(SCHEME))
        .map_err(|error| error.to_string())
}

/// Checks a request against the whole computation, and returns the tokens that were computed.
fn check(
    (model, whole): (&PromptModel, &PromptModel),
    memory: &ConversationMemory,
    chat: &ChatRequest<'_>,
    now: i64,
) -> Option<u32> {
    let expected: Answer = whole
        .chat_tokens(chat, now)
        .map(|found| found.tokens)
        .map_err(|error| error.to_string());
    let found = continued(model, memory, chat, now);
    let ids = found
        .as_ref()
        .map(|found| found.blocks.tokens().expect("a chat has tokens").to_vec())
        .map_err(Clone::clone);
    assert_eq!(ids, expected, "{chat:?}");
    let found = found.ok()?;
    for size in [1, 16] {
        let size = BlockSize::new(size).expect("it is a size");
        let whole = PromptBlocks::of_tokens(
            SCHEME,
            Arc::clone(found.blocks.tokens().expect("a chat has tokens")),
        );
        assert_eq!(found.blocks.chain(size), whole.chain(size));
    }
    Some(found.new_tokens)
}

#[test]
fn generated_conversations_have_the_ids_of_the_whole_computation() {
    const CONVERSATIONS: u64 = 10_000;
    let (models, wholes) = (models(), models());
    let memory = ConversationMemory::default();
    let (mut turns, mut all, mut computed) = (0, 0_u64, 0_u64);
    for seed in 0..CONVERSATIONS {
        let mut conversation = Conversation::new(seed);
        for _ in 0..2 + seed % 4 / 3 {
            let model = conversation.model(models.len());
            let now = NOW + conversation.days() * 86_400;
            let pair = (&models[model], &wholes[model]);
            let new = conversation.with_request(|chat| check(pair, &memory, chat, now));
            if let Some(new) = new {
                turns += 1;
                computed += u64::from(new);
                all += conversation.bytes() as u64 / 4;
            }
            conversation.change();
        }
    }
    assert!(
        turns > CONVERSATIONS * 3 / 2,
        "{turns} turns were not refused"
    );
    assert!(
        computed < all / 3,
        "{computed} of about {all} tokens were computed"
    );
}

#[test]
fn recorded_chats_continue_long_ones_with_the_engines_ids() {
    let (model, whole) = (recorded::tiny_qwen(), recorded::tiny_qwen());
    let memory = ConversationMemory::default();
    let long = json!({"role": "system", "content": prompt::sample_text(6_000)});
    let mut chats = 0;
    for line in recorded::lines("tokens-tiny-qwen.jsonl") {
        let request = &line["request"];
        let Some(messages) = request["messages"].as_array() else {
            continue;
        };
        let field = |name: &str| request.get(name).map(Value::to_string);
        let flag = |name: &str, otherwise| {
            request
                .get(name)
                .and_then(Value::as_bool)
                .unwrap_or(otherwise)
        };
        let (tools, kwargs) = (field("tools"), field("chat_template_kwargs"));
        for messages in [messages.clone(), [&[long.clone()][..], messages].concat()] {
            let messages = Value::from(messages).to_string();
            let chat = ChatRequest {
                messages: &messages,
                tools: tools.as_deref(),
                documents: None,
                chat_template: None,
                chat_template_kwargs: kwargs.as_deref(),
                reasoning_effort: None,
                add_generation_prompt: flag("add_generation_prompt", true),
                continue_final_message: flag("continue_final_message", false),
                add_special_tokens: flag("add_special_tokens", false),
            };
            check((&model, &whole), &memory, &chat, 0);
            chats += 1;
        }
    }
    assert_eq!(chats, 64);
}

/// Templates whose loop over the messages depends on what is elsewhere, one way each.
const ODD_LOOPS: [&str; 23] = [
    "{{ x }}{% set x = message.role %}",
    "{% if message.role == 'user' %}{% set x = message.content %}{% endif %}{{ x }}",
    "{% set ns.seen = ns.seen ~ message.role %}{{ ns.seen }}",
    "{{ ns.seen }}{{ count }}",
    "{{ messages[-1].role }}",
    "{{ messages[loop.index0 - 1].role }}",
    "{{ messages[loop.index0 - 2].role }}{{ messages[loop.index0 + 1].role }}",
    "{{ messages[loop.index0 + 2].role }}",
    "{{ messages[loop.index].role }}{{ loop.nextitem.role }}{{ loop.previtem.role }}",
    "{{ messages | length }}{{ loop.revindex }}",
    "{{ loop.last }}{{ loop.first }}{{ loop.index }}",
    "{% if message.role == 'tool' %}{% break %}{% endif %}{{ message.role }}",
    "{% if message.role == 'tool' %}{% continue %}{% endif %}{{ message.role }}",
    "{% for other in messages %}{{ other.role }}{% endfor %}",
    "{% for part in message.content | list %}{{ loop.length }}{{ loop.last }}{% endfor %}",
    "{% for part in [1, 2] %}{{ y }}{% set y = part ~ message.role %}{% endfor %}",
    "{{ name(message.role) }}{{ enable_thinking }}",
    "{{ last(message.role) }}",
    "{{ either(message.role) }}",
    "{% set list = [message.role] %}{{ list[0] }}{{ messages[0].role }}",
    "{{ strftime_now('%d') }}",
    "{% with z = message.role %}{{ z }}{% endwith %}{{ z }}",
    "{{ raise_exception('no tools') if message.role == 'tool' and loop.last else '' }}{{ tools | length }}",
];

/// Returns a template with this in its loop over the messages.
fn with_loop(inside: &str) -> String {
    let before = "{% set ns = namespace(seen='') %}{% set count = 0 %}\
        {% for m in messages %}{% set ns.seen = ns.seen ~ m.content[:1] if m.role == 'tool' else ns.seen %}{% endfor %}\
        {% macro name(role) %}[{{ role }}{{ enable_thinking }}]{% endmacro %}\
        {% set tools = tools or [] %}";
    // A macro sees the value at its own place.
    let ending = "{% set ending = messages[-1].role %}\
        {% macro last(role) %}[{{ role }}{{ ending }}]{% endmacro %}{% set ending = '' %}";
    let ending = if inside.contains("last(") { ending } else { "" };
    let either = "{% if messages[-1].role == 'tool' %}{% macro either(role) %}<{{ role }}>{% endmacro %}\
        {% else %}{% macro either(role) %}({{ role }}){% endmacro %}{% endif %}";
    let either = if inside.contains("either(") {
        either
    } else {
        ""
    };
    let after = "{{ ns.seen }}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}";
    format!(
        "{before}{ending}{either}{{% for message in messages %}}<|im_start|>{{{{ message.content }}}}{inside}<|im_end|>\n{{% endfor %}}{after}"
    )
}

#[test]
fn loops_that_look_elsewhere_are_rendered_as_if_whole() {
    let mut turns = 0;
    for (number, inside) in ODD_LOOPS.iter().enumerate() {
        let [model, whole] = [0; 2].map(|_| tiny_qwen_with(&with_loop(inside)));
        assert_eq!(model.template_problem(), None, "{inside}");
        let memory = ConversationMemory::default();
        for seed in 0..20 {
            let mut conversation = Conversation::new(1_000 * number as u64 + seed);
            for _ in 0..4 {
                let pair = (&model, &whole);
                let found = conversation.with_request(|chat| check(pair, &memory, chat, NOW));
                turns += usize::from(found.is_some());
                conversation.change();
            }
        }
    }
    assert!(turns > 500, "{turns}");
}
