//! The temperature of decisions, in each place where it can be set.

use contract_id::contract;
use serde_json::json;

use crate::harness::{Program, RawClient, RouterQueries as _, words};

/// Decisions for a prompt. At the highest temperature the cheaper of two workers wins 52 of 100, so
/// that all of these go to it once in 10^11 runs.
const DECISIONS: usize = 40;

/// A router before workers `a` and `b`.
struct WarmedRouter(Program);

impl WarmedRouter {
    /// Sends the prompt to `a`.
    fn new(router: Program) -> Self {
        let warmed = Self(router.ready(2));
        assert_eq!(warmed.send(&[("x-warmroute-worker", "a")]), "a");
        warmed
    }

    /// Sends the prompt; returns its worker.
    fn send(&self, headers: &[(&str, &str)]) -> String {
        let prompt = words("temperature", 60);
        let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 1}).to_string();
        let data = self.0.data();
        let reply = RawClient::post_with(&data, "/v1/completions", headers, body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply
            .header("x-warmroute-worker")
            .expect("a worker")
            .to_owned()
    }

    /// Whether a decision chooses `b`, which does not have the prompt.
    fn draws_b(&self) -> bool {
        (0..DECISIONS).any(|_| self.send(&[]) == "b")
    }
}

#[test]
#[contract("DY3")]
fn a_temperature_from_any_source_also_draws_the_costlier_worker() {
    let engines = [(); 2].map(|()| Program::engine(&["--no-kv-events", "--speed", "20"]));
    let workers = [
        format!("a={}", engines[0].url()),
        format!("b={}", engines[1].url()),
    ];
    // Predicted blocks stay for as long as the test runs.
    let kv = [
        "--router-mode",
        "kv",
        "--no-kv-events",
        "--router-ttl",
        "1h",
    ];
    let file = |routing: &str| {
        WarmedRouter::new(Program::serve_with(
            &format!("routing: {{{routing}}}\n"),
            &workers,
            &kv,
        ))
    };
    let flags = |temperature: &str| {
        let flags = [&kv[..], &["--router-temperature", temperature]].concat();
        WarmedRouter::new(Program::serve(&workers, &flags))
    };
    let variable =
        Program::serve_with_env(&workers, &kv, &[("WARMROUTE_ROUTING__TEMPERATURE", "10")]);
    for (source, warmed) in [
        ("default", file("")),
        ("flag", flags("0")),
        ("another model", file("models: {other: {temperature: 10}}")),
        (
            "model over all",
            file("temperature: 10, models: {\"s*\": {temperature: 0}}"),
        ),
    ] {
        assert!(!warmed.draws_b(), "{source}: always the cheapest");
    }
    for (source, warmed) in [
        ("flag", flags("10")),
        ("key", file("temperature: 10")),
        ("variable", WarmedRouter::new(variable)),
        ("model", file("models: {sim: {temperature: 10}}")),
    ] {
        assert!(warmed.draws_b(), "{source}: both are drawn");
    }
}
