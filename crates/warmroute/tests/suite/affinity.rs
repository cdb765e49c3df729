//! Policies that keep requests together by the beginning of the prompt or by the session.

use std::collections::BTreeSet;

use contract_id::contract;
use serde_json::{Value, json};

use crate::{
    harness::{
        RawClient, RoutedFleet, RoutedReply, RouterQueries, assert_shape, chat_message, eventually,
        words,
    },
    prefix_stream::PrefixStream,
};

/// `continuum_prefix_routing_requests_total` by strategy.
fn strategies(routed: &RoutedFleet) -> [u64; 3] {
    ["prefix_hash", "overflow", "fallback"].map(|strategy| {
        let labels = format!("strategy=\"{strategy}\"");
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a counter"
        )]
        let count = routed
            .router
            .metric("continuum_prefix_routing_requests_total", &labels) as u64;
        count
    })
}

fn workers(turns: &[RoutedReply]) -> BTreeSet<&str> {
    turns.iter().map(|turn| turn.worker.as_str()).collect()
}

/// Sends chats of one assistant, each with its own question.
fn send_chats(routed: &RoutedFleet, assistant: &str, chats: u32) -> Vec<RoutedReply> {
    let send = |n: u32| {
        let messages = [
            chat_message("system", assistant),
            chat_message("user", &format!("question {n}")),
        ];
        routed.chat(&messages, &[])
    };
    (0..chats).map(send).collect()
}

#[test]
#[contract("CK1", "CK7", "CK15", "CK18", "CK19", "CK66", "CK67")]
fn one_system_prompt_stays_on_one_engine_even_after_a_restart() {
    let mut routed = RoutedFleet::with(&[&[], &[], &[]], "prefix_routing: {enabled: true}\n", &[]);
    assert_eq!(
        strategies(&routed),
        [0, 0, 0],
        "all of them are present from the start"
    );
    let assistants: Vec<String> = (0..12).map(assistant).collect();
    let first: Vec<Vec<RoutedReply>> = assistants
        .iter()
        .map(|assistant| send_chats(&routed, assistant, 3))
        .collect();
    for turns in &first {
        assert_eq!(workers(turns).len(), 1, "{turns:?}");
    }
    let used: BTreeSet<&str> = first.iter().flat_map(|turns| workers(turns)).collect();
    assert!(used.len() > 1, "different ones are spread: {used:?}");
    assert_eq!(strategies(&routed), [36, 0, 0]);
    let cardinality = || {
        routed
            .router
            .metric("continuum_prefix_routing_prefix_cardinality", "")
    };
    assert_eq!(
        cardinality(),
        12.0,
        "one for each assistant, however many requests it sent"
    );
    let receipt = routed.receipt(&first[0][0]);
    assert_eq!(
        (&receipt["policy"], &receipt["method"]),
        (&json!("continuum"), &json!("policy"))
    );

    // Token ids have no text prefix to hash.
    let ids = routed.completion(json!({"prompt": [1, 2, 3, 4]}), &[]);
    assert_eq!(routed.receipt(&ids)["method"], "fallback");
    assert_eq!(strategies(&routed), [36, 0, 1]);
    assert_eq!(cardinality(), 12.0);

    routed.restart_router();
    for (assistant, turns) in assistants.iter().zip(&first) {
        assert_eq!(workers(&send_chats(&routed, assistant, 1)), workers(turns));
    }
}

