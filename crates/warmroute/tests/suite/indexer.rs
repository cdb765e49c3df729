//! `warmroute indexer` beside real engines, and the same API at a router's admin listener.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{Program, RawClient, RawReply, RoutedFleet, SimControls, eventually};

const BLOCK: u64 = 16;

fn indexer(flags: &[&str]) -> Program {
    Program::start(&[&["indexer", "--listen", "127.0.0.1:0"], flags].concat())
}

fn post(address: &str, path: &str, body: &Value) -> RawReply {
    RawClient::post(address, path, body.to_string().as_bytes())
}

fn done(address: &str, path: &str, body: &Value) -> Value {
    let reply = post(address, path, body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

/// The registration of an engine's rank.
fn engine(program: &Program, instance: &str, rank: usize) -> Value {
    json!({
        "endpoint": program.ready["kv_events"][rank], "replay_endpoint": program.ready["replay"][rank], "type": "vLLM",
        "modelname": "sim", "instance_id": instance, "block_size": BLOCK, "dp_rank": rank,
    })
}

fn tokens(from: u32) -> Vec<u32> {
    (from..from + 200).collect()
}

/// Computes the prompt at the engine; returns its cached tokens.
fn complete(address: &str, from: u32, fields: &Value) -> u64 {
    let mut body = json!({"model": "sim", "prompt": tokens(from), "max_tokens": 1});
    for (key, value) in fields.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    let usage = done(address, "/v1/completions", &body)["usage"].clone();
    usage["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .expect("usage tells cached tokens")
}

fn query(from: u32) -> Value {
    json!({"model": "sim", "token_ids": tokens(from), "block_size": BLOCK})
}

fn row(ranks: &Value, longest: u64) -> Value {
    json!({"longest_matched": longest, "GPU": longest, "DP": ranks, "CPU": 0, "DISK": 0})
}

fn until(address: &str, path: &str, body: &Value, expected: &Value) {
    let mut last = Value::Null;
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("the answer", || {
            last = done(address, path, body);
            (last == *expected).then_some(())
        });
    }));
    assert!(
        waited.is_ok(),
        "{path} {body}: expected {expected}, last {last}"
    );
}

#[test]
#[contract("MC1", "MC2", "MC4", "MC11", "MC12")]
fn a_running_engine_is_indexed_from_its_replay_and_dropped_when_unregistered() {
    let (one, other) = (
        Program::engine(&["--speed", "20"]),
        Program::engine(&["--speed", "20"]),
    );
    assert_eq!(complete(&one.data(), 1000, &json!({})), 0);
    let indexer = indexer(&[]);
    let address = indexer.data();
    assert_eq!(
        (&indexer.ready["role"], &indexer.ready["admin"]),
        (&json!("indexer"), &Value::Null)
    );
    done(&address, "/register", &engine(&one, "one", 0));
    done(&address, "/register", &engine(&other, "other", 0));
    let whole = 200 / BLOCK * BLOCK;
    let reply = |one: u64, other: u64| json!({"default": {"one": row(&json!({"0": one}), one), "other": row(&json!({"0": other}), other)}});
    until(&address, "/query", &query(1000), &reply(whole, 0));
    // The indexer's answer equals the engine's cache hit.
    assert_eq!(complete(&one.data(), 1000, &json!({})), whole);
    complete(&other.data(), 5000, &json!({}));
    until(&address, "/query", &query(5000), &reply(0, whole));
    let gone = json!({"instance_id": "one", "dp_rank": 0});
    done(&address, "/unregister", &gone);
    assert_eq!(
        done(&address, "/query", &query(1000)),
        json!({"default": {"other": row(&json!({"0": 0}), 0)}})
    );
    assert_eq!(post(&address, "/unregister", &gone).status, 404);
}

#[test]
#[contract("MC3", "MC6", "MC11", "MC13")]
fn adapters_and_salts_are_found_by_plain_tokens_in_their_own_dimensions() {
    let sim = Program::engine(&["--speed", "20", "--loras", "sql"]);
    let indexer = indexer(&[]);
    let address = indexer.data();
    done(&address, "/register", &engine(&sim, "i", 0));
    complete(&sim.data(), 1000, &json!({"model": "sql"}));
    complete(&sim.data(), 2000, &json!({"cache_salt": "customer"}));
    let whole = 200 / BLOCK * BLOCK;
    for (from, fields, matched) in [
        (1000, json!({"lora_name": "sql"}), whole),
        (2000, json!({"cache_salt": "customer"}), whole),
        (1000, json!({}), 0),
        (2000, json!({}), 0),
        (
            2000,
            json!({"lora_name": "sql", "cache_salt": "customer"}),
            0,
        ),
    ] {
        let mut question = query(from);
        for (key, value) in fields.as_object().unwrap() {
            question[key] = value.clone();
        }
        until(
            &address,
            "/query",
            &question,
            &json!({"default": {"i": row(&json!({"0": matched}), matched)}}),
        );
    }
}

