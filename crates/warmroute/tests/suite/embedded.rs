//! Routers inside another program: here, inside the test.

use contract_id::contract;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use warmroute::embed::{
    EmbeddedRouter, EmbeddedSettings, GenerationQuery, PrefixMatch, TokenQuery,
};

use crate::harness::{Program, SimControls as _, eventually};

/// Four whole blocks of 16 tokens, and one token more.
fn prompt() -> Vec<u32> {
    (1..=65).collect()
}

fn start(runtime: &Runtime, config: &str, workers: &[String]) -> EmbeddedRouter {
    let settings = EmbeddedSettings {
        text: Some(config.to_owned()),
        workers: workers.to_vec(),
    };
    let started = runtime.block_on(EmbeddedRouter::start(settings));
    started.expect("the router starts")
}

fn generation(tokens: &[u32]) -> GenerationQuery<'_> {
    let fields = json!({"max_tokens": 3, "ignore_eos": true});
    GenerationQuery {
        token_ids: tokens,
        stop_conditions: fields.as_object().cloned().expect("an object"),
        ..GenerationQuery::default()
    }
}

#[test]
#[contract("DY27", "DY28", "DY33")]
fn an_embedded_router_decides_and_generates_until_it_is_closed() {
    let engine = Program::engine(&["--block-size", "16"]);
    let runtime = Runtime::new().unwrap();
    let worker = format!("w1={}", engine.url());
    let router = start(&runtime, "server: {keep_alive: 60s}", &[worker]);
    let tokens = prompt();
    let query = TokenQuery {
        token_ids: &tokens,
        request_id: Some("r1"),
        ..TokenQuery::default()
    };
    let best = runtime.block_on(router.best_worker(&query)).unwrap();
    assert_eq!((&*best.worker, best.overlap_blocks), ("w1", 0));
    router.mark_prefill_complete("r1").unwrap();
    router.free("r1").unwrap();
    let parts: Vec<Value> = runtime.block_on(async {
        let mut stream = router.generate(&generation(&tokens)).await.unwrap();
        let mut parts = Vec::new();
        while let Some(part) = stream.next().await {
            parts.push(part.unwrap());
        }
        parts
    });
    let ids = parts.iter().flat_map(|part| part["token_ids"].as_array());
    assert_eq!(ids.map(Vec::len).sum::<usize>(), 3);
    let rows = eventually("the events of the prompt", || {
        let list = runtime.block_on(router.dump_events()).unwrap();
        let rows: Vec<Value> = serde_json::from_str(&list).unwrap();
        (rows.len() == 4).then_some(rows)
    });
    assert!(rows.iter().all(|row| row["worker"] == "w1"));
    let expected = PrefixMatch {
        worker: "w1".into(),
        dp_rank: 0,
        blocks: 4,
    };
    assert_eq!(router.find_matches(&query), Ok(vec![expected]));
    assert!(router.metrics().unwrap().contains("warmroute_index_blocks"));
    runtime.block_on(router.close());
    runtime.block_on(router.close());
}

#[test]
#[contract("DY28")]
fn an_abandoned_decision_leaves_the_next_one_under_its_id_alone() {
    let engine = Program::engine(&[]);
    let runtime = Runtime::new().unwrap();
    let router = start(&runtime, "{}", &[engine.url()]);
    let tokens = prompt();
    let query = TokenQuery {
        token_ids: &tokens,
        request_id: Some("r1"),
        ..TokenQuery::default()
    };
    let reserve = || {
        let best = runtime.block_on(router.best_worker(&query)).unwrap();
        best.reserved_by.expect("it is reserved")
    };
    let first = reserve();
    router.free("r1").unwrap();
    let second = reserve();
    router.abandon("r1", first);
    router.mark_prefill_complete("r1").unwrap();
    router.abandon("r1", second);
    let gone = router.free("r1").expect_err("it was abandoned");
    assert_eq!(gone.code, "reservation_not_found");
    runtime.block_on(router.close());
}

#[test]
fn a_dropped_stream_is_a_client_that_leaves() {
    let engine = Program::engine(&[]);
    let runtime = Runtime::new().unwrap();
    let router = start(&runtime, "{}", &[engine.url()]);
    engine.fault("stall_mid:1", 1);
    let tokens = prompt();
    let mut stream = runtime
        .block_on(router.generate(&generation(&tokens)))
        .unwrap();
    assert!(runtime.block_on(stream.next()).is_some());
    drop(stream);
    eventually("the end of the generation", || {
        let stats = engine.stats();
        (stats["aborted"] == 1 && stats["running"] == 0).then_some(())
    });
    runtime.block_on(router.close());
}

#[test]
#[contract("DY34")]
fn the_end_of_one_router_leaves_the_others_as_they_are() {
    let engine = Program::engine(&[]);
    let runtime = Runtime::new().unwrap();
    // With their default listeners, the second one would find the ports taken.
    let [first, second] = [(); 2].map(|()| start(&runtime, "{}", &[engine.url()]));
    let tokens = prompt();
    let query = TokenQuery {
        token_ids: &tokens,
        request_id: Some("r1"),
        ..TokenQuery::default()
    };
    for router in [&first, &second] {
        assert!(runtime.block_on(router.best_worker(&query)).is_ok());
    }
    runtime.block_on(first.close());
    assert!(second.free("r1").is_ok());
    let stream = runtime.block_on(second.generate(&generation(&tokens)));
    assert!(stream.is_ok());
    runtime.block_on(second.close());
}

