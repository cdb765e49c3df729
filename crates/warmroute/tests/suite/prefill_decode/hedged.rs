//! Hedges to a second decode worker, with prompts computed by prefill workers.

use serde_json::Value;

use super::pools::{CHAT, serve, worker};
use crate::harness::{Program, RawClient, RouterQueries as _, SimControls as _, chat, words};

/// The predicted cached tokens of a worker for this prompt, from a dry run.
fn expected_at(router: &Program, name: &str, body: &Value) -> Value {
    let headers = [("x-warmroute-worker", name)];
    let dry_run = RawClient::post_with(
        &router.data(),
        "/v1/route",
        &headers,
        body.to_string().as_bytes(),
    )
    .json();
    let rows = dry_run["candidates"]
        .as_array()
        .unwrap_or_else(|| panic!("no candidates: {dry_run}"));
    let row = rows
        .iter()
        .find(|row| row["target"]["worker"] == name)
        .unwrap_or_else(|| panic!("no {name}: {dry_run}"));
    row["predicted_cached_tokens"].clone()
}

#[test]
fn a_hedge_that_would_need_a_prefill_is_not_sent_and_adds_no_speculative_entry() {
    let engine = |role: &str| Program::engine(&["--speed", "20", "--role", role, "--no-kv-events"]);
    let (prefill, decode) = (engine("prefill"), [engine("decode"), engine("decode")]);
    let workers = worker("p1", &prefill.url(), "prefill", "")
        + &worker("d1", &decode[0].url(), "decode", "")
        + &worker("d2", &decode[1].url(), "decode", "");
    let config = "request: {hedge_after: 100ms, timeout: 4s}\ndisaggregation: {uncached_token_threshold: 64}\n";
    let router = serve(&workers, config).ready(3);
    let request = chat("sim", &words("hedged", 120), 4);
    let send = |id: &str| {
        let headers = [("x-request-id", id)];
        RawClient::post_with(
            &router.data(),
            CHAT,
            &headers,
            request.to_string().as_bytes(),
        )
        .status
    };
    assert_eq!(send("first"), 200);
    let first = router.receipt("first");
    assert_eq!(first["prefill"]["skipped"], false, "{first}");
    let (slow, at, other) = if first["winner"]["worker"] == "d1" {
        ("d1", 0, "d2")
    } else {
        ("d2", 1, "d1")
    };
    assert!(
        expected_at(&router, slow, &request).as_u64() > Some(0),
        "it holds the prompt"
    );
    assert_eq!(expected_at(&router, other, &request), 0);

    decode[at].fault("hang", 1);
    assert_eq!(
        send("slow"),
        504,
        "the worker with the prompt hangs, and no other gets the request"
    );
    let receipt = router.receipt("slow");
    assert_eq!(receipt["prefill"]["reason"], "under_threshold", "{receipt}");
    assert_eq!(
        expected_at(&router, other, &request),
        0,
        "no request was sent to it"
    );
    assert_eq!(decode[1 - at].stats()["executions"], 0);
    router.wait_until_idle();
}
