//! One conversation: the client's events in, the engine's events out, one response at a time.

use std::sync::Arc;

use futures_util::{SinkExt as _, StreamExt as _};
use http::HeaderMap;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio_tungstenite::{WebSocketStream, tungstenite::Message};

use super::events::{EventWriter, reply_item, response};
use crate::{
    generation::{EngineRestarted, RenderedToken},
    http::{
        SimApiError,
        chat_api::ChatApi,
        generate::{self, GenerationHead},
        lines,
        reply::{FinishedGeneration, RunningChoice, Usage},
        request,
        transfer::Transfer,
    },
    script::Channel,
    server_state::{RequestCounts, ServerState},
};

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The state of a conversation.
pub(super) struct RealtimeSession {
    state: Arc<ServerState>,
    /// Of the handshake.
    headers: HeaderMap,
    model: String,
    events: EventWriter,
    session: Value,
    /// The items so far, as messages of a chat.
    messages: Vec<Value>,
    running: Option<RunningResponse>,
}

/// A response that is being generated.
struct RunningResponse {
    id: String,
    item: String,
    choice: RunningChoice,
    finished: FinishedGeneration,
}

/// The conversation is over: its client left, or its engine restarted.
struct ConversationOver;

impl RealtimeSession {
    pub(super) fn new(state: Arc<ServerState>, headers: HeaderMap, model: String) -> Self {
        let events = EventWriter::new(generate::bare_id(&state, &headers));
        let session = json!({
            "type": "realtime", "object": "realtime.session", "id": events.session_id(), "model": model,
            "output_modalities": ["text"], "instructions": "", "max_output_tokens": "inf",
        });
        Self {
            state,
            headers,
            model,
            events,
            session,
            messages: Vec::new(),
            running: None,
        }
    }

    /// Converses until the client leaves.
    pub(super) async fn run(mut self, mut socket: Socket) {
        let created = json!({"session": self.session});
        let created = self.events.event("session.created", created);
        let mut events = vec![created];
        loop {
            for event in events {
                let text = Message::text(event.to_string());
                if socket.send(text).await.is_err() {
                    return;
                }
            }
            events = match self.next_events(&mut socket).await {
                Ok(events) => events,
                Err(ConversationOver) => return,
            };
        }
    }