#[test]
#[contract("DY33")]
fn a_dump_loaded_into_a_router_without_events_gives_the_same_matches() {
    let engine = Program::engine(&["--block-size", "16"]);
    let other = Program::engine(&[]);
    let runtime = Runtime::new().unwrap();
    let workers = [("w1", &engine), ("w2", &other)];
    let workers = workers.map(|(name, engine)| format!("{name}={}", engine.url()));
    let dumped = start(&runtime, "{}", &workers[..1]);
    let tokens = prompt();
    let query = TokenQuery {
        token_ids: &tokens,
        ..TokenQuery::default()
    };
    runtime.block_on(async {
        let mut stream = dumped.generate(&generation(&tokens)).await.unwrap();
        while let Some(part) = stream.next().await {
            part.unwrap();
        }
    });
    let text = eventually("the events of the prompt", || {
        let text = runtime.block_on(dumped.dump_events()).unwrap();
        let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
        (rows.len() == 4).then_some(text)
    });
    let matches = dumped.find_matches(&query).unwrap();
    assert_eq!(matches.len(), 1);
    let load = |router: &EmbeddedRouter| runtime.block_on(router.load_events(text.clone()));
    for (workers, loaded) in [(&workers[..], 4), (&workers[1..], 0)] {
        let router = start(&runtime, "kv_events: {enabled: false}", workers);
        assert_eq!(router.find_matches(&query), Ok(Vec::new()));
        assert_eq!(load(&router), Ok(loaded));
        let expected = match loaded {
            0 => Vec::new(),
            _ => matches.clone(),
        };
        assert_eq!(router.find_matches(&query), Ok(expected));
        let wrong = runtime.block_on(router.load_events("[1]".to_owned()));
        assert_eq!(wrong.expect_err("it is no dump").code, "invalid_request");
        runtime.block_on(router.close());
    }
    runtime.block_on(dumped.close());
}

#[test]
#[contract("DY38")]
fn workers_come_go_and_end_with_their_lease() {
    let (engine, other) = (Program::engine(&[]), Program::engine(&[]));
    let runtime = Runtime::new().unwrap();
    let router = start(&runtime, "workers: []", &[]);
    let names = || -> Vec<String> {
        let workers = router.workers().into_iter();
        workers.map(|it| it.identity.name.to_string()).collect()
    };
    let put = |entry: Value| {
        let entry = entry.as_object().cloned().expect("an object");
        runtime.block_on(router.put_worker(entry))
    };
    let entry = json!({"name": "w1", "url": engine.url(), "lease_ttl": "10m"});
    assert_eq!(put(entry.clone()), Ok("w1".to_owned()));
    assert_eq!(put(entry), Ok("w1".to_owned()));
    let tokens = prompt();
    let query = TokenQuery {
        token_ids: &tokens,
        ..TokenQuery::default()
    };
    eventually("a worker to be chosen", || {
        runtime.block_on(router.best_worker(&query)).ok()
    });
    let leased = json!({"name": "w2", "url": other.url(), "lease_ttl": "1s"});
    assert_eq!(put(leased), Ok("w2".to_owned()));
    eventually("the end of the lease", || (names() == ["w1"]).then_some(()));
    let remove = |name: &str| runtime.block_on(router.remove_worker(name.to_owned()));
    assert_eq!(remove("w1"), Ok(true));
    assert_eq!(remove("w3"), Ok(false));
    eventually("the end of the worker", || names().is_empty().then_some(()));
    for (wrong, code) in [
        (json!({"url": engine.url(), "wieght": 2}), "invalid_request"),
        (
            json!({"url": engine.url(), "lease_ttl": "1ms"}),
            "invalid_request",
        ),
        (
            json!({"url": "http://169.254.169.254"}),
            "destination_forbidden",
        ),
    ] {
        assert_eq!(put(wrong).expect_err("it is wrong").code, code);
    }
    runtime.block_on(router.close());
}

#[test]
fn a_configuration_is_refused_with_all_of_its_problems() {
    let runtime = Runtime::new().unwrap();
    for (config, problems) in [
        (
            "routing: {policy: best, overlap_weight: 101}",
            &["routing.policy", "routing.overlap_weight"][..],
        ),
        (r#"{"routing": {"polcy": "warm"}}"#, &["polcy"][..]),
        (
            r#"replicas: {mode: peers, peers: ["http://127.0.0.1:9"]}"#,
            &["replicas.mode"][..],
        ),
    ] {
        let settings = EmbeddedSettings {
            text: Some(config.to_owned()),
            workers: vec!["http://127.0.0.1:9".to_owned()],
        };
        let refused = runtime.block_on(EmbeddedRouter::start(settings));
        let error = refused.expect_err("it has problems");
        assert_eq!(error.code, "invalid_request");
        for problem in problems {
            assert!(error.message.contains(problem), "{}", error.message);
        }
    }
    let none = runtime.block_on(EmbeddedRouter::start(EmbeddedSettings::default()));
    let error = none.expect_err("there is no worker");
    assert!(error.message.contains("no engine to route to"));
}
