//! Policy `lmcache_aware` of the real program, with a stand-in for LMCache's controller that
//! reports cache contents and may fail in every way.

use std::{sync::Arc, time::Duration};

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    ControllerBehavior, LmcacheController, RawClient, RoutedFleet, RouterQueries, Stopwatch,
    chat_message, eventually, words,
};

const WORKERS: &str = "/controller/workers";
const LOOKUP: &str = "/lookup";

/// Engines `a` and `b` with the instances `i-a` and `i-b`.
fn before(controller: &LmcacheController, mode: &str, more: &str) -> RoutedFleet {
    let keys = format!(
        "  policy: lmcache_aware\n  lmcache:\n    mode: {mode}\n    controller_url: {}\n    controller_api_key: sk-lmcache\n    \
         worker_map: {{i-a: a, i-b: b}}\n{more}",
        controller.url()
    );
    RoutedFleet::with_routing(&[&["--no-kv-events"], &["--no-kv-events"]], &keys)
}

/// The same with a poll interval of 50 ms, and more time for an answer than a busy machine needs.
fn followed(controller: &LmcacheController, mode: &str) -> RoutedFleet {
    followed_within(controller, mode, "60s\n    lookup_budget: 30s")
}

/// The same with this time for an answer.
fn followed_within(controller: &LmcacheController, mode: &str, limit: &str) -> RoutedFleet {
    let more = format!("    poll_interval: 50ms\n    controller_timeout: {limit}\n");
    let routed = before(controller, mode, &more);
    wait_for_controller(&routed);
    routed
}

/// Waits until the router has a reply of the controller.
fn wait_for_controller(routed: &RoutedFleet) {
    eventually("a reply of the controller", || {
        (routed.router.metric("warmroute_lmcache_workers", "") > 0.0).then_some(())
    });
}

/// A dry run for this prompt.
fn dry_run(routed: &RoutedFleet, prompt: &Value) -> Value {
    let body = json!({"model": "sim", "prompt": prompt}).to_string();
    RawClient::post(&routed.router.data(), "/v1/route", body.as_bytes()).json()
}

fn ids(from: u64, count: u64) -> Vec<u64> {
    (from..from + count).collect()
}

fn winner(dry_run: &Value) -> &str {
    dry_run["winner"]["worker"]
        .as_str()
        .unwrap_or_else(|| panic!("no winner in {dry_run:#}"))
}

fn term(dry_run: &Value, worker: &str, name: &str) -> Option<f64> {
    let rows = dry_run["candidates"].as_array().expect("candidates");
    rows.iter()
        .find(|row| row["target"]["worker"] == worker)
        .expect("its row")["terms"][name]
        .as_f64()
}

fn lookups(routed: &RoutedFleet, result: &str) -> f64 {
    routed.router.metric(
        "warmroute_lmcache_lookups_total",
        &format!("result=\"{result}\""),
    )
}

fn eventually_routed_by(routed: &RoutedFleet, method: &str) -> Value {
    eventually(&format!("the method {method}"), || {
        let dry_run = dry_run(routed, &json!("hello"));
        (dry_run["method"] == method).then_some(dry_run)
    })
}

#[test]
#[contract("V29")]
fn the_fuller_cache_gets_requests_unless_its_worker_is_busier() {
    let controller = LmcacheController::start();
    controller.holds("i-a", 60);
    controller.holds("i-b", 100);
    controller.holds("of another fleet", 10_000);
    let routed = followed(&controller, "occupancy");
    for n in 0..4 {
        let turn = routed.completion(json!({"prompt": words(&format!("topic{n}"), 30)}), &[]);
        assert_eq!(turn.worker, "b");
        let receipt = routed.receipt(&turn);
        assert_eq!(
            (&receipt["policy"], &receipt["method"]),
            (&json!("lmcache_aware"), &json!("policy"))
        );
        assert_eq!(
            (term(&receipt, "a", "keys"), term(&receipt, "b", "keys")),
            (Some(60.0), Some(100.0))
        );
        let rows = receipt["candidates"].as_array().expect("candidates");
        // 0.7 * 100/100 + 0.3, and 0.7 * 60/100 + 0.3.
        let costs: Vec<f64> = rows
            .iter()
            .map(|row| row["cost"].as_f64().expect("a cost"))
            .collect();
        assert!(
            costs[0].abs() < 1e-9 && (costs[1] - 0.28).abs() < 1e-9,
            "{costs:?}"
        );
    }
    assert!(
        controller
            .queries(WORKERS)
            .iter()
            .all(|it| it.authorization.as_deref() == Some("Bearer sk-lmcache"))
    );
    assert!(
        controller.queries(LOOKUP).is_empty(),
        "this mode asks about no prompt"
    );
    let body = json!({"model": "sim", "prompt": "go on", "max_tokens": 8_000, "ignore_eos": true, "stream": true});
    let busy: Vec<RawClient> = (0..3)
        .map(|_| {
            let mut client = RawClient::connect(&routed.router.data());
            let pin = [("x-warmroute-worker", "b")];
            client.send("POST", "/v1/completions", &pin, body.to_string().as_bytes());
            assert_eq!(client.head().status, 200);
            client
        })
        .collect();
    // 0.7 * 0.6 + 0.3 is more than 0.7.
    assert_eq!(winner(&dry_run(&routed, &json!("hello"))), "a");
    drop(busy);
}