#[test]
#[contract("CK17", "CK18", "CK66", "CK67", "CK73")]
fn a_burst_of_one_system_prompt_overflows_to_the_next_engine() {
    let slow: &[&str] = &["--speed", "0.5"];
    let routed = RoutedFleet::with(
        &[slow, slow, slow, slow],
        "",
        &["--policy", "PrefixAwareHash"],
    );
    let body = json!({
        "model": "sim", "max_tokens": 300, "ignore_eos": true,
        "messages": [chat_message("system", &words("shared", 30)), chat_message("user", "hello")],
    });
    let clients: Vec<RawClient> = (0..16)
        .map(|_| RawClient::chat(&routed.router.data(), &body))
        .collect();
    let distribution = |worker: &str| {
        routed.router.metric(
            "continuum_prefix_routing_backend_distribution",
            &format!("backend=\"{worker}\""),
        )
    };
    eventually("load to show", || {
        ["a", "b", "c", "d"]
            .iter()
            .any(|worker| distribution(worker) > 0.0)
            .then_some(())
    });
    let owners: Vec<String> = clients
        .into_iter()
        .map(|mut client| {
            client
                .reply()
                .header("x-warmroute-worker")
                .expect("the reply names its worker")
                .to_owned()
        })
        .collect();
    // With 16 in flight, a quarter above an even share is 5; no engine exceeded its cap at any
    // time.
    for worker in ["a", "b", "c", "d"] {
        assert!(
            owners.iter().filter(|owner| *owner == worker).count() <= 5,
            "{owners:?}"
        );
    }
    let [owner, overflow, fallback] = strategies(&routed);
    assert_eq!((owner + overflow, fallback), (16, 0));
    assert!(overflow > 0, "{owner} {overflow}");
    routed.router.wait_until_idle();
    let stats = RawClient::get(&routed.router.admin(), "/admin/prefix-routing/stats").json();
    let decisions = &stats["routing_decisions"];
    assert_eq!(
        (&decisions["overflow"], &decisions["total"]),
        (&json!(overflow), &json!(16))
    );
    #[allow(clippy::cast_precision_loss, reason = "a handful")]
    let rate = format!("{:.4}", overflow as f64 / 16.0);
    assert_eq!(decisions["overflow_rate"], rate);
    assert!(
        ["a", "b", "c", "d"]
            .iter()
            .all(|worker| distribution(worker) == 0.0),
        "every worker has its series"
    );
}

#[test]
#[contract("CK67", "CK73")]
fn prefix_routing_stats_have_the_documented_keys_and_types() {
    let config = "prefix_routing: {enabled: true, max_prefix_length: 256, load_factor_epsilon: 0.5, virtual_nodes: 40}\n";
    let routed = RoutedFleet::with(&[&[], &[]], config, &[]);
    let stats = || RawClient::get(&routed.router.admin(), "/admin/prefix-routing/stats").json();
    let template = json!({
        "enabled": "bool",
        "config": {
            "max_prefix_length": "int", "load_factor_epsilon": "number", "virtual_nodes": "int",
            "anthropic_cache_control_injection": "bool",
        },
        "routing_decisions": {
            "total": "int", "prefix_hash": "int", "overflow": "int", "fallback": "int", "overflow_rate": "string",
        },
        "backend_distribution": [{"backend": "string", "in_flight_requests": "int"}],
        "unique_prefixes": "int",
    });
    let before = stats();
    assert_shape(&before, &template);
    let nothing_yet = json!({"total": 0, "prefix_hash": 0, "overflow": 0, "fallback": 0, "overflow_rate": "0.0000"});
    assert_eq!(
        (&before["routing_decisions"], &before["unique_prefixes"]),
        (&nothing_yet, &json!(0))
    );

    send_chats(&routed, "You are brief.", 3);
    send_chats(&routed, "You are thorough.", 1);
    routed.completion(json!({"prompt": [1, 2, 3]}), &[]);
    let idle = |backend: &str| json!({"backend": backend, "in_flight_requests": 0});
    let whole = json!({
        "enabled": true,
        "config": {
            "max_prefix_length": 256, "load_factor_epsilon": 0.5, "virtual_nodes": 40,
            "anthropic_cache_control_injection": false,
        },
        "routing_decisions": {
            "total": 5, "prefix_hash": 4, "overflow": 0, "fallback": 1, "overflow_rate": "0.0000",
        },
        "backend_distribution": [idle("a"), idle("b")],
        "unique_prefixes": 2,
    });
    routed.router.wait_until_idle();
    assert_eq!(stats(), whole);
}

