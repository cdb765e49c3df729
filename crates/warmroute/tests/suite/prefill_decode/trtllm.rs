//! TensorRT-LLM: a context request, whose state goes into the generation request.

use contract_id::contract;
use serde_json::json;

use super::pools::{CHAT, ScriptedPools, SimulatedPools, rewrites, yes};
use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedReply, SimControls as _, chat, json_reply,
    streamed, text_of, words,
};

const CONFIG: &str = "disaggregation: {connector: trtllm}\n";

#[test]
#[contract("V39", "DY25")]
fn the_reply_equals_that_of_a_single_engine_and_the_prompt_is_computed_once() {
    let pools = SimulatedPools::start(1, 1, CONFIG);
    let alone = Program::engine(&["--speed", "20"]);
    let completion = json!({"model": "sim", "prompt": words("story", 120), "max_tokens": 12});
    let bodies = [chat("sim", &words("chat", 120), 12), completion];
    for (n, body) in bodies.into_iter().enumerate() {
        let path = if n == 0 { CHAT } else { "/v1/completions" };
        let want = RawClient::post(&alone.data(), path, body.to_string().as_bytes()).json();
        let (reply, receipt) = pools.send(&format!("r{n}"), &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let got = reply.json();
        assert_eq!(got["choices"], want["choices"]);
        let tokens = want["usage"]["prompt_tokens"].as_u64().expect("usage");
        assert_eq!(
            got["usage"]["prompt_tokens_details"]["cached_tokens"],
            tokens - 1,
            "all but one came from the context worker"
        );
        assert_eq!(reply.header("x-warmroute-worker"), Some("d1"));
        assert_eq!(rewrites(&reply, &receipt), ["token_ids", "kv_transfer"]);
        assert_eq!(
            receipt["prefill"]["target"],
            json!({"worker": "p1", "dp_rank": 0})
        );
        assert_eq!(receipt["prefill"]["skipped"], false);
    }
    let stream = streamed(chat("sim", &words("stream", 120), 12));
    let (reply, _) = pools.send("stream", &stream);
    let want = RawClient::post(&alone.data(), CHAT, stream.to_string().as_bytes());
    assert_eq!(text_of(&reply), text_of(&want));
    assert_eq!(pools.prefill[0].stats()["executions"], 3);
    assert_eq!(pools.counted("ok"), 3.0);
    pools.router.wait_until_idle();
}

#[test]
#[contract("V39")]
fn a_context_worker_that_is_gone_or_hands_nothing_over_costs_only_time() {
    let mut pools = SimulatedPools::start(1, 1, CONFIG);
    pools.prefill[0].kill();
    let body = chat("sim", &words("gone", 120), 8);
    let (reply, receipt) = pools.send("gone", &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(rewrites(&reply, &receipt), [""; 0]);
    assert_eq!(receipt["prefill"]["skipped"], true);
    // The first token is the last one: the generation worker computes it again.
    let ended = r#"{"choices":[{"finish_reason":"stop","disaggregated_params":{"request_type":"context_only"}}]}"#;
    let scripted = ScriptedPools::start(
        "trtllm",
        ScriptedReply::whole(json_reply("200 OK", "", ended)),
        yes(),
    );
    let request = chat("m", "hi", 4).to_string();
    let reply = scripted.send("r", &request);
    assert_eq!(reply.status, 200);
    assert_eq!(scripted.decode.next_request().body, request.as_bytes());
    let receipt = scripted.router.receipt("r");
    assert_eq!(receipt["prefill"]["reason"], "prefill_failed");
    scripted.router.wait_until_idle();
}

#[test]
#[contract("S43")]
fn a_client_cannot_send_a_state_of_its_own() {
    let pools = SimulatedPools::start(1, 1, CONFIG);
    let mut body = chat("sim", "hi", 2);
    body["disaggregated_params"] = json!({"request_type": "generation_only", "ctx_request_id": 1});
    let refused = pools.send_with("r", &body, &[]);
    assert_eq!(
        (refused.status, refused.error_code().as_str()),
        (403, "field_not_allowed")
    );
}
