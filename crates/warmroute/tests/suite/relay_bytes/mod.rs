//! The bytes of both directions over sockets: the engine gets the client's bytes, and the client
//! the engine's.

mod any_reply;
mod any_request;
mod connections;
mod headers;
mod replies;
mod requests;
mod wire_form;

use std::cell::RefCell;

use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, json_reply,
};

const CHAT: &str = "/v1/chat/completions";

/// One scripted engine behind a router.
struct RoutedEngine {
    engine: ScriptedEngine,
    router: Program,
    idle: RefCell<Option<RawClient>>,
}

impl RoutedEngine {
    fn start() -> Self {
        Self::start_with("")
    }

    fn start_with(settings: &str) -> Self {
        let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply(
            "200 OK",
            "",
            r#"{"id":"1"}"#,
        )));
        let router = Program::serve_with(settings, &[engine.url()], &[]).ready(1);
        Self {
            engine,
            router,
            idle: RefCell::default(),
        }
    }

    /// The connection of the previous case, so that a misread request or reply spoils the next one;
    /// a new one after a case that failed.
    fn client(&self) -> RawClient {
        self.engine.forget();
        self.idle
            .take()
            .unwrap_or_else(|| RawClient::connect(&self.router.data()))
    }

    fn reuse(&self, client: RawClient) {
        self.idle.replace(Some(client));
    }
}
