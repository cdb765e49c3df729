//! Reads of blocks from another worker, which simulated engines carry out.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, SimControls as _, chat, eventually, streamed,
    words,
};

const CHAT: &str = "/v1/chat/completions";

/// Two engines `w1` and `w2` behind a router that lets them read from each other.
struct Pair {
    router: Program,
    engines: [Program; 2],
}

impl Pair {
    fn start(flags: &[&str]) -> Self {
        let engines = [(); 2].map(|()| {
            let flags = [&["--prefill-tps", "2000"], flags].concat();
            Program::engine(&flags)
        });
        let workers: String = engines
            .iter()
            .zip(1..)
            .map(|(engine, n)| {
                let url = engine.url();
                let (_, port) = url.rsplit_once(':').expect("a port");
                format!("  - {{name: w{n}, url: \"{url}\", type: vllm, p2p_port: {port}}}\n")
            })
            .collect();
        let routing = "routing: {fetch: vllm_p2p, tokenize_budget: 60s}\n";
        let yaml = format!("workers:\n{workers}{routing}");
        let router = Program::serve_with(&yaml, &[], &[]).ready(2);
        router.follows_events(2);
        Self { router, engines }
    }

    fn send(&self, id: &str, body: &Value, headers: &[(&str, &str)]) -> RawReply {
        let headers = [&[("x-request-id", id)], headers].concat();
        let body = body.to_string();
        RawClient::post_with(&self.router.data(), CHAT, &headers, body.as_bytes())
    }

    /// Lets `w1` compute a prompt, and waits until the router knows its blocks.
    fn warm(&self, body: &Value) {
        let reply = self.send("first", body, &[("x-warmroute-worker", "w1")]);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let cached = self.engines[0].stats()["blocks_cached"].clone();
        assert_ne!(cached, 0);
        eventually("the router to know the blocks of w1", || {
            let workers = self.router.workers();
            let mut workers = workers.iter();
            let w1 = workers.find(|worker| worker["name"] == "w1")?;
            (w1["warm_blocks"]["device"] == cached).then_some(())
        });
    }

    /// Gives `w1` long prompts to compute; their clients wait.
    fn occupy(&self) -> Vec<RawClient> {
        let busy = (0..3).map(|n| {
            let body = streamed(chat("sim", &words(&format!("busy{n}x"), 2_000), 4)).to_string();
            let mut client = RawClient::connect(&self.router.data());
            let headers = [("x-warmroute-worker", "w1")];
            client.send("POST", CHAT, &headers, body.as_bytes());
            client
        });
        let busy = busy.collect();
        eventually("w1 to have them", || {
            let in_flight = self.router.metric("warmroute_in_flight", "worker=\"w1\"");
            (in_flight == 3.0).then_some(())
        });
        busy
    }

    fn counted(&self, result: &str) -> f64 {
        self.router
            .metric("warmroute_fetches_total", &format!("result=\"{result}\""))
    }
}

#[test]
fn an_idle_engine_is_told_to_read_the_blocks_of_a_busy_one_and_does() {
    let pair = Pair::start(&["--p2p-gb-s", "10"]);
    let body = chat("sim", &words("shared", 300), 4);
    pair.warm(&body);
    let busy = pair.occupy();
    let reply = pair.send("second", &body, &[]);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("x-warmroute-rewrites"), Some("kv_transfer"));
    let receipt = pair.router.receipt("second");
    assert_eq!(receipt["winner"]["worker"], "w2", "{receipt:#}");
    let rows = receipt["candidates"].as_array().expect("candidates");
    let row = rows
        .iter()
        .find(|row| row["target"]["worker"] == "w2")
        .expect("the winner is among them");
    assert_eq!(row["fetch"]["source"]["worker"], "w1", "{receipt:#}");
    let tokens = &row["fetch"]["tokens"];
    assert_eq!(&row["predicted_cached_tokens"], tokens);
    assert_eq!(&receipt["outcome"]["cached_tokens"], tokens);
    assert_eq!(receipt["outcome"]["drift_tokens"], 0);
    assert_eq!(&pair.engines[1].stats()["fetched_tokens"], tokens);
    assert_eq!((pair.counted("sent"), pair.counted("arrived")), (1.0, 1.0));
    assert_eq!(pair.counted("missed"), 0.0);
    drop(busy);
    pair.router.wait_until_idle();
}

#[test]
fn an_engine_that_reads_nothing_computes_and_the_router_notices() {
    let pair = Pair::start(&[]);
    let body = chat("sim", &words("shared", 300), 4);
    pair.warm(&body);
    let busy = pair.occupy();
    let reply = pair.send("second", &body, &[]);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let receipt = pair.router.receipt("second");
    assert_eq!(receipt["winner"]["worker"], "w2", "{receipt:#}");
    assert_eq!(receipt["outcome"]["cached_tokens"], 0);
    assert_eq!((pair.counted("sent"), pair.counted("missed")), (1.0, 1.0));
    drop(busy);
    pair.router.wait_until_idle();
}

#[test]
#[contract("S43")]
fn a_client_cannot_name_a_source() {
    let pair = Pair::start(&["--p2p-gb-s", "10"]);
    let mut body = chat("sim", &words("own", 40), 4);
    body["kv_transfer_params"] = json!({
        "remote_kv_source": {"kv_request_id": "1", "remote_host": "127.0.0.1", "remote_port": 1}
    });
    let reply = pair.send("named", &body, &[]);
    assert_eq!(reply.status, 403, "{}", reply.text());
    let mut engines = pair.engines.iter();
    assert!(engines.all(|engine| engine.stats()["executions"] == 0));
}
