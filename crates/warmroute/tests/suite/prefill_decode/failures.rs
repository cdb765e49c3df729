//! Failures of either leg: the request continues where possible, the receipt shows the failure, and
//! no state remains.

use contract_id::contract;
use serde_json::{Value, json};

use super::pools::{ScriptedPools, SimulatedPools, rewrites, serve, worker, yes};
use crate::harness::{
    RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, SimControls as _, chat, chunk,
    json_reply, stream_head, streamed, words,
};

fn topic_chat(topic: &str) -> Value {
    chat("sim", &words(topic, 80), 6)
}

#[test]
#[contract("DY26", "F88")]
fn a_failed_prefill_leaves_the_prompt_to_the_decode_worker_and_is_reported() {
    let pools = SimulatedPools::start(
        1,
        1,
        "request: {timeout: 4s}\ncircuit_breaker: {enabled: false}\n",
    );
    for (n, fault) in ["500", "503", "429", "reset", "short_body", "hang"]
        .into_iter()
        .enumerate()
    {
        pools.prefill[0].fault(fault, 1);
        let (reply, receipt) = pools.send(&format!("r{n}"), &topic_chat(fault));
        assert_eq!(reply.status, 200, "{fault}: {}", reply.text());
        assert_eq!(rewrites(&reply, &receipt), [""; 0], "{fault}");
        let prefill = &receipt["prefill"];
        assert_eq!(
            (&prefill["skipped"], &prefill["reason"]),
            (&json!(true), &json!("prefill_failed")),
            "{fault}"
        );
        assert_eq!(prefill["target"]["worker"], "p1", "{fault}");
        assert!(prefill["ms"].is_number(), "{fault}");
        assert!(
            receipt["reserved"]["prefill_tokens"].as_u64() > Some(0),
            "counted where it is computed: {fault}"
        );
        assert_eq!(
            receipt["attempts"].as_array().map(Vec::len),
            Some(1),
            "{fault}: {receipt:#}"
        );
    }
    assert_eq!(pools.counted("prefill_failed"), 6.0);
    pools.router.wait_until_idle();
}

#[test]
#[contract("DY26")]
fn a_failed_pinned_prefill_worker_does_not_cost_the_request_either() {
    let pools = SimulatedPools::start(2, 1, "");
    for (id, body) in [
        ("r", topic_chat("named")),
        ("batch", json!({"model": "sim", "prompt": ["one", "two"]})),
    ] {
        pools.prefill[1].fault("500", 1);
        let reply = pools.send_with(id, &body, &[("x-warmroute-worker", "p2")]);
        assert_eq!(reply.status, 200, "{id}: {}", reply.text());
        assert_eq!(pools.router.receipt(id)["prefill"]["skipped"], true, "{id}");
    }
    assert_eq!(pools.prefill[0].stats()["executions"], 0);
    pools.router.wait_until_idle();
}

#[test]
#[contract("DY26")]
fn a_prefill_worker_that_is_gone_costs_one_connect_and_then_nothing() {
    let mut pools = SimulatedPools::start(1, 1, "health_checks: {interval: 1h}\n");
    pools.prefill[0].kill();
    let reasons: Vec<Value> = (0..3)
        .map(|n| pools.send(&format!("r{n}"), &topic_chat("gone")).1["prefill"]["reason"].clone())
        .collect();
    assert!(
        reasons
            .iter()
            .all(|reason| reason == "prefill_failed" || reason == "no_prefill_worker"),
        "{reasons:?}"
    );
    assert_eq!(reasons[2], "no_prefill_worker");
    pools.router.wait_until_idle();
}

#[test]
#[contract("DY26")]
fn a_reply_without_transfer_parameters_is_a_failed_prefill_and_the_body_is_sent_unchanged() {
    let scripted = ScriptedPools::start("nixl", yes(), yes());
    let body = "{\"model\": \"m\",  \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\":2}";
    for (n, reply) in [
        "{}",
        r#"{"kv_transfer_params":null}"#,
        "nonsense",
        r#"{"error":{"message":"no"}}"#,
    ]
    .iter()
    .enumerate()
    {
        scripted
            .prefill
            .script(ScriptedReply::whole(json_reply("200 OK", "", reply)));
        assert_eq!(scripted.send(&format!("r{n}"), body).status, 200, "{reply}");
        assert_eq!(
            scripted.decode.next_request().body,
            body.as_bytes(),
            "{reply}"
        );
        assert_eq!(
            scripted.router.receipt(&format!("r{n}"))["prefill"]["reason"],
            "prefill_failed",
            "{reply}"
        );
    }
    scripted.router.wait_until_idle();
}

