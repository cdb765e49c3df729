//! How often workers are queried for their model lists.

use std::time::Duration;

use contract_id::contract;

use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, Stopwatch, eventually,
};

/// Periodic checks are rare, and query only health and list.
const QUIET: &str = "health_checks: {interval: 1h}\nkv_events: {enabled: false}\n";

fn fleet(config: &str) -> (Program, Vec<ScriptedEngine>) {
    let engines: Vec<_> = (0..2)
        .map(|_| ScriptedEngine::start(ScriptedReply::Silence))
        .collect();
    let workers: String = engines
        .iter()
        .map(|engine| format!("  - {{type: generic, url: \"{}\"}}\n", engine.url()))
        .collect();
    let router =
        Program::serve_with(&format!("{QUIET}workers:\n{workers}{config}"), &[], &[]).ready(2);
    (router, engines)
}

fn rounds(router: &Program) -> f64 {
    router.metric("warmroute_model_list_refreshes_total", "")
}

fn list(router: &Program) -> usize {
    let reply = RawClient::get(&router.data(), "/v1/models");
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["data"].as_array().expect("a list").len()
}

#[test]
#[contract("CH12", "CH11")]
fn a_hundred_clients_at_the_expiry_of_the_list_cause_one_query_per_worker() {
    let config = "cache: {model_cache_ttl: 1s}\nmodel_aggregation: {cache_ttl: 1s, background_refresh: {enabled: false}}\n";
    let (router, engines) = fleet(config);
    // The initial queries are over, and the list has expired.
    std::thread::sleep(Duration::from_millis(1500));
    let before: Vec<_> = engines.iter().map(ScriptedEngine::probes).collect();
    let rounds_before = rounds(&router);
    let (address, watch) = (router.data(), Stopwatch::start());
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let address = address.clone();
            std::thread::spawn(move || RawClient::get(&address, "/v1/models"))
        })
        .collect();
    for client in clients {
        let reply = client.join().expect("a client");
        assert_eq!(
            (reply.status, &reply.json()["data"][0]["id"]),
            (200, &"m".into())
        );
    }
    let (after, rounds) = (
        engines.iter().map(ScriptedEngine::probes),
        rounds(&router) - rounds_before,
    );
    // One query for all clients; a slow machine may need several periods of the list for a hundred
    // clients.
    let most = 2.0 + 2.0 * watch.elapsed().as_secs_f64();
    assert!(
        (1.0..=most).contains(&rounds),
        "{rounds} rounds in {:?}",
        watch.elapsed()
    );
    for (before, after) in before.into_iter().zip(after) {
        // A check of such a worker queries its health and its list.
        let queries = after - before;
        assert!(
            queries as f64 <= 2.0 * rounds && queries >= 1,
            "{queries} queries in {rounds} rounds"
        );
    }
}

#[test]
#[contract("CH12", "CH13", "B5")]
fn the_list_is_renewed_in_the_background_and_workers_lists_have_their_own_ttl() {
    let config =
        "model_aggregation: {cache_ttl: 400ms, background_refresh: {check_interval: 50ms}}\n";
    let (router, engines) = fleet(config);
    let probes = || engines.iter().map(ScriptedEngine::probes).sum::<u64>();
    let before = probes();
    eventually("rounds without a client", || {
        (rounds(&router) >= 2.0).then_some(())
    });
    assert_eq!(probes(), before, "their own lists are not old yet");
    assert_eq!(list(&router), 1);
}

