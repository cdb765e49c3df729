//! Requests go to the engine with their prompt, and the router's prediction equals the engine's
//! report.
//!
//! Every request here waits until the previous one's events have been applied, so predictions are
//! exact.

use std::thread;

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RoutedFleet, RoutedReply, RouterQueries, ScriptedEngine, ScriptedReply,
    chat_message, eventually, json_reply, words,
};

/// The tokens of the prompt that the winner of a receipt holds, by tier.
fn warm(receipt: &Value) -> &Value {
    let winner = receipt["candidates"]
        .as_array()
        .expect("candidates")
        .iter()
        .find(|row| row["rank"] == 1);
    &winner.expect("one candidate is first")["warm_tokens"]
}

fn assert_exact(turn: &RoutedReply) {
    assert_eq!(turn.predicted, turn.cached, "{turn:?}");
}

#[test]
#[contract("V6", "V7")]
fn a_chat_stays_on_its_warm_engine_and_every_prediction_is_exact() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    let mut chats: Vec<(Vec<Value>, Vec<RoutedReply>)> = ["red", "blue"]
        .map(|topic| (vec![chat_message("system", &words(topic, 40))], Vec::new()))
        .into();
    for n in 0..4 {
        for (messages, turns) in &mut chats {
            messages.push(chat_message(
                "user",
                &words(&format!("turn{n}of{}", turns.len()), 10),
            ));
            let turn = routed.chat(messages, &[]);
            messages.push(chat_message("assistant", &turn.text));
            turns.push(turn);
        }
    }
    for (_, turns) in &chats {
        turns.iter().for_each(assert_exact);
        for pair in turns.windows(2) {
            assert_eq!(pair[1].worker, pair[0].worker);
            // All whole blocks of the previous turn with its reply, minus the token that is always
            // computed.
            assert!(pair[1].cached + 16 >= pair[0].prompt_tokens, "{pair:?}");
        }
        let receipt = routed.receipt(&turns[3]);
        assert_eq!(receipt["policy"], "warm");
        assert_eq!(
            (&receipt["prompt"]["source"], &receipt["prompt"]["exact"]),
            (&json!("tokens"), &json!(true))
        );
        assert_eq!(receipt["prompt"]["tokens"], turns[3].prompt_tokens);
        assert_eq!(receipt["outcome"]["drift_tokens"], 0);
        assert!(
            warm(&receipt)["device"].as_u64() >= Some(turns[3].cached),
            "{receipt:#}"
        );
    }
    assert_ne!(
        chats[0].1[0].worker, chats[1].1[0].worker,
        "a chat that is warm nowhere goes to the idle engine"
    );
}

#[test]
fn completions_are_matched_by_their_text_or_their_token_ids() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    let text = json!({"prompt": words("story", 60)});
    let ids = json!({"prompt": (1000..1100).collect::<Vec<u32>>()});
    for (fields, source) in [(text, "tokens"), (ids, "given")] {
        let first = routed.completion(fields.clone(), &[]);
        let second = routed.completion(fields, &[]);
        assert_exact(&first);
        assert_exact(&second);
        assert!(second.cached > 0, "{second:?}");
        assert_eq!(second.worker, first.worker);
        assert_eq!(routed.receipt(&second)["prompt"]["source"], source);
        assert_eq!(
            routed.receipt(&second)["prompt"]["tokens"],
            second.prompt_tokens
        );
    }
}

#[test]
fn salts_and_adapters_have_their_own_caches() {
    let routed = RoutedFleet::start(&[&["--loras", "red,blue"]]);
    let prompt = words("same", 50);
    let mut fields = json!({"prompt": prompt});
    let mut twice = |key: &str, value: &str| {
        fields[key] = json!(value);
        let turns = [
            routed.completion(fields.clone(), &[]),
            routed.completion(fields.clone(), &[]),
        ];
        turns.iter().for_each(assert_exact);
        assert_eq!(
            turns[0].cached, 0,
            "no other blocks count for {key} {value}"
        );
        assert!(
            turns[1].cached > 0,
            "its own blocks count for {key} {value}"
        );
    };
    twice("model", "sim");
    twice("cache_salt", "tenant-1");
    twice("cache_salt", "tenant-2");
    twice("model", "red");
    twice("model", "blue");
}