    /// Waits for an event of the client or a token, and returns the events that follow.
    async fn next_events(&mut self, socket: &mut Socket) -> Result<Vec<Value>, ConversationOver> {
        let token = async {
            match &mut self.running {
                Some(running) => running.choice.generation.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            message = socket.next() => match message {
                Some(Ok(Message::Text(text))) => Ok(self.handle(&text).await),
                // Pings and the close frame are answered by the library.
                Some(Ok(_)) => Ok(Vec::new()),
                Some(Err(_)) | None => Err(ConversationOver),
            },
            rendered = token => match rendered {
                Ok(rendered) => Ok(self.token(&rendered)),
                Err(EngineRestarted) => Err(ConversationOver),
            },
        }
    }

    /// Answers an event of the client.
    async fn handle(&mut self, text: &str) -> Vec<Value> {
        let Ok(event) = serde_json::from_str::<Value>(text) else {
            return vec![
                self.events
                    .error("invalid_json", "The event is not JSON.", &Value::Null),
            ];
        };
        match event["type"].as_str() {
            Some("session.update") => vec![self.update(&event)],
            Some("conversation.item.create") => self.add(&event),
            Some("response.create") => self.respond(&event).await,
            Some("response.cancel") => match self.running.take() {
                Some(running) => self.end(running, "cancelled"),
                None => {
                    let message = "There is no response to cancel.";
                    vec![
                        self.events
                            .error("response_cancel_not_active", message, &event),
                    ]
                }
            },
            kind => {
                let message = format!("This simulated engine knows no event {kind:?}.");
                vec![self.events.error("unknown_event", &message, &event)]
            }
        }
    }

    /// Changes the session's members that are named.
    fn update(&mut self, event: &Value) -> Value {
        if let (Some(session), Some(update)) =
            (self.session.as_object_mut(), event["session"].as_object())
        {
            session.extend(update.clone());
        }
        let updated = json!({"session": self.session});
        self.events.event("session.updated", updated)
    }

    /// Adds a message.
    fn add(&mut self, event: &Value) -> Vec<Value> {
        let item = &event["item"];
        let texts: Option<Vec<&str>> = item["content"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|part| part["text"].as_str())
            .collect();
        let (Some("message"), Some(role), Some(texts)) =
            (item["type"].as_str(), item["role"].as_str(), texts)
        else {
            let message = "This simulated engine takes messages of texts only.";
            return vec![self.events.error("invalid_item", message, event)];
        };
        self.messages
            .push(json!({"role": role, "content": texts.join("")}));
        let mut item = item.clone();
        if item["id"].is_null() {
            item["id"] = self.events.next_id("item").into();
        }
        item["object"] = "realtime.item".into();
        item["status"] = "completed".into();
        let members = json!({"previous_item_id": event["previous_item_id"], "item": item});
        ["conversation.item.added", "conversation.item.done"]
            .map(|kind| self.events.event(kind, members.clone()))
            .into()
    }

    /// Begins a response.
    async fn respond(&mut self, event: &Value) -> Vec<Value> {
        if self.running.is_some() {
            let message = "A response is being generated: wait for it, or cancel it.";
            let code = "conversation_already_has_active_response";
            return vec![self.events.error(code, message, event)];
        }
        RequestCounts::add(&self.state.counts.requests);
        let choice = match self.start(&event["response"]).await {
            Ok(choice) => choice,
            Err(error) => {
                return vec![self.events.error("invalid_request", error.message(), event)];
            }
        };
        let (id, item) = (self.events.next_id("resp"), self.events.next_id("item"));
        let created = response(&id, "in_progress", &[], None);
        let added = reply_item(&item, "in_progress", None);
        let events = vec![
            self.events
                .event("response.created", json!({"response": created})),
            self.events.event(
                "response.output_item.added",
                json!({"response_id": id, "output_index": 0, "item": added}),
            ),
        ];
        self.running = Some(RunningResponse {
            finished: FinishedGeneration::new(&choice),
            id,
            item,
            choice,
        });
        events
    }

    /// Submits the conversation so far as a chat.
    async fn start(&self, overrides: &Value) -> Result<RunningChoice, SimApiError> {
        let setting = |name: &str| match &overrides[name] {
            Value::Null => self.session[name].clone(),
            given => given.clone(),
        };
        let instructions = setting("instructions");
        let instructions = instructions.as_str().filter(|text| !text.is_empty());
        let system = instructions.map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> = system.into_iter().chain(self.messages.clone()).collect();
        // "inf" is the default.
        let longest = setting("max_output_tokens");
        let longest = longest.as_u64().map_or(Value::Null, Value::from);
        let chat = request::chat([("messages", messages.into()), ("max_tokens", longest)])?;
        let head = GenerationHead {
            dialect: ChatApi::Chat,
            headers: &self.headers,
            model: self.model.clone(),
            transfer: Transfer::default(),
        };
        let mut choices = lines::start(&self.state, &head, chat).await?;
        choices.pop().ok_or_else(|| SimApiError::of_status(500))
    }

    /// Returns the events of one token.
    fn token(&mut self, rendered: &RenderedToken) -> Vec<Value> {
        let Some(mut running) = self.running.take() else {
            return Vec::new();
        };
        running.finished.record(&running.choice, rendered);
        let mut events = Vec::new();
        if rendered.text.channel == Channel::Content && !rendered.text.text.is_empty() {
            let mut delta = place(&running);
            delta["delta"] = rendered.text.text.as_str().into();
            events.push(self.events.event("response.output_text.delta", delta));
        }
        if rendered.ending.is_some() {
            events.extend(self.end(running, "completed"));
        } else {
            self.running = Some(running);
        }
        events
    }

    /// Returns the last events of a response, which becomes a part of the conversation.
    fn end(&mut self, running: RunningResponse, status: &str) -> Vec<Value> {
        let text = running.finished.content.as_str();
        let mut whole = place(&running);
        whole["text"] = text.into();
        let item = reply_item(&running.item, status, Some(text));
        let usage = Usage::of(std::slice::from_ref(&running.finished));
        let done = response(
            &running.id,
            status,
            std::slice::from_ref(&item),
            Some(usage),
        );
        self.messages
            .push(json!({"role": "assistant", "content": text}));
        let of_item = json!({"response_id": running.id, "output_index": 0, "item": item});
        vec![
            self.events.event("response.output_text.done", whole),
            self.events.event("response.output_item.done", of_item),
            self.events
                .event("response.done", json!({"response": done})),
        ]
    }
}

/// Returns the members that say where in a response a text belongs.
fn place(running: &RunningResponse) -> Value {
    json!({
        "response_id": running.id, "item_id": running.item, "output_index": 0, "content_index": 0,
    })
}
