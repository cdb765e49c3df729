//! The events of the engine's side, as OpenAI's realtime API has them.

use serde_json::{Value, json};

use crate::http::reply::Usage;

/// Makes the events of one conversation: their ids count up.
#[derive(Debug)]
pub(super) struct EventWriter {
    conversation: String,
    events: u64,
    objects: u64,
}

impl EventWriter {
    pub(super) fn new(conversation: String) -> Self {
        Self {
            conversation,
            events: 0,
            objects: 0,
        }
    }

    /// Returns the session's id.
    pub(super) fn session_id(&self) -> String {
        format!("sess_{}", self.conversation)
    }

    /// Returns a new id of an item or a response.
    pub(super) fn next_id(&mut self, kind: &str) -> String {
        self.objects += 1;
        format!("{kind}_{}_{}", self.conversation, self.objects)
    }

    /// Returns an event with these members.
    pub(super) fn event(&mut self, kind: &str, members: Value) -> Value {
        self.events += 1;
        let id = format!("event_{}_{}", self.conversation, self.events);
        let mut event = json!({"type": kind, "event_id": id});
        if let (Some(event), Value::Object(members)) = (event.as_object_mut(), members) {
            event.extend(members);
        }
        event
    }

    /// Returns the error about an event of the client.
    pub(super) fn error(&mut self, code: &str, message: &str, about: &Value) -> Value {
        let error = json!({
            "type": "invalid_request_error", "code": code, "message": message, "param": null,
            "event_id": about["event_id"],
        });
        self.event("error", json!({"error": error}))
    }
}

/// Returns the item of a reply with this text.
pub(super) fn reply_item(id: &str, status: &str, text: Option<&str>) -> Value {
    let content = text.map(|text| json!({"type": "output_text", "text": text}));
    let content: Vec<Value> = content.into_iter().collect();
    json!({
        "id": id, "object": "realtime.item", "type": "message", "status": status, "role": "assistant",
        "content": content,
    })
}

/// Returns a response with these items.
pub(super) fn response(id: &str, status: &str, output: &[Value], usage: Option<Usage>) -> Value {
    let usage = usage.map(|usage| {
        json!({
            "total_tokens": usage.prompt + usage.completion,
            "input_tokens": usage.prompt,
            "output_tokens": usage.completion,
            "input_token_details": {"text_tokens": usage.prompt, "cached_tokens": usage.cached},
            "output_token_details": {"text_tokens": usage.completion},
        })
    });
    json!({
        "id": id, "object": "realtime.response", "status": status, "status_details": null, "output": output,
        "output_modalities": ["text"], "usage": usage,
    })
}