#[test]
fn every_rank_of_a_worker_has_its_own_cache() {
    let routed = RoutedFleet::start(&[&["--dp-size", "2"], &[]]);
    assert_eq!(routed.worker("a")["dp_ranks"], 2);
    assert_eq!(routed.streams().len(), 3, "one stream per rank");
    let prompt = json!({"prompt": words("ranked", 50)});
    for rank in ["a/1", "a/0"] {
        let pinned = [("x-warmroute-worker", rank)];
        let turns = [
            routed.completion(prompt.clone(), &pinned),
            routed.completion(prompt.clone(), &pinned),
        ];
        turns.iter().for_each(assert_exact);
        assert_eq!(
            turns[0].cached, 0,
            "the other rank's blocks are not this one's"
        );
        assert!(turns[1].cached > 0);
        let receipt = routed.receipt(&turns[1]);
        let (worker, number) = rank.split_once('/').expect("name and rank");
        assert_eq!(
            receipt["winner"],
            json!({"worker": worker, "dp_rank": number.parse::<u32>().expect("a rank")})
        );
    }
}

#[test]
#[contract("CK84", "V11", "V12")]
fn events_in_the_older_layouts_give_the_same_index_even_after_a_router_restart() {
    let old = [
        "--event-format",
        "array",
        "--hash-format",
        "bytes",
        "--replay-format",
        "old",
    ];
    let mut routed = RoutedFleet::start(&[&old, &[]]);
    let chats = ["old", "new"].map(|topic| [chat_message("user", &words(topic, 60))]);
    let first: Vec<RoutedReply> = chats
        .iter()
        .map(|messages| routed.chat(messages, &[]))
        .collect();
    assert_ne!(first[0].worker, first[1].worker);
    let before = routed.digest();
    assert_eq!(
        before["targets"].as_array().map(Vec::len),
        Some(2),
        "{before:#}"
    );

    routed.restart_router();

    assert_eq!(
        routed.digest(),
        before,
        "the replay gives the same index back"
    );
    for (messages, first) in chats.iter().zip(&first) {
        let again = routed.chat(messages, &[]);
        assert_exact(&again);
        assert!(again.cached > 0, "{again:?}");
        assert_eq!(again.worker, first.worker);
    }
}

#[test]
fn a_worker_behind_a_unix_socket_works_with_events_over_ipc() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (http, events, replay) = (
        path("http"),
        format!("ipc://{}", path("ev")),
        format!("ipc://{}", path("re")),
    );
    let _engine = Program::engine(&[
        "--uds",
        &http,
        "--kv-events",
        &events,
        "--replay",
        &replay,
        "--speed",
        "20",
    ]);
    let router = Program::serve(&[format!("unix://{http}")], &[]).ready(1);
    let name = format!("unix:{}", http.trim_start_matches('/').replace('/', "-"));
    assert_eq!(router.workers()[0]["name"], name);
    let chat = json!({
        "model": "sim", "messages": [chat_message("user", &words("socket", 40))], "max_tokens": 4, "ignore_eos": true,
    });
    let send = || {
        RawClient::post(
            &router.data(),
            "/v1/chat/completions",
            chat.to_string().as_bytes(),
        )
    };
    assert_eq!(send().header("x-warmroute-worker"), Some(&*name));
    eventually("the events to arrive", || {
        (router.workers()[0]["warm_blocks"]["device"] != 0).then_some(())
    });
    eventually("the stream to be live", || {
        (router.workers()[0]["cache_source"] == "events").then_some(())
    });
    let predicted = send()
        .header("x-warmroute-predicted-cached-tokens")
        .map(str::to_owned);
    assert!(
        predicted.as_deref().is_some_and(|tokens| tokens != "0"),
        "{predicted:?}"
    );
}

#[test]
#[contract("V19")]
fn evicted_blocks_are_not_predicted() {
    let routed = RoutedFleet::start(&[&["--kv-blocks", "48"]]);
    let chat = |topic: &str| routed.chat(&[chat_message("user", &words(topic, 60))], &[]);
    assert_exact(&chat("kept"));
    let warm = chat("kept");
    assert_exact(&warm);
    assert!(warm.cached > 0);
    for topic in ["one", "two", "three", "four"] {
        assert_exact(&chat(topic));
    }
    let evicted = chat("kept");
    assert_exact(&evicted);
    assert!(evicted.cached < warm.cached, "{evicted:?}");
}

