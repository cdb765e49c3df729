//! The members of each pool over time.

use std::net::TcpListener;

use contract_id::contract;
use serde_json::{Value, json};

use super::pools::{CHAT, SimulatedPools, serve, worker};
use crate::harness::{
    Program, RawClient, RouterQueries as _, SimControls as _, chat, eventually, words,
};

fn topic_chat(topic: &str) -> Value {
    chat("sim", &words(topic, 80), 6)
}

#[test]
#[contract("DY25", "DY26")]
fn a_pool_exists_from_its_first_worker_until_its_last() {
    let (unified, other) = (
        Program::engine(&["--speed", "20"]),
        Program::engine(&["--model", "other"]),
    );
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|it| it.local_addr())
        .expect("a free port")
        .port()
        .to_string();
    let late = format!("http://127.0.0.1:{port}");
    let workers = worker("u1", &unified.url(), "unified", "")
        + &worker("p1", &late, "prefill", "")
        + &worker("p9", &other.url(), "prefill", "");
    let router = serve(&workers, "").ready(2);
    let send = |id: &str| {
        let headers = [("x-request-id", id)];
        let reply = RawClient::post_with(
            &router.data(),
            CHAT,
            &headers,
            topic_chat(id).to_string().as_bytes(),
        );
        assert_eq!(reply.status, 200, "{}", reply.text());
        router.receipt(id)["prefill"].clone()
    };
    assert_eq!(
        send("before"),
        Value::Null,
        "pools meet by model name, and this model has no prefill worker yet"
    );
    let mut prefill = Program::engine(&["--port", &port, "--role", "prefill", "--speed", "20"]);
    eventually("the late worker to be ready", || {
        (router.workers()[1]["state"] == "ready").then_some(())
    });
    assert_eq!(send("while")["target"]["worker"], "p1");
    prefill.kill();
    let reasons = ["after1", "after2"].map(|id| send(id)["reason"].clone());
    assert_eq!(reasons[1], "no_prefill_worker", "{reasons:?}");
}