#[test]
#[contract("V29")]
fn the_controller_is_polled_at_the_interval_and_not_more_often() {
    let controller = LmcacheController::start();
    controller.holds("i-a", 1);
    controller.holds("i-b", 2);
    let routed = before(&controller, "occupancy", "    poll_interval: 300ms\n");
    wait_for_controller(&routed);
    assert_eq!(winner(&dry_run(&routed, &json!("hello"))), "b");
    controller.holds("i-a", 3);
    eventually("the new limits to take effect", || {
        (winner(&dry_run(&routed, &json!("hello"))) == "a").then_some(())
    });
    let queries = eventually("four queries", || {
        Some(controller.queries(WORKERS)).filter(|queries| queries.len() >= 4)
    });
    for pair in queries.windows(2) {
        assert!(
            pair[0].at.until(pair[1].at) >= Duration::from_millis(280),
            "{:?}",
            pair[0].at.until(pair[1].at)
        );
    }
}

#[test]
#[contract("V29")]
fn a_failing_controller_costs_no_request_and_counts_again_when_it_is_back() {
    let controller = LmcacheController::start();
    controller.holds("i-a", 1);
    controller.holds("i-b", 2);
    let routed = followed_within(&controller, "occupancy", "200ms");
    for behavior in [
        ControllerBehavior::Failing,
        ControllerBehavior::Hanging,
        ControllerBehavior::Saying("<html>not found</html>"),
        ControllerBehavior::Saying(r#"{"workers": "none"}"#),
        // More than the router reads.
        ControllerBehavior::Saying(" ".repeat(2 << 20).leak()),
        ControllerBehavior::Saying(
            r#"{"workers": [{"instance_id": "i-z", "key_count": 5}, {"instance_id": "i-a"}]}"#,
        ),
    ] {
        controller.answers(WORKERS, behavior.clone());
        let fallen = eventually_routed_by(&routed, "fallback");
        assert_eq!(
            (&fallen["policy"], term(&fallen, "a", "fallback")),
            (&json!("lmcache_aware"), Some(1.0))
        );
        let turn = routed.completion(json!({"prompt": "hello"}), &[]);
        assert_eq!(
            (turn.reply.status, &routed.receipt(&turn)["method"]),
            (200, &json!("fallback")),
            "{behavior:?}"
        );
        controller.answers(WORKERS, ControllerBehavior::Well);
        assert_eq!(winner(&eventually_routed_by(&routed, "policy")), "b");
    }
    // The controller disappears, and a new one without state takes its port.
    let port = Arc::clone(&controller.port);
    drop(controller);
    eventually_routed_by(&routed, "fallback");
    let controller = LmcacheController::at(port);
    controller.holds("i-a", 7);
    assert_eq!(winner(&eventually_routed_by(&routed, "policy")), "a");
}

#[test]
#[contract("V29")]
fn a_hanging_controller_is_given_up_after_two_seconds_and_delays_no_request() {
    let controller = LmcacheController::start();
    controller.answers(WORKERS, ControllerBehavior::Hanging);
    let routed = before(&controller, "occupancy", "");
    let query = eventually("the first query", || {
        controller.queries(WORKERS).into_iter().next()
    });
    let given_up = || {
        routed
            .router
            .metric("warmroute_lmcache_polls_total", "result=\"failed\"")
    };
    eventually("a request that is answered while a query hangs", || {
        let before = (controller.queries(WORKERS).len(), given_up());
        let turn = routed.completion(json!({"prompt": "hello"}), &[]);
        assert_eq!(routed.receipt(&turn)["method"], "fallback");
        ((controller.queries(WORKERS).len(), given_up()) == before).then_some(())
    });
    eventually("the query to be given up", || {
        (given_up() >= 1.0).then_some(())
    });
    let took = query.at.elapsed();
    // The upper bound is for a busy machine; it is below that of any other limit.
    let expected = Duration::from_millis(1900)..Duration::from_secs(10);
    assert!(expected.contains(&took), "given up after {took:?}");
}

#[test]
#[contract("V30", "V42")]
fn a_prompt_goes_to_the_worker_that_holds_most_of_it() {
    let controller = LmcacheController::start();
    // Cache sizes alone would choose the other worker.
    controller.holds("i-a", 900);
    controller.holds("i-b", 1);
    let long = ids(1000, 200);
    controller.holds_prompt("i-a", &long[..32]);
    controller.holds_prompt("i-b", &long[..96]);
    controller.holds_prompt("of another fleet", &long);
    let routed = followed(&controller, "prefix_lookup");
    let decided = eventually("the controller to get a query", || {
        let dry_run = dry_run(&routed, &json!(long));
        (term(&dry_run, "b", "by_prefix") == Some(1.0)).then_some(dry_run)
    });
    assert_eq!(
        (winner(&decided), term(&decided, "b", "matched_tokens")),
        ("b", Some(96.0))
    );
    assert_eq!(term(&decided, "a", "matched_tokens"), Some(32.0));
    let turn = routed.completion(json!({"prompt": long}), &[]);
    assert_eq!(turn.worker, "b");
    let query = controller.queries(LOOKUP).pop().expect("it got a query");
    assert_eq!(
        (query.authorization.as_deref(), &query.body),
        (Some("Bearer sk-lmcache"), &json!({"tokens": long}))
    );
    // No instance holds this prompt: cache sizes decide.
    let other = dry_run(&routed, &json!(ids(5000, 200)));
    assert_eq!(
        (
            winner(&other),
            &other["method"],
            term(&other, "a", "by_prefix")
        ),
        ("a", &json!("policy"), Some(0.0))
    );
    assert!(lookups(&routed, "matched") >= 2.0 && lookups(&routed, "nothing") >= 1.0);
    // Without cache sizes the fallback decides.
    controller.answers(WORKERS, ControllerBehavior::Failing);
    eventually("the fallback", || {
        (dry_run(&routed, &json!(ids(5000, 200)))["method"] == "fallback").then_some(())
    });
    assert_eq!(
        winner(&dry_run(&routed, &json!(long))),
        "b",
        "lookups continue"
    );
}

#[test]
#[contract("V42")]
fn headers_of_vllm_router_report_a_decision_by_lookup() {
    let controller = LmcacheController::start();
    controller.holds("i-a", 1);
    let prompt = ids(1000, 64);
    controller.holds_prompt("i-b", &prompt);
    let routed = before(
        &controller,
        "prefix_lookup",
        "    poll_interval: 50ms\ncompat: {headers: [vllm-router]}\n",
    );
    wait_for_controller(&routed);
    let method = |prompt: &[u64]| {
        let turn = routed.completion(json!({"prompt": prompt}), &[]);
        turn.reply.header("x-vllm-router-method").map(str::to_owned)
    };
    eventually("a reply with that method", || {
        (method(&prompt).as_deref() == Some("lmcache-prefix")).then_some(())
    });
    assert_eq!(method(&ids(7000, 64)).as_deref(), Some("policy"));
}

#[test]
#[contract("V30")]
fn a_chat_is_looked_up_by_its_template_tokens_from_a_worker() {
    let controller = LmcacheController::start();
    controller.holds("i-a", 1);
    let more = "    poll_interval: 50ms\nmodels: {defaults: {tokenizer: engine}}\n";
    let routed = before(&controller, "prefix_lookup", more);
    wait_for_controller(&routed);
    let messages = [
        chat_message("system", "You are terse."),
        chat_message("user", &words("question", 20)),
    ];
    let body = json!({"model": "sim", "messages": messages}).to_string();
    let tokens =
        RawClient::post(&routed.engines[0].data(), "/tokenize", body.as_bytes()).json()["tokens"]
            .clone();
    let tokens: Vec<u64> = tokens
        .as_array()
        .expect("token ids")
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    controller.holds_prompt("i-b", &tokens);
    let receipt = eventually("a chat that was looked up by its tokens", || {
        let receipt = routed.receipt(&routed.chat(&messages, &[]));
        (term(&receipt, "b", "by_prefix") == Some(1.0)).then_some(receipt)
    });
    assert_eq!(receipt["prompt"]["source"], "engine_tokenize");
    assert_eq!(
        (winner(&receipt), term(&receipt, "b", "matched_tokens")),
        ("b", Some(tokens.len() as f64))
    );
}

#[test]
#[contract("V30")]
fn without_the_tokens_of_a_prompt_cache_sizes_decide() {
    let controller = LmcacheController::start();
    controller.holds("i-b", 1);
    let more = "    poll_interval: 50ms\nmodels: {defaults: {tokenizer: none}}\n";
    let routed = before(&controller, "prefix_lookup", more);
    wait_for_controller(&routed);
    let turn = routed.chat(&[chat_message("user", "hello")], &[]);
    assert_eq!(turn.worker, "b");
    assert!(lookups(&routed, "no_tokens") >= 1.0);
    assert!(
        controller
            .queries(LOOKUP)
            .iter()
            .all(|query| query.body == json!({"tokens": [0]})),
        "only the probe"
    );
}

#[test]
#[contract("V30")]
fn hanging_lookups_delay_few_requests_fail_none_and_count_again_once_answered() {
    let controller = LmcacheController::start();
    controller.holds("i-a", 5);
    let prompt = ids(1000, 64);
    controller.holds_prompt("i-b", &prompt);
    let routed = followed_within(&controller, "prefix_lookup", "200ms");
    let by_prefix = || {
        let dry_run = dry_run(&routed, &json!(prompt));
        (winner(&dry_run) == "b").then_some(())
    };
    eventually("lookups to be answered", by_prefix);
    controller.answers(LOOKUP, ControllerBehavior::Hanging);
    let begun = Stopwatch::start();
    let requests = 40;
    for _ in 0..requests {
        let turn = routed.completion(json!({"prompt": prompt}), &[]);
        assert_eq!((turn.reply.status, turn.worker.as_str()), (200, "a"));
    }
    // Without the limit each request would wait 200 ms.
    let (late, away) = (lookups(&routed, "late"), lookups(&routed, "away"));
    assert!(
        late >= 1.0 && away >= 30.0 && late + away == f64::from(requests),
        "{late} late, {away} away"
    );
    assert!(
        begun.elapsed() < Duration::from_millis(200) * requests,
        "{:?}",
        begun.elapsed()
    );
    controller.answers(LOOKUP, ControllerBehavior::Well);
    eventually("lookups to be answered again", by_prefix);
}

#[test]
#[contract("V30")]
fn a_request_waits_for_its_lookup_as_long_as_configured() {
    let controller = LmcacheController::start();
    controller.holds("i-a", 5);
    let prompt = ids(1000, 64);
    controller.holds_prompt("i-b", &prompt);
    let keys = "    poll_interval: 50ms\n    controller_timeout: 60s\n    lookup_budget: 30s\n";
    let routed = before(&controller, "prefix_lookup", keys);
    wait_for_controller(&routed);
    let by_prefix = || winner(&dry_run(&routed, &json!(prompt))) == "b";
    eventually("lookups to be answered", || by_prefix().then_some(()));
    // Four times the default.
    controller.answers(LOOKUP, ControllerBehavior::Slow(Duration::from_secs(1)));
    assert!(by_prefix());
    assert_eq!(lookups(&routed, "late"), 0.0);
}

#[test]
#[contract("V30")]
fn lookups_with_invalid_replies_leave_the_decision_to_cache_sizes() {
    let controller = LmcacheController::start();
    controller.holds("i-a", 5);
    let prompt = ids(1000, 64);
    controller.holds_prompt("i-b", &prompt);
    let routed = followed(&controller, "prefix_lookup");
    eventually("lookups to be answered", || {
        (winner(&dry_run(&routed, &json!(prompt))) == "b").then_some(())
    });
    for behavior in [
        ControllerBehavior::Failing,
        ControllerBehavior::Saying("{\"res\": \"i-b\"}"),
        ControllerBehavior::Saying("["),
        ControllerBehavior::Saying(
            r#"{"layout_info": {"i-z": ["LocalCPUBackend", 64], "i-b": ["LocalCPUBackend", -5]}}"#,
        ),
    ] {
        controller.answers(LOOKUP, behavior.clone());
        let dry_run = dry_run(&routed, &json!(prompt));
        assert_eq!(
            (winner(&dry_run), &dry_run["method"]),
            ("a", &json!("policy")),
            "{behavior:?}"
        );
    }
    assert!(lookups(&routed, "failed") >= 3.0);
    // A match counts at most the tokens of the query.
    controller.answers(
        LOOKUP,
        ControllerBehavior::Saying(
            r#"{"layout_info": {"i-b": ["LocalCPUBackend", 18446744073709551615]}}"#,
        ),
    );
    assert_eq!(
        term(&dry_run(&routed, &json!(prompt)), "b", "matched_tokens"),
        Some(64.0)
    );
}

#[test]
#[contract("V30")]
fn no_lookup_is_sent_without_a_choice_or_under_another_policy() {
    let controller = LmcacheController::start();
    controller.holds("i-a", 5);
    let prompt = ids(1000, 64);
    let routed = followed(&controller, "prefix_lookup");
    routed.completion(json!({"prompt": prompt}), &[("x-warmroute-worker", "b")]);
    routed.completion(
        json!({"prompt": prompt}),
        &[("x-warmroute-policy", "round_robin")],
    );
    assert!(
        controller
            .queries(LOOKUP)
            .iter()
            .all(|query| query.body == json!({"tokens": [0]}))
    );
}
