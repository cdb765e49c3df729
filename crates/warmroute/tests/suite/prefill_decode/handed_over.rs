//! NIXL: one engine computes the prompt, another generates the reply, and only the receipt shows
//! it.

use contract_id::contract;
use serde_json::{Value, json};

use super::pools::{CHAT, ScriptedPools, SimulatedPools, rewrites, yes};
use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedReply, SimControls as _, chat, eventually,
    json_reply, streamed, text_of, words,
};

fn topic_chat(topic: &str, tokens: u32) -> Value {
    chat("sim", &words(topic, 120), tokens)
}

#[test]
#[contract("V39", "DY25")]
fn the_reply_equals_that_of_a_single_engine() {
    let pools = SimulatedPools::start(1, 1, "");
    let alone = Program::engine(&["--speed", "20"]);
    let completion = json!({"model": "sim", "prompt": words("story", 120), "max_tokens": 12});
    for (n, body) in [topic_chat("chat", 12), completion].into_iter().enumerate() {
        let path = if n == 0 { CHAT } else { "/v1/completions" };
        let want = RawClient::post(&alone.data(), path, body.to_string().as_bytes()).json();
        let (reply, receipt) = pools.send(&format!("r{n}"), &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let (got, usage) = (reply.json(), &want["usage"]);
        assert_eq!(got["choices"], want["choices"]);
        let tokens = usage["prompt_tokens"].as_u64().expect("usage");
        assert_eq!(
            got["usage"]["prompt_tokens_details"]["cached_tokens"],
            tokens - 1,
            "all but one came from the prefill worker"
        );
        assert_eq!(reply.header("x-warmroute-worker"), Some("d1"));
        assert_eq!(rewrites(&reply, &receipt), ["token_ids", "kv_transfer"]);
        let prefill = &receipt["prefill"];
        assert_eq!(prefill["target"], json!({"worker": "p1", "dp_rank": 0}));
        assert_eq!(
            (&prefill["skipped"], &prefill["reason"]),
            (&json!(false), &Value::Null)
        );
        assert!(prefill["ms"].as_f64() > Some(0.0), "{prefill}");
        assert_eq!(receipt["winner"]["worker"], "d1");
        assert_eq!(
            receipt["excluded"],
            json!([{"target": {"worker": "p1", "dp_rank": 0}, "reason": "role"}])
        );
        assert_eq!(receipt["reserved"]["prefill_tokens"], 0);
        assert_eq!(
            receipt["outcome"]["drift_tokens"],
            Value::Null,
            "the worker's own cache did not matter"
        );
    }
    assert_eq!(
        (
            &pools.prefill[0].stats()["executions"],
            &pools.decode[0].stats()["executions"]
        ),
        (&json!(2), &json!(2))
    );
    assert_eq!(pools.counted("ok"), 2.0);
    pools.router.wait_until_idle();
}

#[test]
#[contract("V39")]
fn a_streams_first_token_is_the_decode_workers_and_its_options_do_not_reach_the_prefill() {
    let pools = SimulatedPools::start(1, 1, "");
    let mut body = streamed(topic_chat("stream", 10));
    body["stream_options"] = json!({"include_usage": true});
    let reply = pools.send_with("s", &body, &[]);
    let alone = Program::engine(&["--speed", "20"]);
    let want = RawClient::post(
        &alone.data(),
        CHAT,
        streamed(topic_chat("stream", 10)).to_string().as_bytes(),
    );
    assert_eq!(text_of(&reply), text_of(&want));
    assert!(reply.text().contains("\"usage\""), "{}", reply.text());
    let receipt = pools.router.receipt("s");
    assert_eq!(
        (&receipt["prefill"]["skipped"], &receipt["outcome"]["kind"]),
        (&json!(false), &json!("ok"))
    );
    assert!(
        receipt["outcome"]["ttft_ms"].as_f64() >= receipt["prefill"]["ms"].as_f64(),
        "{receipt:#}"
    );
    pools.router.wait_until_idle();
}

#[test]
#[contract("V39")]
fn both_bodies_are_the_clients_bytes_except_for_spliced_members() {
    let params =
        r#"{"remote_engine_id" : "e", "remote_block_ids":[ 1,2 ],"do_remote_prefill":true}"#;
    let offered =
        format!(r#"{{"prompt_token_ids":[7, 8],"choices":[{{}}],"kv_transfer_params":{params}}}"#);
    let scripted = ScriptedPools::start(
        "nixl",
        ScriptedReply::whole(json_reply("200 OK", "", &offered)),
        yes(),
    );
    let body = "{ \"model\":\"m\", \"x-own\": [1e2, {}],\n \"messages\":[{\"role\":\"user\",\"content\":\"h\\u00e9\"}], \
                \"max_tokens\": 64,\"stream\":true,\"stream_options\":{},\"min_tokens\": 3 }";
    assert_eq!(scripted.send("r", body).status, 200);
    let prefill = scripted.prefill.next_request();
    let same = "{ \"model\":\"m\", \"x-own\": [1e2, {}],\n \"messages\":[{\"role\":\"user\",\"content\":\"h\\u00e9\"}], ";
    let sent = String::from_utf8(prefill.body.clone()).expect("text");
    assert!(
        sent.starts_with(&format!(
            "{same}\"max_tokens\": 1,\"stream\":false,\"max_completion_tokens\":1,"
        )),
        "{sent}"
    );
    assert!(
        sent.contains(r#""return_token_ids":true,"kv_transfer_params":{"do_remote_decode":true,"#),
        "{sent}"
    );
    assert!(
        !sent.contains("stream_options") && !sent.contains("min_tokens"),
        "{sent}"
    );
    let decode = scripted.decode.next_request();
    let whole = body
        .strip_suffix(" }")
        .expect("the body ends as written above");
    let want = format!("{whole},\"kv_transfer_params\":{params},\"prompt_token_ids\":[7, 8] }}");
    assert_eq!(String::from_utf8(decode.body).expect("text"), want);
    assert_eq!(prefill.header("x-request-id").as_deref(), Some("r"));
}

#[test]
fn an_engine_without_token_ids_hands_over_only_its_parameters() {
    let offered =
        r#"{"kv_transfer_params":{"remote_host":"h"},"prompt_token_ids":null,"choices":[]}"#;
    let scripted = ScriptedPools::start(
        "nixl",
        ScriptedReply::whole(json_reply("200 OK", "", offered)),
        yes(),
    );
    let reply = scripted.send("r", &chat("m", "hi", 4).to_string());
    assert_eq!(
        rewrites(&reply, &scripted.router.receipt("r")),
        ["kv_transfer"]
    );
    let sent: Value = serde_json::from_slice(&scripted.decode.next_request().body).expect("JSON");
    assert_eq!(
        (&sent["kv_transfer_params"], &sent["prompt_token_ids"]),
        (&json!({"remote_host": "h"}), &Value::Null)
    );
}

#[test]
#[contract("DY25")]
fn both_workers_are_known_to_hold_the_prompt_by_their_own_events() {
    let pools = SimulatedPools::start(2, 2, "");
    let (_, first) = pools.send("first", &topic_chat("again", 4));
    for side in [
        &first["prefill"]["target"]["worker"],
        &first["winner"]["worker"],
    ] {
        pools.warm(side.as_str().expect("a name"));
    }
    for n in 0..3 {
        let (_, again) = pools.send(&format!("again{n}"), &topic_chat("again", 4));
        assert_eq!(again["prefill"]["target"], first["prefill"]["target"]);
        assert_eq!(again["winner"], first["winner"]);
        assert_eq!(again["candidates"][0]["cache_source"], "events");
        assert!(
            again["candidates"][0]["warm_tokens"]["device"].as_u64() > Some(100),
            "{again:#}"
        );
    }
    // Parity compares the cached tokens of a prefill worker only with the prediction for that
    // worker.
    let rows = RawClient::get(&pools.router.admin(), "/admin/parity").json();
    let judged: u64 = rows["workers"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|row| row["exact"].as_u64())
        .sum();
    assert_eq!(judged, 4, "{rows:#}");
    pools.router.wait_until_idle();
}

#[test]
#[contract("DY25")]
fn a_running_prefill_counts_as_load_of_the_prefill_worker_only() {
    let scripted = ScriptedPools::start("nixl", ScriptedReply::Silence, yes());
    let client = RawClient::chat(&scripted.router.data(), &chat("m", &words("load", 200), 4));
    scripted.prefill.next_request();
    let workers = scripted.router.workers();
    let load = |name: &str| {
        &workers
            .iter()
            .find(|worker| worker["name"] == name)
            .expect("a worker")["load"]
    };
    assert!(
        load("p")["queued_prefill_tokens"].as_u64() > Some(100),
        "{}",
        load("p")
    );
    assert_eq!(
        (
            &load("p")["decode_blocks"],
            &load("d")["queued_prefill_tokens"]
        ),
        (&json!(0), &json!(0))
    );
    assert!(
        load("d")["decode_blocks"].as_u64() > Some(5),
        "{}",
        load("d")
    );
    drop(client);
    eventually("the load to be freed", || {
        (scripted.router.metric("warmroute_leases", "") == 0.0).then_some(())
    });
    scripted.router.wait_until_idle();
}

#[test]
#[contract("V40")]
fn a_tail_under_the_threshold_stays_with_the_decode_worker() {
    let pools = SimulatedPools::start(1, 1, "disaggregation: {uncached_token_threshold: 64}\n");
    let (_, first) = pools.send("first", &topic_chat("warm", 4));
    assert_eq!(first["prefill"]["skipped"], false);
    pools.warm("d1");
    let (reply, again) = pools.send("again", &topic_chat("warm", 4));
    assert_eq!(
        again["prefill"],
        json!({"target": null, "skipped": true, "reason": "under_threshold", "ms": null})
    );
    assert_eq!(rewrites(&reply, &again), [""; 0]);
    assert_eq!(pools.prefill[0].stats()["executions"], 1);
    assert_eq!(pools.counted("under_threshold"), 1.0);
    assert_eq!(
        again["outcome"]["drift_tokens"], 0,
        "this prediction is compared with the reply: {again:#}"
    );
}
