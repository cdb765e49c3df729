//! A worker with wrong predictions is reported, then predicted from our own decisions, then trusted
//! again.

use serde_json::{Value, json};

use super::lying_proxy::LyingProxy;
use crate::harness::{
    Page, Program, RawClient, RouterQueries as _, SimControls as _, chat_message, eventually, words,
};

const CONFIG: &str = "
routing: {tokenize_budget: 60s}
parity: {window: 60s, min_joined: 12}
";

/// One engine, its lying proxy, and a router that uses the proxy's address.
struct LyingProxyFixture {
    router: Program,
    engine: Program,
    liar: LyingProxy,
}

impl LyingProxyFixture {
    fn start() -> Self {
        let engine = Program::engine(&["--speed", "20"]);
        let liar = LyingProxy::before(engine.data());
        let router = Program::serve_with(CONFIG, &[format!("a={}", liar.url())], &[]).ready(1);
        let lied = Self {
            router,
            engine,
            liar,
        };
        lied.caught_up();
        lied
    }

    fn stream(&self) -> Value {
        RawClient::get(&self.router.admin(), "/admin/streams").json()["streams"][0].clone()
    }

    fn caught_up(&self) {
        eventually("the router to have applied all events", || {
            let (stream, stats) = (self.stream(), self.engine.stats());
            let same = stream["last_seq"] == stats["last_seq"];
            (stats["running"] == 0 && stream["state"] == "live" && same).then_some(())
        });
    }

    /// Sends one chat, always the same; returns its receipt.
    fn chat(&self) -> Value {
        let messages = [chat_message("user", &words("same", 100))];
        let body =
            json!({"model": "sim", "messages": messages, "max_tokens": 2, "ignore_eos": true});
        let reply = RawClient::post(
            &self.router.data(),
            "/v1/chat/completions",
            body.to_string().as_bytes(),
        );
        assert_eq!(reply.status, 200, "{}", reply.text());
        self.caught_up();
        let path = format!(
            "/admin/decisions/{}",
            reply.header("x-warmroute-decision").expect("a decision")
        );
        eventually("the receipt to be settled", || {
            let receipt = RawClient::get(&self.router.admin(), &path).json();
            (!receipt["outcome"].is_null()).then_some(receipt)
        })
    }

    fn parity(&self) -> Value {
        RawClient::get(&self.router.admin(), "/admin/parity").json()["workers"][0].clone()
    }

    /// Sends chats until the worker is in this state; returns the states on the way.
    fn send_until(&self, state: &str) -> Vec<String> {
        let mut path = Vec::new();
        for _ in 0..100 {
            self.chat();
            let now = self.parity()["state"].as_str().expect("a state").to_owned();
            if path.last() != Some(&now) {
                path.push(now.clone());
            }
            if now == state {
                return path;
            }
        }
        panic!("{state} is not reached: {path:?}, {}", self.parity());
    }

    /// Asserts the cache source in the worker list and in the receipt of one more chat. It follows
    /// a change of state with a short delay.
    fn assert_cache_source(&self, source: &str) {
        let seen = || self.router.workers()[0]["cache_source"] == source;
        eventually("the change to take effect", || seen().then_some(()));
        assert_eq!(self.chat()["candidates"][0]["cache_source"], source);
        assert!(seen());
    }

    fn page(&self) -> Page {
        Page::read(&RawClient::get(&self.router.admin(), "/metrics").text())
    }
}

#[test]
fn false_usage_costs_a_worker_its_trust_and_correct_usage_restores_it() {
    let lied = LyingProxyFixture::start();
    let truth = lied.send_until("ok");
    assert_eq!(truth, ["no_data", "ok"]);
    lied.assert_cache_source("events");

    lied.liar.report_share(90);
    assert_eq!(
        lied.send_until("drifting").last().map(String::as_str),
        Some("drifting")
    );
    // The router reports the drift and does nothing else.
    lied.assert_cache_source("events");
    assert_eq!(lied.router.workers()[0]["parity"], "drifting");

    lied.liar.report_share(50);
    lied.send_until("downgraded");
    lied.assert_cache_source("predicted");
    let row = lied.parity();
    assert!(
        row["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("parity.downgrade_ratio 0.2")),
        "{row}"
    );
    assert!(row["over_ratio"].as_f64() > Some(0.3), "{row}");
    assert_eq!(lied.router.workers()[0]["parity"], "downgraded");
    let page = lied.page();
    for (source, value) in [("events", 0.0), ("predicted", 1.0)] {
        let labels = [("worker", "a"), ("source", source)];
        assert_eq!(
            page.value("warmroute_cache_source", &labels).to_bits(),
            f64::to_bits(value),
            "{source}"
        );
    }
    let over = page.value(
        "warmroute_parity_requests_total",
        &[("worker", "a"), ("result", "over")],
    );
    assert!(over >= 12.0, "{over}");
    assert!(page.value("warmroute_parity_exact_ratio", &[("worker", "a")]) < 1.0);
    let is_warning =
        |line: &str| line.contains("\"WARN\"") && line.contains("\"state\":\"downgraded\"");
    eventually("the log to report it", || {
        lied.router.stderr().lines().any(is_warning).then_some(())
    });

    lied.liar.report_share(100);
    let path = lied.send_until("ok");
    assert!(
        path.ends_with(&["recovering".to_owned(), "ok".to_owned()]),
        "{path:?}"
    );
    lied.assert_cache_source("events");
    assert_eq!(lied.router.workers()[0]["parity"], "ok");
    assert_eq!(lied.parity()["reason"], Value::Null);
    assert_eq!(lied.chat()["outcome"]["drift_tokens"], 0);
}
