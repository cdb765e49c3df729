//! Response replies, whole and as events.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::{
    generation::RenderedToken,
    http::{
        SimApiError,
        reply::{FinishedGeneration, ReplyFormat, RunningChoice, Usage, named},
    },
    script::{Channel, StopCause, ToolCall},
    server_state::ServerState,
};

use super::{
    ResponseContext,
    items::{self, ItemStatus},
    object::{ResponseEnd, ResponseHead, response},
    store::StoredResponse,
};

/// A response under construction.
#[derive(Debug)]
pub(crate) struct ResponseReply {
    state: Arc<ServerState>,
    head: ResponseHead,
    frame: ResponseContext,
    /// Completed items.
    output: Vec<Value>,
    open: Option<OpenItem>,
    sequence: u64,
    cut: bool,
    usage: Usage,
}

/// The item under construction.
#[derive(Debug)]
struct OpenItem {
    /// The item's id, for the events about it.
    id: Value,
    channel: Channel,
    call: Option<ToolCall>,
    text: String,
}

impl ResponseReply {
    pub(crate) fn new(state: Arc<ServerState>, head: ResponseHead, frame: ResponseContext) -> Self {
        Self {
            state,
            head,
            frame,
            output: Vec::new(),
            open: None,
            sequence: 0,
            cut: false,
            usage: Usage::default(),
        }
    }

    /// Returns an event of this type, numbered.
    fn event(&mut self, kind: &str, fields: Value) -> Bytes {
        let mut event = Map::new();
        event.insert("type".to_owned(), kind.into());
        event.insert("sequence_number".to_owned(), self.sequence.into());
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        self.sequence += 1;
        named(&Value::Object(event))
    }

    /// Returns an event about the open item.
    fn about_item(&mut self, kind: &str, id: Value, mut fields: Value) -> Bytes {
        fields["item_id"] = id;
        fields["output_index"] = self.output.len().into();
        self.event(kind, fields)
    }

    fn item(&self, open: &OpenItem, status: ItemStatus) -> Value {
        let text = (status != ItemStatus::InProgress).then_some(open.text.as_str());
        match (open.channel, &open.call) {
            (Channel::Reasoning, _) => items::reasoning(&self.head.id, text, status),
            (Channel::Call(_), Some(call)) => {
                items::function_call(call, text.unwrap_or_default(), status)
            }
            _ => {
                let parts = text.map_or(json!([]), |text| json!([items::part(text)]));
                items::message(&self.head.id, parts, status)
            }
        }
    }

    fn begin(&mut self, channel: Channel, call: Option<ToolCall>) -> Vec<Bytes> {
        let mut open = OpenItem {
            id: Value::Null,
            channel,
            call,
            text: String::new(),
        };
        let item = self.item(&open, ItemStatus::InProgress);
        open.id = item["id"].clone();
        let index = self.output.len();
        let mut events = vec![self.event(
            "response.output_item.added",
            json!({"output_index": index, "item": item}),
        )];
        if channel == Channel::Content {
            let fields = json!({"content_index": 0, "part": items::part("")});
            events.push(self.about_item("response.content_part.added", open.id.clone(), fields));
        }
        self.open = Some(open);
        events
    }

    fn close(&mut self, status: ItemStatus) -> Vec<Bytes> {
        let Some(open) = self.open.take() else {
            return Vec::new();
        };
        let (item, text) = (self.item(&open, status), &open.text);
        let mut events = Vec::new();
        match open.channel {
            Channel::Reasoning => {
                let fields = json!({"content_index": 0, "text": text});
                events.push(self.about_item("response.reasoning_text.done", open.id, fields));
            }
            Channel::Call(_) => {
                let fields = json!({"name": item["name"], "arguments": text});
                events.push(self.about_item(
                    "response.function_call_arguments.done",
                    open.id,
                    fields,
                ));
            }
            _ => {
                let fields = json!({"content_index": 0, "text": text, "logprobs": []});
                events.push(self.about_item("response.output_text.done", open.id.clone(), fields));
                let fields = json!({"content_index": 0, "part": items::part(text)});
                events.push(self.about_item("response.content_part.done", open.id, fields));
            }
        }
        let index = self.output.len();
        events.push(self.event(
            "response.output_item.done",
            json!({"output_index": index, "item": item}),
        ));
        self.output.push(item);
        events
    }