#[test]
#[contract("MC11")]
fn a_restarted_engine_is_followed_with_an_empty_cache() {
    let sim = Program::engine(&["--speed", "20"]);
    let indexer = indexer(&[]);
    let address = indexer.data();
    done(&address, "/register", &engine(&sim, "i", 0));
    complete(&sim.data(), 1000, &json!({}));
    let whole = 200 / BLOCK * BLOCK;
    let reply = |tokens: u64| json!({"default": {"i": row(&json!({"0": tokens}), tokens)}});
    until(&address, "/query", &query(1000), &reply(whole));
    done(&sim.data(), "/sim/events", &json!({"action": "restart"}));
    complete(&sim.data(), 3000, &json!({}));
    until(&address, "/query", &query(3000), &reply(whole));
    assert_eq!(
        done(&address, "/query", &query(1000)),
        reply(0),
        "the blocks from before the restart are removed"
    );
}

#[test]
#[contract("MC4", "MC12")]
fn the_routers_own_workers_are_instances_beside_the_registered_ones() {
    let routed = RoutedFleet::start(&[&["--dp-size", "2"]]);
    let beside = Program::engine(&["--speed", "20"]);
    let admin = routed.router.admin();
    let worker = RawClient::get(&admin, "/admin/workers").json()["workers"][0]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    complete(&routed.router.data(), 1000, &json!({}));
    routed.caught_up();
    done(&admin, "/register", &engine(&beside, "beside", 0));
    complete(&beside.data(), 1000, &json!({}));
    let whole = 200 / BLOCK * BLOCK;
    let reply = eventually("both to hold the prompt", || {
        let reply = done(&admin, "/query", &query(1000))["default"].clone();
        let holds = |name: &str| reply[name]["longest_matched"] == whole;
        (holds(&worker) && holds("beside")).then_some(reply)
    });
    let ranks = &reply[&worker]["DP"];
    let mut matched: Vec<_> = ["0", "1"]
        .iter()
        .map(|rank| ranks[rank].as_u64().unwrap())
        .collect();
    matched.sort_unstable();
    assert_eq!(matched, [0, whole], "one of its two ranks computed it");
    assert_eq!(reply[&worker]["GPU"], whole);

    let services = RawClient::get(&admin, "/services").json();
    let seen: Vec<_> = services["services"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (&it["instance_id"], &it["source"]))
        .collect();
    let router = (&json!(worker), &json!("router"));
    assert_eq!(
        seen,
        [router, router, (&json!("beside"), &json!("registered"))]
    );
    let taken = post(&admin, "/register", &engine(&beside, &worker, 0));
    assert_eq!(
        (taken.status, &taken.json()["field"]),
        (409, &json!("instance_id"))
    );
    // A registered publisher gets no requests, and its events do not reach the router's workers.
    assert_eq!(
        RawClient::get(&admin, "/admin/workers").json()["workers"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let tokens = RawClient::get(&admin, "/global_view").json()["models"][0]["instances"].clone();
    assert_eq!(
        tokens
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["tokens"]["gpu"].as_u64().unwrap())
            .sum::<u64>(),
        2 * whole
    );
    assert_eq!(beside.stats()["executions"], 1);
    let digest = RawClient::get(&admin, "/admin/kv-index/digest").json();
    let rows: Vec<_> = digest["targets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (&row["worker"], &row["digest"]))
        .collect();
    let [(first, one), (second, other)] = rows[..] else {
        panic!("{digest}")
    };
    assert_eq!(
        (first, second, one),
        (&json!(worker), &json!("beside"), other),
        "both hold the same blocks"
    );
}

#[test]
#[contract("S15", "S37")]
fn a_configured_token_is_required_and_a_non_loopback_listener_needs_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    let file = file.display().to_string();
    let indexer = indexer(&["--admin-token-file", &file]);
    let send = |headers: &[(&str, &str)]| {
        RawClient::post_with(
            &indexer.data(),
            "/query",
            headers,
            query(1).to_string().as_bytes(),
        )
    };
    let refused = send(&[]);
    assert_eq!(
        (refused.status, &refused.json()["field"]),
        (401, &Value::Null)
    );
    assert!(
        refused.json()["error"]
            .as_str()
            .unwrap()
            .contains("Authorization: Bearer"),
        "{}",
        refused.text()
    );
    assert_eq!(
        send(&[("authorization", "Bearer 0123456789abcdeF")]).status,
        401
    );
    assert_eq!(
        send(&[("authorization", "Bearer 0123456789abcdef")]).json(),
        json!({})
    );
    let open = Program::finish(&["indexer", "--listen", "0.0.0.0:0"]);
    assert_eq!(open.code, Some(78), "{}", open.stderr);
    assert!(
        open.stderr.contains("--admin-token-file"),
        "{}",
        open.stderr
    );
}

#[test]
fn a_signal_ends_the_indexer_and_a_taken_port_or_a_bad_flag_is_reported() {
    let first = indexer(&[]);
    let taken = Program::finish(&["indexer", "--listen", &first.data()]);
    assert_eq!(taken.code, Some(1));
    assert!(
        taken.stderr.contains("already in use") && taken.stderr.contains("--listen"),
        "{}",
        taken.stderr
    );
    let bad = Program::finish(&["indexer", "--memory-budget", "plenty"]);
    assert_eq!(bad.code, Some(2));
    assert!(bad.stderr.contains("--memory-budget"), "{}", bad.stderr);
    first.signal("TERM");
    assert_eq!(first.wait().code, Some(0));
}