#[test]
fn blocks_in_host_memory_count_as_host_blocks() {
    let routed = RoutedFleet::start(&[&["--kv-blocks", "48", "--host-blocks", "1000"]]);
    let chat = |topic: &str| routed.chat(&[chat_message("user", &words(topic, 60))], &[]);
    assert_exact(&chat("kept"));
    for topic in ["one", "two", "three", "four"] {
        assert_exact(&chat(topic));
    }
    assert_ne!(routed.worker("a")["warm_blocks"]["host"], 0);
    let back = chat("kept");
    assert_exact(&back);
    assert!(back.cached > 0, "{back:?}");
    let receipt = routed.receipt(&back);
    assert!(warm(&receipt)["host"].as_u64() > Some(0), "{receipt:#}");
}

#[test]
#[contract("V12")]
fn a_cache_cleared_by_the_engine_is_cleared_in_the_index() {
    let routed = RoutedFleet::start(&[&[]]);
    let messages = [chat_message("user", &words("gone", 60))];
    routed.chat(&messages, &[]);
    assert_ne!(routed.worker("a")["warm_blocks"]["device"], 0);
    let reset = RawClient::post(&routed.engines[0].data(), "/reset_prefix_cache", b"");
    assert_eq!(reset.json()["success"], true);
    // Like vLLM, the engine announces the reset with the events of its next step.
    let other = routed.chat(&[chat_message("user", "hi")], &[]);
    assert!(
        routed.worker("a")["warm_blocks"]["device"].as_u64()
            <= Some(other.prompt_tokens.div_ceil(16) + 2)
    );
    let cold = routed.chat(&messages, &[]);
    assert_exact(&cold);
    assert!(
        cold.cached < 32,
        "no more than what both chats begin with: {cold:?}"
    );
}

#[test]
#[contract("V14", "V15")]
fn a_burst_follows_its_first_request_before_any_event_arrives() {
    let slow = ["--speed", "1", "--prefill-tps", "800"];
    let routed = RoutedFleet::start(&[&slow, &slow]);
    let messages = [chat_message("user", &words("burst", 300))];
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| routed.chat(&messages, &[]));
        eventually("the first request to be placed", || {
            routed
                .router
                .workers()
                .iter()
                .any(|worker| worker["load"]["in_flight"] == 1)
                .then_some(())
        });
        let second = routed.chat(&messages, &[]);
        (first.join().expect("the first request is answered"), second)
    });
    assert_eq!(second.worker, first.worker);
    let receipt = routed.receipt(&second);
    assert_eq!(warm(&receipt)["device"], 0, "no event has come yet");
    assert!(
        warm(&receipt)["speculative"].as_u64() > Some(1000),
        "{receipt:#}"
    );

    let third = routed.chat(&messages, &[]);
    assert_exact(&third);
    let receipt = routed.receipt(&third);
    assert_eq!(
        warm(&receipt)["speculative"],
        0,
        "confirmed blocks are not expected any more"
    );
    assert!(
        warm(&receipt)["device"].as_u64() > Some(1000),
        "{receipt:#}"
    );
}

#[test]
fn an_engine_without_events_is_predicted_from_the_requests_sent_to_it() {
    let routed = RoutedFleet::start(&[&["--no-kv-events"], &["--no-kv-events"]]);
    assert!(routed.streams().is_empty());
    assert_eq!(routed.worker("a")["cache_source"], "predicted");
    let messages = [chat_message("user", &words("unseen", 60))];
    let first = routed.chat(&messages, &[]);
    for _ in 0..3 {
        let again = routed.chat(&messages, &[]);
        assert_exact(&again);
        assert!(again.cached > 0, "{again:?}");
        assert_eq!(again.worker, first.worker);
        let receipt = routed.receipt(&again);
        assert_eq!(receipt["candidates"][0]["cache_source"], "predicted");
        assert_eq!(receipt["candidates"][0]["stream_state"], Value::Null);
    }
}