    fn status(&self) -> ItemStatus {
        if self.cut {
            ItemStatus::Incomplete
        } else {
            ItemStatus::Completed
        }
    }

    /// Ends the response and stores it, so that other requests can continue it.
    fn ended(&mut self) -> Value {
        let end = ResponseEnd {
            usage: self.usage,
            cut: self.cut,
        };
        let whole = response(&self.head, &self.frame, &self.output, Some(end));
        if self.frame.store {
            let mut messages = std::mem::take(&mut self.frame.messages);
            // The output is an input like any other.
            messages.extend(super::input::messages(&whole["output"]).unwrap_or_default());
            let response = StoredResponse {
                whole: whole.clone(),
                input: self.frame.request["input"].clone(),
                messages,
            };
            let id = whole["id"].as_str().unwrap_or_default();
            self.state.responses.put(id, response);
        }
        whole
    }
}

impl ReplyFormat for ResponseReply {
    fn whole(&mut self, finished: &[FinishedGeneration]) -> Value {
        self.usage = Usage::of(finished);
        for one in finished {
            self.cut = one.ending == StopCause::Length;
            let status = self.status();
            let id = self.head.id.clone();
            self.output.extend(
                one.reasoning
                    .as_ref()
                    .map(|text| items::reasoning(&id, Some(text), status)),
            );
            if !one.content.is_empty() || (one.reasoning.is_none() && one.calls.is_empty()) {
                self.output.push(items::message(
                    &id,
                    json!([items::part(&one.content)]),
                    status,
                ));
            }
            let calls = one
                .calls
                .iter()
                .map(|(call, arguments)| items::function_call(call, arguments, status));
            self.output.extend(calls);
        }
        self.ended()
    }

    fn token(&mut self, line: &RunningChoice, rendered: &RenderedToken) -> Vec<Bytes> {
        let mut events = Vec::new();
        if self.sequence == 0 {
            for kind in ["response.created", "response.in_progress"] {
                let begun = response(&self.head, &self.frame, &[], None);
                events.push(self.event(kind, json!({"response": begun})));
            }
        }
        self.cut |= rendered.ending == Some(StopCause::Length);
        let channel = rendered.text.channel;
        if channel == Channel::Hidden {
            return events;
        }
        if self
            .open
            .as_ref()
            .is_none_or(|open| open.channel != channel)
        {
            events.extend(self.close(ItemStatus::Completed));
            let call = match channel {
                Channel::Call(index) => line.generation.call(index).cloned(),
                _ => None,
            };
            events.extend(self.begin(channel, call));
        }
        let text = &rendered.text.text;
        let Some(open) = self.open.as_mut().filter(|_| !text.is_empty()) else {
            return events;
        };
        open.text.push_str(text);
        let id = open.id.clone();
        let (kind, fields) = match channel {
            Channel::Reasoning => (
                "response.reasoning_text.delta",
                json!({"content_index": 0, "delta": text}),
            ),
            Channel::Call(_) => (
                "response.function_call_arguments.delta",
                json!({"delta": text}),
            ),
            _ => (
                "response.output_text.delta",
                json!({"content_index": 0, "delta": text, "logprobs": []}),
            ),
        };
        events.push(self.about_item(kind, id, fields));
        events
    }

    fn end(&mut self, usage: Usage) -> Vec<Bytes> {
        self.usage = usage;
        let status = self.status();
        let mut events = Vec::new();
        if self.open.is_none() && self.output.is_empty() {
            events.extend(self.begin(Channel::Content, None));
        }
        events.extend(self.close(status));
        events
    }

    fn last(&mut self) -> Bytes {
        let kind = if self.cut {
            "response.incomplete"
        } else {
            "response.completed"
        };
        let whole = self.ended();
        self.event(kind, json!({"response": whole}))
    }

    fn broken(&mut self, error: &SimApiError) -> Vec<Bytes> {
        let fields = json!({"code": "server_error", "message": error.message(), "param": null});
        vec![self.event("error", fields)]
    }
}
