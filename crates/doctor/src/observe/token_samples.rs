//! Texts and chats in which tokenizers and templates usually differ.

use serde_json::{Value, json};

/// Texts, by name.
pub(super) const TEXTS: [(&str, &str); 10] = [
    (
        "plain words",
        "The quick brown fox jumps over the lazy dog.",
    ),
    ("white space", "  two  spaces\n\n\ta tab \r\nand an end  "),
    ("digits", "1234567890 3.14159 1,000,000 2026-11-20T17:41:09"),
    (
        "accents",
        "na\u{ef}ve caf\u{e9} e\u{301} \u{dc}n\u{ef}c\u{f6}d\u{e9} \u{212b}",
    ),
    (
        "other scripts",
        "\u{6570}\u{636e} \u{434}\u{430}\u{43d}\u{43d}\u{44b}\u{435} \u{628}\u{64a}\u{627}\u{646}\u{627}\u{62a} \u{921}\u{947}\u{91f}\u{93e}",
    ),
    ("emoji", "\u{1f469}\u{200d}\u{1f467} \u{1f642}!"),
    (
        "code",
        "fn main() { let x = a[1] != b.c(\"d\"); }\n    return x;",
    ),
    ("markup", "<b>x</b> &amp; {\"a\": [1, null]}"),
    ("contractions", "I'm you're we'll DON'T it's"),
    (
        "special tokens as text",
        "<|im_start|>user <s> </s> <|endoftext|> [INST] <|eot_id|>",
    ),
];

/// How many of [`TEXTS`] are also compared with special tokens.
pub(super) const WITH_SPECIAL: usize = 2;

/// A chat, as a body of `/tokenize` without its model.
pub(super) struct ChatBody {
    pub(super) name: &'static str,
    pub(super) plain: bool,
    pub(super) body: Value,
}

/// Returns the chats, the plain ones first.
pub(super) fn chats() -> Vec<ChatBody> {
    let user = json!({"role": "user", "content": "How warm is it in Oslo?"});
    let system = json!({"role": "system", "content": "Answer briefly."});
    let assistant = json!({"role": "assistant", "content": "About ten degrees."});
    let tools = json!([{"type": "function", "function": {
        "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }}]);
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{
        "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Oslo\"}"},
    }]});
    let result =
        json!({"role": "tool", "tool_call_id": "call_1", "content": "{\"degrees\": 10.50}"});
    let parts = json!({"role": "user", "content": [{"type": "text", "text": "How warm"}, {"type": "text", "text": "is it?"}]});
    let developer = json!({"role": "developer", "content": "Answer briefly."});
    let chat = |name, plain, body| ChatBody { name, plain, body };
    vec![
        chat("a user message", true, json!({"messages": [user]})),
        chat(
            "a system message",
            true,
            json!({"messages": [system, user]}),
        ),
        chat(
            "a system message and turns",
            true,
            json!({"messages": [system, user, assistant, user]}),
        ),
        chat(
            "no generation prompt",
            false,
            json!({"messages": [user, assistant], "add_generation_prompt": false}),
        ),
        chat("tools", false, json!({"messages": [user], "tools": tools})),
        chat(
            "a tool call and its result",
            false,
            json!({"messages": [user, call, result], "tools": tools}),
        ),
        chat("content parts", false, json!({"messages": [parts]})),
        chat(
            "a developer message",
            false,
            json!({"messages": [developer, user]}),
        ),
    ]
}

/// Chats that are also sent as requests if the engine has no `/tokenize`.
pub(super) const AS_REQUESTS: usize = 3;
