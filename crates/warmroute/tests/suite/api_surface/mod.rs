//! Every route of the data listener against scripted workers: exact bytes in and out.

mod cache_markers;
mod chat_over_messages;
mod control_routes;
mod count_tokens;
mod forms;
mod golden;
mod input_tokens;
mod kinds_of_workers;
mod messages_native;
mod messages_translated;
mod mixed_pool;
mod responses;
mod speech;
mod stored_responses;

use serde_json::Value;

use crate::harness::{
    self, Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply,
    json_reply,
};

/// One scripted engine behind a router.
struct RoutedEngine {
    engine: ScriptedEngine,
    router: Program,
}

impl RoutedEngine {
    /// An engine that has only the OpenAI API.
    fn start() -> Self {
        Self::with(
            ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}"))),
            "",
        )
    }

    /// An engine that supports messages natively.
    fn native() -> Self {
        Self::with(
            ScriptedEngine::with_native_messages(ScriptedReply::whole(json_reply(
                "200 OK", "", "{}",
            ))),
            "",
        )
    }

    fn with(engine: ScriptedEngine, yaml: &str) -> Self {
        let router = Program::serve_with(yaml, &[engine.url()], &[]).ready(1);
        Self { engine, router }
    }

    fn post(&self, path: &str, body: &str) -> RawReply {
        RawClient::post(&self.router.data(), path, body.as_bytes())
    }

    /// The settled receipt of a reply.
    fn receipt(&self, reply: &RawReply) -> Value {
        self.router.receipt_of(reply)
    }

    /// Waits until the router holds no state of any request.
    fn wait_until_idle(&self) {
        self.router.wait_until_idle();
    }

    /// Sends a request; returns the engine's request and the client's reply.
    fn carried(&self, path: &str, body: &str) -> (harness::SeenRequest, RawReply) {
        let reply = self.post(path, body);
        (self.engine.next_request(), reply)
    }
}

/// The events of a stream as pairs of name and data.
fn events(reply: &RawReply) -> Vec<(String, Value)> {
    let text = reply.text();
    let event = |event: &str| {
        let (name, data) = event
            .split_once("\ndata: ")
            .expect("an event with a name and data");
        let name = name.strip_prefix("event: ").expect("a name").to_owned();
        (name, serde_json::from_str(data).expect("data is JSON"))
    };
    text.split("\n\n")
        .filter(|event| !event.is_empty())
        .map(event)
        .collect()
}