#[test]
#[contract("V24", "V25", "V27")]
fn a_session_stays_on_one_engine_whether_a_header_or_a_field_names_it() {
    for policy in ["rendezvous_hash", "consistent_hash"] {
        let routed = RoutedFleet::with(&[&[], &[], &[]], "", &["--policy", policy]);
        let turns = |headers: &[(&str, &str)], fields: &Value| -> Vec<RoutedReply> {
            let turn = |n: u32| {
                let mut body = fields.clone();
                body["prompt"] = words(&format!("turn {n}"), 20).into();
                routed.completion(body, headers)
            };
            (0..4).map(turn).collect()
        };
        let mut homes = BTreeSet::new();
        for n in 0..8 {
            let name = format!("session-{n}");
            let by_header = turns(&[("x-session-id", &name)], &json!({}));
            let by_field = turns(&[], &json!({"user": name}));
            let by_both = turns(
                &[("x-session-id", &name)],
                &json!({"user": "somebody else"}),
            );
            let all: BTreeSet<&str> = [&by_header, &by_field, &by_both]
                .into_iter()
                .flat_map(|it| workers(it))
                .collect();
            assert_eq!(all.len(), 1, "{policy} {name}: {all:?}");
            homes.extend(all.into_iter().map(str::to_owned));
        }
        assert!(homes.len() > 1, "{policy}: {homes:?}");
        assert_eq!(routed.receipt(&turns(&[], &json!({}))[0])["policy"], policy);
    }
}

#[test]
#[contract("CK42", "CK44", "CK57", "CK62", "CK63", "CK64", "A12")]
fn a_prefix_announced_by_a_backend_goes_there_and_other_prefixes_follow_the_ring() {
    let stream = PrefixStream::start();
    let config = format!(
        "prefix_routing: {{enabled: true}}\nkv_cache_index:\n  enabled: true\n  event_sources:\n    - {{backend_name: b, \
         endpoint: \"{}\"}}\n",
        stream.url()
    );
    // The engines' own events would place the requests as well.
    let silent: &[&str] = &["--no-kv-events"];
    let routed = RoutedFleet::with(&[silent, silent, silent], &config, &[]);
    let stats = || RawClient::get(&routed.router.admin(), "/admin/kv-index/stats").json();
    let known = |entries: u64| {
        eventually("the prefix view to follow", || {
            (stats()["index"]["entry_count"] == entries).then_some(())
        });
    };

    // Picks a prompt that the ring does not send to b.
    let elsewhere = |n: &u32| send_chats(&routed, &assistant(*n), 1)[0].worker != "b";
    let assistant_text = (0..20)
        .find(elsewhere)
        .map(assistant)
        .expect("a ring has more than one owner");
    let cached_turns = send_chats(&routed, &assistant_text, 2);
    assert!(!workers(&cached_turns).contains("b") && workers(&cached_turns).len() == 1);
    assert_eq!(stats()["routing_decisions"]["kv_aware"], 0);

    stream.publish("cache_created", &assistant_text, 4_000);
    known(1);
    // An earlier lookup of a prefix stays valid for 100 ms.
    let first = eventually("the earlier lookup to expire", || {
        let turn = send_chats(&routed, &assistant_text, 1).remove(0);
        (turn.worker == "b").then_some(turn)
    });
    let receipt = routed.receipt(&first);
    assert_eq!(
        (&receipt["policy"], &receipt["method"]),
        (&json!("continuum"), &json!("policy"))
    );
    let count = |decision: &str| {
        stats()["routing_decisions"][decision]
            .as_u64()
            .expect("a number")
    };
    let (before, ring) = (count("kv_aware"), strategies(&routed));
    assert_eq!(
        workers(&send_chats(&routed, &assistant_text, 3)),
        BTreeSet::from(["b"])
    );
    assert_eq!(
        (count("kv_aware"), strategies(&routed)),
        (before + 3, ring),
        "the ring was not used"
    );
    assert_eq!(count("total"), count("kv_aware") + count("fallback"));

    stream.publish("cache_evicted", &assistant_text, 4_000);
    known(0);
    let back = eventually("the earlier lookup to expire", || {
        let turn = send_chats(&routed, &assistant_text, 1).remove(0);
        (turn.worker != "b").then_some(turn)
    });
    assert_eq!(back.worker, cached_turns[0].worker);
}

fn assistant(n: u32) -> String {
    format!("You are assistant {n}. {}", words(&n.to_string(), 30))
}