#[test]
fn a_request_that_the_prefill_worker_refuses_goes_to_the_decode_worker() {
    let pools = SimulatedPools::start(1, 1, "");
    let reply = pools.send_with("r", &chat("sim", &words("long", 60), 10_000_000), &[]);
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert_eq!(
        pools.router.workers()[0]["state"],
        "ready",
        "no worker is blamed"
    );
    pools.router.wait_until_idle();
}

#[test]
#[contract("F89")]
fn a_decode_worker_that_fails_is_replaced_and_the_prompt_handed_over_again() {
    let pools = SimulatedPools::start(1, 2, "");
    for (n, fault) in ["503", "reset"].into_iter().enumerate() {
        pools
            .decode
            .iter()
            .for_each(|engine| engine.fault("none", 1));
        let (_, before) = pools.send(&format!("before{n}"), &topic_chat(fault));
        let failing = if before["winner"]["worker"] == "d1" {
            0
        } else {
            1
        };
        pools.decode[failing].fault(fault, 1);
        let (reply, receipt) = pools.send(&format!("r{n}"), &topic_chat(fault));
        assert_eq!(reply.status, 200, "{fault}: {}", reply.text());
        let attempts = receipt["attempts"].as_array().expect("attempts");
        assert_eq!(attempts.len(), 2, "{fault}: {receipt:#}");
        assert_ne!(attempts[0]["target"], attempts[1]["target"]);
        assert_eq!(
            (&receipt["prefill"]["skipped"], &attempts[1]["result"]),
            (&json!(false), &json!("ok")),
            "{fault}"
        );
    }
    pools.router.wait_until_idle();
}

#[test]
#[contract("F34", "DY25")]
fn a_client_that_leaves_during_the_prefill_ends_it_and_the_decode_worker_gets_no_request() {
    let scripted = ScriptedPools::start("nixl", ScriptedReply::Silence, yes());
    for body in [chat("m", "hi", 2), streamed(chat("m", "hi", 2))] {
        let client = RawClient::chat(&scripted.router.data(), &body);
        scripted.prefill.next_request();
        drop(client);
        scripted.prefill.hang_up();
    }
    scripted.router.wait_until_idle();
    assert_eq!(scripted.decode.requests(), 0);
    assert!(
        scripted
            .router
            .receipts()
            .iter()
            .all(|receipt| receipt["outcome"]["kind"] == "client_gone")
    );
    assert_eq!(
        scripted
            .router
            .metric("warmroute_prefill_total", "result=\"unfinished\""),
        2.0
    );
}

#[test]
#[contract("F35", "DY25")]
fn a_client_that_leaves_during_the_reply_ends_it_and_frees_both_loads() {
    let offered = ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"kv_transfer_params":{"remote_host":"h"}}"#,
    ));
    let begun = [stream_head(), chunk(b"data: {\"choices\":[]}\n\n")].concat();
    let scripted = ScriptedPools::start("nixl", offered, ScriptedReply::Stall(begun));
    let mut client = RawClient::chat(&scripted.router.data(), &streamed(chat("m", "hi", 2)));
    client.read_until("choices");
    drop(client);
    scripted.decode.hang_up();
    scripted.router.wait_until_idle();
}

#[test]
#[contract("S43")]
fn a_client_may_not_send_kv_transfer_fields() {
    let scripted = ScriptedPools::start("nixl", yes(), yes());
    let fields = [
        (
            "kv_transfer_params",
            json!({"do_remote_prefill": true, "remote_host": "10.0.0.9"}),
        ),
        ("ec_transfer_params", json!({})),
        ("bootstrap_host", json!("10.0.0.9")),
        ("bootstrap_port", json!(1)),
        ("bootstrap_room", json!(7)),
    ];
    for (field, value) in fields {
        let mut body = chat("m", "hi", 2);
        body[field] = value;
        let reply = scripted.send("r", &body.to_string());
        assert_eq!(
            (reply.status, reply.error_code().as_str()),
            (403, "field_not_allowed"),
            "{field}"
        );
        assert_eq!(reply.json()["error"]["param"], field);
    }
    assert_eq!(scripted.prefill.requests() + scripted.decode.requests(), 0);
}

#[test]
#[contract("DY26")]
fn prefill_workers_alone_serve_no_request() {
    let engine = ScriptedEngine::start(yes());
    let router = serve(&worker("p", &engine.url(), "prefill", ""), "").ready(1);
    let reply = RawClient::post(
        &router.data(),
        super::pools::CHAT,
        chat("m", "hi", 2).to_string().as_bytes(),
    );
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (503, "no_worker")
    );
    assert_eq!(router.receipts()[0]["excluded"][0]["reason"], "role");
    assert_eq!(engine.requests(), 0);
}
