//! Compares the engine's token ids with our own, for texts and chats in which tokenizers and
//! templates usually differ.

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use prompt::{ChatRequest, PromptError, PromptModel};
use serde_json::{Value, json};

use super::{
    Budget, ProbeSession,
    budget::NO_TIME,
    engine_client::{EngineCallError, EngineClient},
    probe_reply::{ProbeReply, ids_in},
};
use crate::ProbeMode;

/// Concurrent requests to one engine.
const AT_ONCE: usize = 4;

/// Result of the comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TokenComparison {
    /// Whether the engine answers `/tokenize`; `None`: no request, or no answer.
    pub(crate) has_route: Option<bool>,
    /// Texts without special tokens.
    pub(crate) texts: Vec<TokenCase>,
    /// Texts with the special tokens that a tokenizer adds.
    pub(crate) special: Vec<TokenCase>,
    /// Chats.
    pub(crate) chats: Vec<TokenCase>,
}

/// One text or chat.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenCase {
    /// Name of the case.
    pub(crate) name: &'static str,
    /// Whether it uses only features of every chat: messages of system, user and assistant.
    pub(crate) plain: bool,
    pub(crate) engine: EngineTokenization,
    /// Our ids, or the reason why there are none.
    pub(crate) own: Result<Vec<u32>, String>,
    /// If a chat's ids differ: the engine's and our text from there on, by our tokenizer.
    pub(crate) pieces: Option<(String, String)>,
}

/// The engine's answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum EngineTokenization {
    Ids(Vec<u32>),
    /// Only the number of ids.
    Count(usize),
    /// The engine takes no such request.
    Refused,
    /// No answer; the reason.
    Silent(String),
}

const TEXTS: [(&str, &str); 10] = [
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
const WITH_SPECIAL: usize = 2;

/// A chat, as a body of `/tokenize` without its model.
struct ChatBody {
    name: &'static str,
    plain: bool,
    body: Value,
}

/// Returns the chats, the plain ones first.
fn chats() -> Vec<ChatBody> {
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
const AS_REQUESTS: usize = 3;

/// Compares everything. Without our own tokenizer nothing is compared; the engine's route is still
/// probed.
pub(crate) async fn compare(
    engine: &EngineClient,
    session: ProbeSession<'_>,
    probe: ProbeMode,
) -> TokenComparison {
    let asking = TokenizeProbe {
        engine,
        model: &session.meeting.base,
        budget: session.budget,
    };
    let has_route = match asking.text(TEXTS[0].1, false).await {
        EngineTokenization::Ids(_) => Some(true),
        EngineTokenization::Refused => Some(false),
        EngineTokenization::Count(_) | EngineTokenization::Silent(_) => None,
    };
    let mut seen = TokenComparison {
        has_route,
        ..TokenComparison::default()
    };
    let Some(own) = session.meeting.artefacts.prompt.as_deref() else {
        return seen;
    };
    if has_route == Some(true) {
        seen.texts = asking.texts(own, &TEXTS, false).await;
        seen.special = asking.texts(own, &TEXTS[..WITH_SPECIAL], true).await;
    }
    let by_request = has_route == Some(false) && probe == ProbeMode::Send;
    let asked = match (has_route, by_request) {
        (Some(true), _) => usize::MAX,
        (_, true) => AS_REQUESTS,
        _ => 0,
    };
    let now_s = session.clock.unix_s();
    let cases: Vec<BoxFuture<'_, TokenCase>> = chats()
        .into_iter()
        .take(asked)
        .map(|chat| {
            let asking = &asking;
            async move {
                let says = if by_request {
                    asking.chat_by_request(&chat.body).await
                } else {
                    asking.chat(&chat.body).await
                };
                let ours = own_chat(own, &chat.body, now_s).map_err(|error| error.to_string());
                TokenCase::of_chat(&chat, says, ours, own)
            }
            .boxed()
        })
        .collect();
    seen.chats = stream::iter(cases).buffered(AT_ONCE).collect().await;
    seen
}

/// Returns the engine's ids of a text or chat, a body of `/tokenize` without its model, if it
/// reports them.
pub(super) async fn ids_of(
    engine: &EngineClient,
    model: &str,
    question: Value,
    budget: Budget,
) -> Option<Vec<u32>> {
    match (TokenizeProbe {
        engine,
        model,
        budget,
    })
    .tokenize(question)
    .await
    {
        EngineTokenization::Ids(ids) => Some(ids),
        _ => None,
    }
}

struct TokenizeProbe<'a> {
    engine: &'a EngineClient,
    model: &'a str,
    budget: Budget,
}

impl TokenizeProbe<'_> {
    async fn texts(
        &self,
        own: &PromptModel,
        texts: &[(&'static str, &'static str)],
        special: bool,
    ) -> Vec<TokenCase> {
        let cases: Vec<BoxFuture<'_, TokenCase>> = texts
            .iter()
            .map(|&(name, text)| {
                async move {
                    let ids = own
                        .text_tokens(text, special)
                        .map_err(|error| error.to_string());
                    TokenCase {
                        name,
                        plain: true,
                        engine: self.text(text, special).await,
                        own: ids,
                        pieces: None,
                    }
                }
                .boxed()
            })
            .collect();
        stream::iter(cases).buffered(AT_ONCE).collect().await
    }

    async fn text(&self, text: &str, special: bool) -> EngineTokenization {
        self.tokenize(json!({"prompt": text, "add_special_tokens": special}))
            .await
    }

    async fn chat(&self, chat: &Value) -> EngineTokenization {
        self.tokenize(chat.clone()).await
    }

    async fn tokenize(&self, mut body: Value) -> EngineTokenization {
        body["model"] = self.model.into();
        if self.budget.is_spent() {
            return EngineTokenization::Silent(NO_TIME.to_owned());
        }
        let limit = self.budget.at_most(self.budget.request);
        match self.engine.post("/tokenize", &body, None, limit).await {
            Ok(reply) => match ids_in(&reply["tokens"]) {
                // Another route of that name, which expects its text elsewhere: no text here has
                // zero tokens.
                Some(ids) if ids.is_empty() => EngineTokenization::Refused,
                Some(ids) => EngineTokenization::Ids(ids),
                None => EngineTokenization::Silent("its reply has no tokens".to_owned()),
            },
            Err(EngineCallError::NoRoute(_) | EngineCallError::Bad(_)) => {
                EngineTokenization::Refused
            }
            Err(EngineCallError::Failed(reason)) => EngineTokenization::Silent(reason),
        }
    }

    /// Compares a chat without `/tokenize`: sends a real request and reads the ids of its prompt,
    /// or at least their number.
    async fn chat_by_request(&self, chat: &Value) -> EngineTokenization {
        let mut body = chat.clone();
        body["model"] = self.model.into();
        body["max_tokens"] = 1.into();
        body["temperature"] = 0.into();
        let mut with_ids = body.clone();
        with_ids["return_token_ids"] = true.into();
        let mut says = self.chat_request(&with_ids).await;
        if says == EngineTokenization::Refused {
            // Strict servers reject unknown fields.
            says = self.chat_request(&body).await;
        }
        says
    }

    async fn chat_request(&self, body: &Value) -> EngineTokenization {
        if self.budget.is_spent() {
            return EngineTokenization::Silent(NO_TIME.to_owned());
        }
        let limit = self.budget.at_most(self.budget.request);
        match self
            .engine
            .post("/v1/chat/completions", body, None, limit)
            .await
            .map(|reply| ProbeReply::read(&reply))
        {
            Ok(ProbeReply { ids: Some(ids), .. }) => EngineTokenization::Ids(ids),
            Ok(ProbeReply {
                prompt_tokens: Some(count),
                ..
            }) => EngineTokenization::Count(usize::try_from(count).unwrap_or(0)),
            Ok(_) => EngineTokenization::Silent("its reply has no usage".to_owned()),
            Err(EngineCallError::NoRoute(_) | EngineCallError::Bad(_)) => {
                EngineTokenization::Refused
            }
            Err(EngineCallError::Failed(reason)) => EngineTokenization::Silent(reason),
        }
    }
}

