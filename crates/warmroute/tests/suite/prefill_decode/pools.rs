//! A router before prefill and decode engines.

use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, eventually,
    json_reply,
};

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A worker's entry in the configuration.
pub(crate) fn worker(name: &str, url: &str, role: &str, more: &str) -> String {
    format!("  - {{name: {name}, url: \"{url}\", role: {role}{more}}}\n")
}

/// Simulated engines behind a router: `p1`, `p2`, ... prefill, `d1`, `d2`, ... decode.
pub(crate) struct SimulatedPools {
    pub(crate) router: Program,
    pub(crate) prefill: Vec<Program>,
    pub(crate) decode: Vec<Program>,
}

impl SimulatedPools {
    /// Starts this many of each; `config` has more sections.
    pub(crate) fn start(prefill: usize, decode: usize, config: &str) -> Self {
        let engines = |role: &str, count: usize| -> Vec<Program> {
            (0..count)
                .map(|_| Program::engine(&["--speed", "20", "--role", role]))
                .collect()
        };
        let (prefill, decode) = (engines("prefill", prefill), engines("decode", decode));
        let workers = |letter: char, role: &str, engines: &[Program]| -> String {
            let named = engines.iter().zip(1..);
            named
                .map(|(engine, n)| worker(&format!("{letter}{n}"), &engine.url(), role, ""))
                .collect()
        };
        let workers = workers('p', "prefill", &prefill) + &workers('d', "decode", &decode);
        let router = serve(&workers, config).ready(prefill.len() + decode.len());
        router.follows_events(prefill.len() + decode.len());
        Self {
            router,
            prefill,
            decode,
        }
    }

    /// Sends a request with this id and these headers.
    pub(crate) fn send_with(&self, id: &str, body: &Value, headers: &[(&str, &str)]) -> RawReply {
        let path = if body["messages"].is_null() {
            "/v1/completions"
        } else {
            CHAT
        };
        let headers: Vec<_> = [("x-request-id", id)]
            .into_iter()
            .chain(headers.iter().copied())
            .collect();
        RawClient::post_with(
            &self.router.data(),
            path,
            &headers,
            body.to_string().as_bytes(),
        )
    }

    /// Sends a request with this id; returns the reply and its settled receipt.
    pub(crate) fn send(&self, id: &str, body: &Value) -> (RawReply, Value) {
        let reply = self.send_with(id, body, &[]);
        (reply, self.router.receipt(id))
    }

    /// Waits until the router has blocks of this worker and has applied all earlier events.
    pub(crate) fn warm(&self, name: &str) {
        eventually("the worker's events to arrive", || {
            let workers = self.router.workers();
            let worker = workers
                .iter()
                .find(|worker| worker["name"] == name)
                .expect("a worker of that name");
            (worker["warm_blocks"]["device"] != 0 && worker["cache_source"] == "events")
                .then_some(())
        });
    }

    /// The counter of prefills with this result.
    pub(crate) fn counted(&self, result: &str) -> f64 {
        self.router
            .metric("warmroute_prefill_total", &format!("result=\"{result}\""))
    }
}

/// A router before these workers. `config` has more sections; its leading indented lines belong to
/// `routing`.
pub(crate) fn serve(workers: &str, config: &str) -> Program {
    Program::serve_with(
        &format!("workers:\n{workers}routing:\n  tokenize_budget: 60s\n{config}"),
        &[],
        &[],
    )
}

/// Scripted engines, one of each role, behind a router.
pub(crate) struct ScriptedPools {
    pub(crate) router: Program,
    pub(crate) prefill: ScriptedEngine,
    pub(crate) decode: ScriptedEngine,
}

/// A reply that generates `yes`.
pub(crate) fn yes() -> ScriptedReply {
    ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}]}"#,
    ))
}

impl ScriptedPools {
    pub(crate) fn start(connector: &str, prefill: ScriptedReply, decode: ScriptedReply) -> Self {
        Self::with(
            &format!("disaggregation: {{connector: {connector}}}\n"),
            prefill,
            decode,
        )
    }

    pub(crate) fn with(config: &str, prefill: ScriptedReply, decode: ScriptedReply) -> Self {
        let (prefill, decode) = (
            ScriptedEngine::start(prefill),
            ScriptedEngine::start(decode),
        );
        let port = prefill
            .address()
            .rsplit_once(':')
            .expect("an address has a port")
            .1;
        let workers = worker(
            "p",
            &prefill.url(),
            "prefill",
            &format!(", bootstrap_port: {port}"),
        ) + &worker("d", &decode.url(), "decode", "");
        let router = serve(&workers, config).ready(2);
        Self {
            router,
            prefill,
            decode,
        }
    }

    /// Sends exactly these bytes as a chat.
    pub(crate) fn send(&self, id: &str, body: &str) -> RawReply {
        RawClient::post_with(
            &self.router.data(),
            CHAT,
            &[("x-request-id", id)],
            body.as_bytes(),
        )
    }
}

/// The rewrites in `x-warmroute-rewrites` and in the receipt, which must be equal.
pub(crate) fn rewrites(reply: &RawReply, receipt: &Value) -> Vec<String> {
    let listed: Vec<String> = reply
        .header("x-warmroute-rewrites")
        .map_or_else(Vec::new, |list| {
            list.split(',').map(str::to_owned).collect()
        });
    assert_eq!(receipt["rewrites"], json!(listed));
    listed
}