#[test]
#[contract("DY38", "DY25")]
fn a_worker_registered_with_the_role_prefill_computes_prompts_until_its_lease_ends() {
    let engines = ["prefill", "unified"].map(|role| {
        let role: &[&str] = if role == "prefill" {
            &["--role", role]
        } else {
            &[]
        };
        Program::engine(&[&["--speed", "20"], role].concat())
    });
    let router = serve(&worker("u1", &engines[1].url(), "unified", ""), "").ready(1);
    let ask = |id: &str| {
        let headers = [("x-request-id", id)];
        let body = topic_chat(id).to_string();
        let reply = RawClient::post_with(&router.data(), CHAT, &headers, body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        router.receipt(id)["prefill"].clone()
    };
    let register = |ttl: &str| {
        let body = json!({"url": engines[0].url(), "role": "prefill", "lease_ttl": ttl});
        let mut client = RawClient::connect(&router.admin());
        client.send("PUT", "/admin/workers/p1", &[], body.to_string().as_bytes());
        client.reply().status
    };
    let workers = || router.workers().len();
    assert_eq!(ask("before"), Value::Null);
    assert_eq!(register("10m"), 201);
    eventually("the registered worker to be ready", || {
        (router
            .workers()
            .iter()
            .filter(|worker| worker["state"] == "ready")
            .count()
            == 2)
            .then_some(())
    });
    assert_eq!(ask("registered")["target"]["worker"], "p1");
    assert_eq!(register("1s"), 200);
    eventually("the lease to end", || (workers() == 1).then_some(()));
    assert!(ask("after")["target"].is_null());
}

#[test]
#[contract("DY25")]
fn each_pool_has_its_own_policy_and_a_request_sets_that_of_the_decode_leg() {
    for keys in [
        "  prefill_policy: round_robin\n  decode_policy: kv_aware\n",
        "  models:\n    s*: {prefill_policy: round_robin, decode_policy: kv_aware}\n",
    ] {
        let pools = SimulatedPools::start(2, 2, keys);
        let send = |id: &str, headers: &[(&str, &str)]| {
            let reply = pools.send_with(id, &topic_chat("same"), headers);
            assert_eq!(reply.status, 200, "{}", reply.text());
            pools.router.receipt(id)
        };
        let receipts: Vec<Value> = (0..3).map(|n| send(&format!("r{n}"), &[])).collect();
        let prefills: Vec<_> = receipts
            .iter()
            .map(|receipt| &receipt["prefill"]["target"]["worker"])
            .collect();
        assert_eq!(prefills, ["p1", "p2", "p1"], "each in turn");
        assert!(
            receipts
                .iter()
                .all(|receipt| receipt["policy"] == "kv_aware")
        );
        assert!(
            receipts
                .iter()
                .all(|receipt| receipt["winner"] == receipts[0]["winner"]),
            "the longest prefix"
        );
        assert_eq!(
            send("named", &[("x-warmroute-policy", "random")])["policy"],
            "random"
        );
    }
}

#[test]
fn a_pinned_worker_is_used_in_its_own_role() {
    let pools = SimulatedPools::start(2, 2, "");
    for (n, name) in ["p2", "d2", "p1", "d1/0"].into_iter().enumerate() {
        let id = format!("r{n}");
        assert_eq!(
            pools
                .send_with(&id, &topic_chat("pinned"), &[("x-warmroute-worker", name)])
                .status,
            200
        );
        let receipt = pools.router.receipt(&id);
        let side = if name.starts_with('p') {
            &receipt["prefill"]["target"]
        } else {
            &receipt["winner"]
        };
        assert_eq!(side["worker"], name.trim_end_matches("/0"));
        assert_eq!(receipt["prefill"]["skipped"], false);
    }
}

#[test]
fn when_switched_off_no_request_is_split_and_prefill_workers_get_none() {
    let pools = SimulatedPools::start(1, 1, "disaggregation: {mode: off}\n");
    let (reply, receipt) = pools.send("r", &topic_chat("off"));
    assert_eq!((reply.status, &receipt["prefill"]), (200, &Value::Null));
    assert_eq!(receipt["excluded"][0]["reason"], "role");
    assert_eq!(pools.prefill[0].stats()["executions"], 0);
}

#[test]
fn a_request_with_several_prompts_is_not_split() {
    let pools = SimulatedPools::start(1, 1, "");
    let body =
        json!({"model": "sim", "prompt": [words("one", 40), words("two", 40)], "max_tokens": 4});
    let (reply, receipt) = pools.send("r", &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(receipt["prefill"]["reason"], "unsplittable");
}

#[test]
fn a_reservation_names_both_legs_and_holds_both() {
    let pools = SimulatedPools::start(1, 1, "");
    let route = |fields: Value| {
        let mut body = topic_chat("route");
        body.as_object_mut()
            .expect("an object")
            .remove("max_tokens");
        body.as_object_mut()
            .expect("an object")
            .extend(fields.as_object().expect("fields").clone());
        RawClient::post(
            &pools.router.data(),
            "/v1/route",
            body.to_string().as_bytes(),
        )
        .json()
    };
    let dry = route(json!({}));
    assert_eq!(
        (
            &dry["winner"]["worker"],
            &dry["prefill"]["target"]["worker"]
        ),
        (&json!("d1"), &json!("p1")),
        "{dry:#}"
    );
    assert_eq!(pools.router.metric("warmroute_leases", ""), 0.0);
    let kept = route(json!({"request_id": "k"}));
    assert_eq!(kept["reservation"]["request_id"], "k", "{kept:#}");
    let queued = || pools.router.workers()[0]["load"]["queued_prefill_tokens"].as_u64();
    assert!(queued() > Some(0));
    assert_eq!(pools.router.metric("warmroute_leases", ""), 2.0);
    RawClient::post(&pools.router.data(), "/v1/route/k/prefill_complete", b"");
    assert_eq!(
        (queued(), pools.router.metric("warmroute_leases", "")),
        (Some(0), 1.0)
    );
    let mut client = RawClient::connect(&pools.router.data());
    client.send("DELETE", "/v1/route/k", &[], b"");
    assert_eq!(client.reply().status, 200);
    pools.router.wait_until_idle();
}
