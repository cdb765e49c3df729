//! How often a request is sent, by the two keys that limit it.

use std::time::Duration;

use contract_id::contract;

use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, chat, json_reply,
};

/// Sends one request to workers that are all full; returns the number of attempts.
fn count_attempts(config: &str) -> u64 {
    let full = || ScriptedReply::whole(json_reply("503 Full", "", "{}"));
    let engines: Vec<_> = (0..5).map(|_| ScriptedEngine::start(full())).collect();
    let workers: Vec<_> = engines
        .iter()
        .enumerate()
        .map(|(n, engine)| format!("w{n}={}", engine.url()))
        .collect();
    let config = format!("circuit_breaker: {{enabled: false}}\n{config}");
    let router = Program::serve_with(&config, &workers, &[]).ready(5);
    let reply = RawClient::chat(&router.data(), &chat("m", "hi", 1)).reply();
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (503, "overloaded"),
        "{}",
        reply.text()
    );
    router.wait_until_idle();
    engines.iter().map(ScriptedEngine::requests).sum()
}

#[test]
#[contract("CH9", "CH10", "B2")]
fn the_smaller_of_both_keys_limits_how_often_a_request_is_sent() {
    for (config, count) in [
        ("", 3),
        ("request: {max_retries: 0}\n", 1),
        ("request: {max_retries: 1}\n", 2),
        ("request: {max_retries: 9}\nretry: {max_attempts: 4}\n", 4),
        ("retry: {max_attempts: 2}\n", 2),
        ("request: {max_retries: 3}\nretry: {max_attempts: 9}\n", 4),
    ] {
        assert_eq!(count_attempts(config), count, "{config}");
    }
}

/// The pauses between the attempts of `requests` requests, one after another, to the only worker.
fn pauses(retry: &str, requests: usize, attempts: usize) -> Vec<Duration> {
    let full = ScriptedReply::whole(json_reply("503 Full", "", "{}"));
    let engine = ScriptedEngine::start(full);
    let config = format!("circuit_breaker: {{enabled: false}}\n{retry}\n");
    let worker = [format!("w={}", engine.url())];
    let router = Program::serve_with(&config, &worker, &[]).ready(1);
    let mut pauses = Vec::new();
    for _ in 0..requests {
        let reply = RawClient::chat(&router.data(), &chat("m", "hi", 1)).reply();
        assert_eq!(reply.status, 503, "{}", reply.text());
        let arrivals: Vec<_> = (0..attempts)
            .map(|_| engine.next_request().arrived)
            .collect();
        pauses.extend(arrivals.windows(2).map(|pair| pair[0].until(pair[1])));
    }
    assert_eq!(engine.requests(), (requests * attempts) as u64);
    pauses
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
#[contract("CH10")]
fn the_pauses_between_attempts_double_up_to_the_longest_one() {
    let retry = "retry: {max_attempts: 4, base_delay: 300ms, max_delay: 700ms, jitter: false}";
    let third_pause = |_| {
        let pauses = pauses(retry, 1, 4);
        for (pause, least) in pauses.iter().zip([ms(300), ms(600), ms(700)]) {
            assert!(*pause >= least, "{pauses:?}");
        }
        pauses[2]
    };
    // Without the longest one the third pause would always be 1.2 s; a machine that stands still
    // delays single ones.
    assert!((0..4).map(third_pause).any(|pause| pause < ms(1200)));
}

#[test]
#[contract("CH10")]
fn without_exponential_backoff_every_pause_is_the_first_one() {
    let retry =
        "retry: {max_attempts: 4, base_delay: 1s, exponential_backoff: false, jitter: false}";
    let all_pauses = |_| {
        let pauses = pauses(retry, 1, 4);
        assert!(pauses.iter().all(|pause| *pause >= ms(1000)), "{pauses:?}");
        pauses.iter().sum::<Duration>()
    };
    // Doubled, they would always be 7 s; a machine that stands still delays single ones.
    assert!((0..4).map(all_pauses).any(|sum| sum < ms(6000)));
}

#[test]
#[contract("CH10")]
fn jitter_shortens_a_pause_by_up_to_half() {
    let retry = "retry: {max_attempts: 2, base_delay: 600ms, jitter: true}";
    let pauses = pauses(retry, 8, 2);
    assert_eq!(pauses.len(), 8);
    assert!(pauses.iter().all(|pause| *pause >= ms(300)), "{pauses:?}");
    // Each is drawn on its own: that none of eight is below 90 % happens once in 400,000 runs.
    assert!(pauses.iter().any(|pause| *pause < ms(540)), "{pauses:?}");
}

#[test]
#[contract("CH9", "B2")]
fn the_retry_delay_is_the_first_pause_where_no_base_delay_is_set() {
    let pauses = pauses(
        "request: {retry_delay: 900ms}\nretry: {max_attempts: 2, jitter: false}",
        1,
        2,
    );
    assert!(pauses[0] >= ms(900), "{pauses:?}");
}
