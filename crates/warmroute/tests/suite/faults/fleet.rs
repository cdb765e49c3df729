//! Engines behind a router, for the tests of this folder.

use serde_json::Value;

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply,
    SimControls as _, json_reply,
};

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// The reply of a healthy scripted engine.
pub(crate) fn fine() -> Vec<u8> {
    json_reply("200 OK", "", r#"{"id":"fine"}"#)
}

/// Scripted engines behind a router with round robin.
pub(crate) struct ScriptedFleet {
    pub(crate) engines: Vec<ScriptedEngine>,
    pub(crate) router: Program,
}

impl ScriptedFleet {
    pub(crate) fn start(replies: &[ScriptedReply], yaml: &str) -> Self {
        let engines: Vec<_> = replies.iter().cloned().map(ScriptedEngine::start).collect();
        let urls: Vec<_> = engines.iter().map(ScriptedEngine::url).collect();
        let router =
            Program::serve_with(yaml, &urls, &["--policy", "round_robin"]).ready(engines.len());
        Self { engines, router }
    }

    /// One engine.
    pub(crate) fn one(reply: ScriptedReply, yaml: &str) -> Self {
        Self::start(&[reply], yaml)
    }

    pub(crate) fn post(&self, body: &Value) -> RawReply {
        RawClient::post(&self.router.data(), CHAT, body.to_string().as_bytes())
    }

    /// Requests that reached any engine.
    pub(crate) fn requests(&self) -> u64 {
        self.engines.iter().map(ScriptedEngine::requests).sum()
    }
}

/// Simulated engines behind a router with round robin.
pub(crate) struct SimulatedRouter {
    pub(crate) engines: Vec<Program>,
    pub(crate) router: Program,
}

impl SimulatedRouter {
    pub(crate) fn start(count: usize, flags: &[&str], yaml: &str) -> Self {
        let engines: Vec<_> = (0..count).map(|_| Program::engine(flags)).collect();
        let urls: Vec<_> = engines.iter().map(Program::url).collect();
        let router = Program::serve_with(yaml, &urls, &["--policy", "round_robin"]).ready(count);
        Self { engines, router }
    }

    pub(crate) fn post(&self, body: &Value) -> RawReply {
        RawClient::post(&self.router.data(), CHAT, body.to_string().as_bytes())
    }

    /// Injects the same fault into the next request at every engine.
    pub(crate) fn fault(&self, fault: &str) {
        self.engines
            .iter()
            .for_each(|engine| engine.fault(fault, 1));
    }
}

/// Class and result of each attempt in a receipt.
pub(crate) fn attempts(receipt: &Value) -> Vec<(Option<&str>, &str)> {
    let attempts = receipt["attempts"].as_array().expect("attempts are a list");
    attempts
        .iter()
        .map(|it| {
            (
                it["class"].as_str(),
                it["result"].as_str().expect("a result is a word"),
            )
        })
        .collect()
}
