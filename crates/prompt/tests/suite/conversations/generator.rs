//! Generated conversations, from one turn to the next.

use prompt::{ChatRequest, sample_text};
use serde_json::{Value, json};

/// A conversation, and the request that its next turn sends.
pub(super) struct Conversation {
    state: u64,
    model: usize,
    days: i64,
    messages: Vec<Value>,
    tools: Option<Value>,
    thinking: Option<bool>,
    /// Flags of the request; most have none.
    flags: u64,
    pretty: bool,
}

const TEXTS: [&str; 14] = [
    "yes",
    "",
    "  and now?\n",
    "naïve café 日本語 👨\u{200d}👩\u{200d}👧 e\u{301}",
    "a \"quoted\" \\ line\n\twith \u{1} escapes",
    "<|im_end|>",
    "text <|im_start|>user\n with marks<|im_end|>\n",
    "<|im_end",
    "|>",
    "\u{301}",
    "<think>some thoughts</think>\n\nthe answer",
    "x-anthropic-billing-header: 7\nrest",
    "{\"a\": [1, 2]}",
    " ",
];

impl Conversation {
    /// Starts a conversation; some of them have the same long beginning.
    pub(super) fn new(seed: u64) -> Self {
        let mut new = Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            model: 0,
            days: 0,
            messages: Vec::new(),
            tools: None,
            thinking: None,
            flags: 0,
            pretty: false,
        };
        let text = sample_text(4_200);
        let from = new.below(8) * 200;
        let from = text.floor_char_boundary(from);
        let long = format!("{}{}", &text[from..], &text[..from]);
        if new.below(10) == 0 {
            new.messages.push(json!({"role": "user", "content": long}));
            new.add(1);
        } else {
            new.messages
                .push(json!({"role": "system", "content": long}));
        }
        new.model = new.below(1_000);
        new.set_tools();
        let count = 1 + new.below(4);
        new.add(count);
        new
    }

    fn below(&mut self, limit: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from((self.state >> 20) % limit as u64).expect("it is below a small number")
    }

    fn text(&mut self) -> String {
        let texts = [0; 2].map(|_| TEXTS[self.below(TEXTS.len())]);
        match self.below(3) {
            0 => texts.concat(),
            1 => format!("{} {}", texts[0], self.below(1_000_000)),
            _ => texts[0].to_owned(),
        }
    }

    fn set_tools(&mut self) {
        let name = ["search", "größe"][self.below(2)];
        self.tools = (self.below(2) == 0).then(|| {
            json!([{"type": "function", "function": {"name": name, "description": "a tool",
                "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}])
        });
    }

    /// Adds messages.
    fn add(&mut self, count: usize) {
        for _ in 0..count {
            let text = self.text();
            let message = match self.below(12) {
                0..=3 => json!({"role": "user", "content": text}),
                4..=6 => json!({"role": "assistant", "content": text}),
                7 => {
                    json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
                    "function": {"name": "search", "arguments": format!("{{\"q\": {}}}", json!(text))}}]})
                }
                8 => json!({"role": "tool", "tool_call_id": "c1", "content": text}),
                9 => {
                    json!({"content": [{"type": "text", "text": text}, {"type": "text", "text": "b"}], "role": "user"})
                }
                10 => {
                    json!({"role": "assistant", "content": text, "reasoning_content": "some thoughts"})
                }
                _ => self.rare(text),
            };
            self.messages.push(message);
        }
    }

    /// Returns a message that few chats have.
    fn rare(&mut self, text: String) -> Value {
        match self.below(6) {
            0 => json!({"role": "developer", "content": text}),
            1 => json!({"role": "system", "content": text}),
            2 => {
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]})
            }
            3 => json!({"content": text}),
            4 => {
                json!({"role": "user", "content": text, "name": "n", "cache_control": {"type": "ephemeral"}})
            }
            _ => json!(7),
        }
    }

    /// Goes on to the next turn: mostly by more messages.
    pub(super) fn change(&mut self) {
        self.flags = match self.below(16) {
            0 => 1 + self.below(4) as u64,
            _ => 0,
        };
        let any = self.below(self.messages.len());
        match self.below(20) {
            0 => {
                let end = self.messages.len().min(any + 2);
                self.messages.drain(any..end);
                if self.messages.is_empty() {
                    self.add(1);
                }
            }
            1 => self.messages.truncate(any + 1),
            2 => {
                let text = self.text();
                self.set(any, "content", text.into());
            }
            3 => {
                let text = self.messages[0]["content"].as_str().unwrap_or_default();
                let edited = format!("{text} edited");
                self.set(0, "content", edited.into());
            }
            4 => self.set_tools(),
            5 => self.thinking = [None, Some(false), Some(true)][self.below(3)],
            6 => self.model = self.below(1_000),
            7 => self.days += 1,
            8 => self.pretty = !self.pretty,
            9 => self.set(any, "cache_control", json!({"type": "ephemeral"})),
            10 => return,
            _ => {}
        }
        let count = 1 + self.below(3);
        self.add(count);
    }

    fn set(&mut self, message: usize, key: &str, value: Value) {
        if let Some(members) = self.messages[message].as_object_mut() {
            members.insert(key.to_owned(), value);
        }
    }

    pub(super) fn model(&self, count: usize) -> usize {
        self.model % count
    }

    pub(super) fn days(&self) -> i64 {
        self.days
    }

    /// Returns the length of the messages.
    pub(super) fn bytes(&self) -> usize {
        Value::from(self.messages.clone()).to_string().len()
    }

    pub(super) fn with_request<T>(&self, work: impl FnOnce(&ChatRequest<'_>) -> T) -> T {
        let messages = if self.pretty {
            serde_json::to_string_pretty(&self.messages)
        } else {
            serde_json::to_string(&self.messages)
        };
        let messages = messages.expect("it is a list");
        let tools = self.tools.as_ref().map(Value::to_string);
        let kwargs = self
            .thinking
            .map(|thinking| json!({"enable_thinking": thinking}).to_string());
        work(&ChatRequest {
            messages: &messages,
            tools: tools.as_deref(),
            documents: None,
            chat_template: None,
            chat_template_kwargs: kwargs.as_deref(),
            reasoning_effort: (self.flags == 1).then_some("\"low\""),
            add_generation_prompt: self.flags < 2,
            continue_final_message: self.flags == 2,
            add_special_tokens: self.flags == 3,
        })
    }
}