#[test]
fn without_a_tokenizer_a_chat_is_matched_by_its_text() {
    let routed = RoutedFleet::with(
        &[&[], &[]],
        "models: {entries: {sim: {tokenizer: none}}}\n",
        &[],
    );
    let mut messages = vec![chat_message("system", &words("plain", 60))];
    let mut workers = Vec::new();
    for n in 0..3 {
        messages.push(chat_message("user", &words(&format!("turn{n}of"), 20)));
        let turn = routed.chat(&messages, &[]);
        messages.push(chat_message("assistant", &turn.text));
        let prompt = routed.receipt(&turn)["prompt"].clone();
        assert_eq!(
            (&prompt["source"], &prompt["exact"]),
            (&json!("text_prefix"), &json!(false))
        );
        if n > 0 {
            assert!(turn.cached > 0, "{turn:?}");
            assert!(turn.predicted > 0, "{turn:?}");
        }
        workers.push(turn.worker);
    }
    workers.dedup();
    assert_eq!(workers.len(), 1, "{workers:?}");
}

#[test]
fn a_request_may_name_its_worker_and_its_policy() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    let messages = [chat_message("user", "hello")];
    for name in ["b", "a", "b", "b/0"] {
        let turn = routed.chat(&messages, &[("x-warmroute-worker", name)]);
        assert_eq!(turn.worker, name.trim_end_matches("/0"));
        let receipt = routed.receipt(&turn);
        assert_eq!(receipt["method"], "pinned");
        assert_eq!(receipt["excluded"][0]["reason"], "not_pinned");
    }
    for policy in ["round_robin", "random", "least_loaded", "kv_aware", "warm"] {
        let turn = routed.chat(&messages, &[("x-warmroute-policy", policy)]);
        assert_eq!(turn.reply.header("x-warmroute-policy"), Some(policy));
        assert_eq!(routed.receipt(&turn)["policy"], policy);
    }
    for (header, value, code) in [
        ("x-warmroute-worker", "nobody", "unknown_worker"),
        ("x-warmroute-worker", "a/1", "unknown_worker"),
        ("x-warmroute-policy", "best", "unknown_policy"),
        ("x-warmroute-temperature", "11", "invalid_request"),
        ("x-warmroute-overlap-weight", "-1", "invalid_request"),
        ("x-warmroute-priority", "101", "invalid_request"),
    ] {
        let mut client = RawClient::connect(&routed.router.data());
        let body = json!({"model": "sim", "messages": messages}).to_string();
        client.send(
            "POST",
            "/v1/chat/completions",
            &[(header, value)],
            body.as_bytes(),
        );
        let reply = client.reply();
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (400, &json!(code)),
            "{header}: {value}"
        );
        assert_eq!(reply.header("x-should-retry"), Some("false"));
    }
}

#[test]
fn round_robin_ignores_warm_caches() {
    let routed = RoutedFleet::with(&[&[], &[], &[]], "", &["--policy", "round_robin"]);
    let messages = [chat_message("user", &words("again", 30))];
    let order: String = (0..7).map(|_| routed.chat(&messages, &[]).worker).collect();
    assert_eq!(order, "abcabca");
}

#[test]
fn a_policy_that_reads_no_caches_leaves_prompts_unread_and_the_receipt_says_so() {
    let prompt = |flags: &[&str], headers: &[(&str, &str)]| {
        let routed = RoutedFleet::with(&[&[], &[]], "", flags);
        let messages = [chat_message("user", &words("again", 30))];
        let turns = [0, 1].map(|_| routed.chat(&messages, headers));
        let receipt = routed.receipt(&turns[1]);
        (
            receipt["prompt"]["source"].clone(),
            receipt["candidates"][0]["predicted_cached_tokens"].clone(),
        )
    };
    let unread = (json!("none"), json!(0));
    for policy in [
        "round_robin",
        "random",
        "least_loaded",
        "power_of_two",
        "least_latency",
    ] {
        assert_eq!(prompt(&["--policy", policy], &[]), unread, "{policy}");
    }
    // Others of the model's requests use what the index learns from this one, and load is measured
    // in blocks where it is limited.
    let of_model = [("x-warmroute-policy", "round_robin")];
    assert_ne!(prompt(&[], &of_model).0, "none");
    let limited = ["--policy", "round_robin", "--busy-threshold", "0.9"];
    assert_ne!(prompt(&limited, &[]).0, "none");
}

