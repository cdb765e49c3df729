//! Which workers get requests while health checks fail.

use contract_id::contract;
use serde_json::Value;

use super::fleet::{CHAT, fine};
use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, chat, eventually,
};

/// Two scripted engines, `a` and `b`, behind a router that checks them often.
struct CheckedPair {
    engines: [ScriptedEngine; 2],
    router: Program,
}

impl CheckedPair {
    fn start() -> Self {
        let engines = [(); 2].map(|()| ScriptedEngine::start(ScriptedReply::whole(fine())));
        let entry = |name: &str, engine: &ScriptedEngine| {
            format!(
                "{{name: {name}, url: \"{}\", type: vllm, models: [m]}}",
                engine.url()
            )
        };
        let config = format!(
            "workers: [{}, {}]\nhealth_checks: {{interval: 100ms, timeout: 5s}}\n",
            entry("a", &engines[0]),
            entry("b", &engines[1])
        );
        let router = Program::serve_with(&config, &[], &["--policy", "round_robin"]).ready(2);
        Self { engines, router }
    }

    fn set_health(&self, engine: usize, status: &str) {
        self.engines[engine].answer("/health", status, "");
    }

    fn until_states(&self, expected: [&str; 2]) {
        eventually(&expected.join(" and "), || {
            let workers = self.router.workers();
            let state = |name: &str| {
                let worker = workers.iter().find(|worker| worker["name"] == name)?;
                worker["state"].as_str().map(str::to_owned)
            };
            (state("a").as_deref() == Some(expected[0])
                && state("b").as_deref() == Some(expected[1]))
            .then_some(())
        });
    }

    /// The receipts of six requests, none of which fails.
    fn receipts(&self) -> Vec<Value> {
        let send = |n: u32| {
            let body = chat("m", &format!("question {n}"), 1).to_string();
            let reply = RawClient::post(&self.router.data(), CHAT, body.as_bytes());
            assert_eq!(reply.status, 200, "{}", reply.text());
            self.router.receipt_of(&reply)
        };
        (0..6).map(send).collect()
    }
}

fn all_to(receipts: &[Value], worker: &str) -> bool {
    receipts
        .iter()
        .all(|receipt| receipt["winner"]["worker"] == worker && receipt["method"] != "panic")
}

#[test]
#[contract("CH2", "F87")]
fn a_worker_that_fails_its_checks_gets_requests_only_when_none_is_ready() {
    let pair = CheckedPair::start();
    pair.set_health(0, "500 Internal Server Error");
    pair.until_states(["down", "ready"]);
    let receipts = pair.receipts();
    assert!(all_to(&receipts, "b"), "{receipts:#?}");

    pair.set_health(1, "500 Internal Server Error");
    pair.until_states(["down", "down"]);
    for receipt in pair.receipts() {
        assert_eq!(receipt["method"], "panic", "{receipt:#}");
    }

    pair.set_health(0, "200 OK");
    pair.until_states(["ready", "down"]);
    let receipts = pair.receipts();
    assert!(all_to(&receipts, "a"), "{receipts:#?}");
}
