//! The file of another router, converted, in front of engines.

use contract_id::contract;
use serde_json::json;

use super::pools::CHAT;
use crate::harness::{
    Program, RawClient, RouterQueries as _, SimControls as _, chat, eventually, words,
};

const SEED: &str = include_str!(
    "../../../../../tests/fixtures/seed-configs/vllm-router-decode-policy-at-top.yaml"
);

#[test]
#[contract("V1", "V2", "V46")]
fn a_vllm_router_file_is_converted_starts_splits_requests_and_scores_by_events() {
    let engine =
        |role: &str| Program::engine(&["--speed", "20", "--block-size", "16", "--role", role]);
    let (prefill, decode) = (engine("prefill"), [engine("decode"), engine("decode")]);
    let theirs = SEED
        .replace("prefill1:8081", &prefill.data())
        .replace("decode1:8083", &decode[0].data())
        .replace("decode2:8084", &decode[1].data());
    let dir = tempfile::tempdir().expect("a directory");
    let (from, to) = (
        dir.path().join("router.yaml"),
        dir.path().join("warmroute.yaml"),
    );
    std::fs::write(&from, theirs).expect("it can be written");
    let end = Program::finish(&[
        "config",
        "convert",
        "--from",
        "vllm-router",
        &from.display().to_string(),
    ]);
    assert_eq!((end.code, end.stderr.as_str()), (Some(0), ""));
    assert!(!end.stdout.contains("refused by"), "{}", end.stdout);
    std::fs::write(&to, &end.stdout).expect("it can be written");
    let file = to.display().to_string();
    let check = Program::finish(&["config", "check", &file]);
    assert_eq!(
        (check.code, check.stdout.as_str()),
        (Some(0), "ok\n"),
        "{}",
        check.stderr
    );

    let budget = [("WARMROUTE_ROUTING__TOKENIZE_BUDGET", "60s")];
    let router = Program::serve_with_env(&[], &["-c", &file], &budget).ready(3);
    router.follows_events(3);
    let send = |id: &str| {
        let body = chat("sim", &words("post", 120), 6).to_string();
        let reply = RawClient::post_with(
            &router.data(),
            CHAT,
            &[("x-request-id", id)],
            body.as_bytes(),
        );
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("x-warmroute-policy"), Some("kv_aware"));
        router.receipt(id)
    };
    let first = send("first");
    assert_eq!(first["prefill"]["target"]["worker"], prefill.data());
    assert_eq!(prefill.stats()["executions"], 1);
    let winner = first["winner"]["worker"]
        .as_str()
        .expect("a name")
        .to_owned();
    eventually("the winner's events to arrive", || {
        let workers = router.workers();
        let worker = workers
            .iter()
            .find(|worker| worker["name"] == winner)
            .expect("the winner is a worker");
        (worker["warm_blocks"]["device"] != 0 && worker["cache_source"] == "events").then_some(())
    });
    for n in 0..3 {
        let again = send(&format!("again{n}"));
        assert_eq!(
            again["winner"]["worker"], winner,
            "the longest prefix by events"
        );
        let row = &again["candidates"][0];
        assert_eq!(
            (&row["cache_source"], &row["stream_state"]),
            (&json!("events"), &json!("live"))
        );
        assert!(
            row["warm_tokens"]["device"].as_u64() > Some(100),
            "{again:#}"
        );
    }
    router.wait_until_idle();
}