#[test]
#[contract("CH12")]
fn an_expired_list_answers_at_once_while_a_worker_hangs() {
    // A check may hang for longer than the list is awaited, and ejects no worker meanwhile.
    let config = "health_checks: {interval: 1h, timeout: 1m}\nkv_events: {enabled: false}\ncache: {model_cache_ttl: 100ms}\nmodel_aggregation: {cache_ttl: 1h, soft_ttl_ratio: 0, background_refresh: {enabled: false}}\n";
    let (well, hangs) = (
        ScriptedEngine::start(ScriptedReply::Silence),
        Program::engine(&["--no-kv-events"]),
    );
    let workers: String = [well.url(), hangs.url()]
        .map(|url| format!("  - {{type: generic, url: \"{url}\"}}\n"))
        .concat();
    let router = Program::serve_with(&format!("{config}workers:\n{workers}"), &[], &[]).ready(2);
    hangs.signal("STOP");
    // The workers' own lists expire: that of the worker that hangs was read before it was stopped.
    std::thread::sleep(Duration::from_millis(200));
    let before = well.probes();
    assert_eq!(list(&router), 2);
    eventually("the workers to be queried", || {
        (well.probes() > before).then_some(())
    });
    let took = [(); 4].map(|()| {
        let watch = Stopwatch::start();
        assert_eq!(list(&router), 2);
        watch.elapsed()
    });
    // A client that waits for a renewal waits 2 s, and each of these would have. A busy machine may
    // delay some of them.
    assert!(
        took.iter().any(|took| *took < Duration::from_millis(1900)),
        "the lists took {took:?}"
    );
    assert_eq!(
        rounds(&router),
        0.0,
        "the worker that hangs has answered nothing"
    );
    hangs.signal("CONT");
    eventually("the renewal", || (rounds(&router) >= 1.0).then_some(()));
    assert_eq!(list(&router), 2);
}

#[test]
#[contract("CH13")]
fn an_empty_list_is_renewed_after_its_own_growing_lifetime() {
    let lives = "cache_ttl: 1h, empty_response_base_ttl_seconds: 1, empty_response_max_ttl_seconds: 2, \
                 background_refresh: {check_interval: 50ms}";
    let watch = Stopwatch::start();
    let config = format!("workers: []\nmodel_aggregation: {{{lives}}}\n");
    let router = Program::serve_with(&config, &[], &[]).ready(0);
    assert_eq!(list(&router), 0);
    // After 1 s, 1 s, 2 s, and 2 s again, as 4 s are above the longest lifetime.
    eventually("four rounds", || (rounds(&router) >= 4.0).then_some(()));
    assert!(
        watch.elapsed() >= Duration::from_secs(6),
        "{:?}",
        watch.elapsed()
    );
    assert!(rounds(&router) <= watch.elapsed().as_secs_f64());

    // A list with models is not renewed within its hour. Before its workers were ready it was empty.
    let (full, _engines) = fleet(&format!("model_aggregation: {{{lives}}}\n"));
    std::thread::sleep(Duration::from_millis(2500));
    let before = rounds(&full);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!((rounds(&full), list(&full)), (before, 1));
}

#[test]
#[contract("CH13")]
fn of_more_lists_than_are_kept_a_refresh_asks_for_the_oldest_again() {
    let config = |kept: u32| {
        format!(
            "model_aggregation: {{cache_ttl: 300ms, max_cache_entries: {kept}, background_refresh: {{check_interval: 50ms}}}}\n"
        )
    };
    for (kept, asks) in [(1, true), (2, false)] {
        let (router, engines) = fleet(&config(kept));
        let probes = || engines.iter().map(ScriptedEngine::probes).sum::<u64>();
        let (before, rounds_before) = (probes(), rounds(&router));
        eventually("rounds", || {
            (rounds(&router) >= rounds_before + 3.0).then_some(())
        });
        // The workers' own lists live for minutes.
        assert_eq!(probes() > before, asks, "{kept}");
        assert_eq!(list(&router), 1, "no model is left out");
    }
}

#[test]
#[contract("CH12")]
fn the_list_is_renewed_in_the_background_before_it_expires() {
    let config = "model_aggregation: {cache_ttl: 1h, soft_ttl_ratio: 0, background_refresh: {check_interval: 50ms}}\n";
    let (router, _engines) = fleet(config);
    let before = rounds(&router);
    eventually("rounds without a client within the hour", || {
        (rounds(&router) >= before + 3.0).then_some(())
    });
    assert_eq!(list(&router), 1);
}