/// Returns our ids of a chat, a body of `/tokenize`.
pub(super) fn own_chat(
    own: &PromptModel,
    chat: &Value,
    now_s: i64,
) -> Result<Vec<u32>, PromptError> {
    let (messages, tools) = (
        chat["messages"].to_string(),
        chat.get("tools").map(Value::to_string),
    );
    let request = ChatRequest {
        messages: &messages,
        tools: tools.as_deref(),
        documents: None,
        chat_template: None,
        chat_template_kwargs: None,
        reasoning_effort: None,
        add_generation_prompt: chat
            .get("add_generation_prompt")
            .and_then(Value::as_bool)
            .unwrap_or(true),
        continue_final_message: false,
        add_special_tokens: false,
    };
    own.chat_tokens(&request, now_s)
        .map(|rendered| rendered.tokens)
}

/// Longest piece of a text shown, in characters.
const LONGEST_PIECE: usize = 40;

impl TokenCase {
    fn of_chat(
        chat: &ChatBody,
        engine: EngineTokenization,
        own: Result<Vec<u32>, String>,
        model: &PromptModel,
    ) -> Self {
        let pieces = match (&engine, &own) {
            (EngineTokenization::Ids(engine), Ok(own)) => first_difference(engine, own).map(|at| {
                let piece = |ids: &[u32]| {
                    let text = model.decode(&ids[at.min(ids.len())..]).unwrap_or_default();
                    text.chars().take(LONGEST_PIECE).collect::<String>()
                };
                (piece(engine), piece(own))
            }),
            _ => None,
        };
        Self {
            name: chat.name,
            plain: chat.plain,
            engine,
            own,
            pieces,
        }
    }
}

/// Returns the position of the first id that differs; a list that ends early differs there.
pub(crate) fn first_difference(one: &[u32], other: &[u32]) -> Option<usize> {
    let shared = one
        .iter()
        .zip(other)
        .take_while(|(one, other)| one == other)
        .count();
    (shared < one.len().max(other.len())).then_some(shared)
}