#[test]
#[contract("V7")]
fn kv_aware_takes_the_longest_prefix_and_without_one_the_least_loaded() {
    let routed = RoutedFleet::with(&[&[], &[]], "", &["--policy", "kv_aware"]);
    let (head, tail) = (words("head", 40), words("tail", 40));
    routed.chat(
        &[chat_message("user", &head)],
        &[("x-warmroute-worker", "a")],
    );
    routed.chat(
        &[chat_message("user", &format!("{head}{tail}"))],
        &[("x-warmroute-worker", "b")],
    );
    let more = routed.chat(
        &[chat_message("user", &format!("{head}{tail}and more"))],
        &[],
    );
    assert_exact(&more);
    assert_eq!(more.worker, "b");
}

#[test]
#[contract("V16")]
fn a_decision_sends_no_query_to_any_service() {
    // The tokenizer of a simulated engine, as files.
    let dir = tempfile::tempdir().expect("a directory");
    let sim = Program::engine(&[]);
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let reply = RawClient::get(&sim.data(), &format!("/sim/{file}"));
        std::fs::write(dir.path().join(file), reply.body).expect("the file can be written");
    }
    let reply = json!({"id": "x", "object": "text_completion", "choices": []}).to_string();
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", &reply)));
    let config = "routing: {tokenize_budget: 60s}\nhealth_checks: {enabled: false}\n";
    let tokenizer = format!("m={}", dir.path().display());
    let router = Program::serve_with(
        config,
        &[format!("a={}", engine.url())],
        &["--tokenizer", &tokenizer],
    )
    .ready(1);

    let send = |n: u32| {
        let body = json!({"model": "m", "prompt": words(&format!("topic{n}"), 80)}).to_string();
        let mut client = RawClient::connect(&router.data());
        client.send(
            "POST",
            "/v1/completions",
            &[("x-request-id", &format!("n{n}"))],
            body.as_bytes(),
        );
        assert_eq!(client.reply().status, 200);
    };
    send(0);
    // The router's own checks of a worker, at its start and periodically, do not depend on requests:
    // of the rounds of a hundred requests most have none.
    let probes_of_round = |round: u32| {
        let before = engine.probes();
        (1..=100).for_each(|n| send(100 * round + n));
        engine.probes() - before
    };
    let rounds: Vec<u64> = (0..5).map(probes_of_round).collect();
    let without = rounds.iter().filter(|probes| **probes == 0).count();
    assert!(without >= 3, "probes of each round: {rounds:?}");
    assert_eq!(engine.requests(), 501);
    let receipt = router.receipt("n100");
    assert_eq!(
        (&receipt["prompt"]["source"], &receipt["prompt"]["exact"]),
        (&json!("tokens"), &json!(true))
    );
    let microseconds = |receipt: &Value| {
        ["lookup", "decide"]
            .map(|part| receipt["timing_us"][part].as_f64().expect("a time"))
            .iter()
            .sum::<f64>()
    };
    let mut times: Vec<f64> = router.receipts().iter().map(microseconds).collect();
    assert!(
        times.len() > 400 && times.iter().all(|time| *time > 0.0),
        "{times:?}"
    );
    times.sort_unstable_by(f64::total_cmp);
    // A loose bound: this is a debug build, on a machine that may be busy.
    let median = times[times.len() / 2];
    assert!(median < 10_000.0, "{median} us");
}

#[test]
fn each_worker_gets_one_log_line_with_its_findings() {
    let routed = RoutedFleet::with(
        &[
            &[],
            &["--no-kv-events", "--block-size", "32", "--model", "other"],
        ],
        "",
        &[],
    );
    for (name, engine, found) in [
        (
            "a",
            0,
            "model=sim block=16 events=live replay=yes tokenizer=exact",
        ),
        (
            "b",
            1,
            "model=other block=32 events=none replay=no tokenizer=exact",
        ),
    ] {
        let line = format!(
            "{name} {} ready vllm 0.32.0 {found}",
            routed.engines[engine].url()
        );
        eventually(&line, || {
            routed
                .router
                .stderr()
                .lines()
                .any(|logged| logged == line)
                .then_some(())
        });
    }
}
