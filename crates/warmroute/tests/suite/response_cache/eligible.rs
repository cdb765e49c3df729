//! The requests that the cache answers.

use std::time::Duration;

use contract_id::contract;
use serde_json::json;

use super::{CachedRouter, FINE, cache_headers, chat_body, fine, status, with, without};
use crate::harness::{RawClient, RouterQueries as _, Stopwatch, eventually};

#[test]
#[contract("CK22", "CK24", "CK26", "CH19")]
fn an_equal_request_reaches_no_engine_again() {
    let cached = CachedRouter::start("");
    assert_eq!(cached.status(&chat_body("why?")), "MISS not_found");
    let again = cached.send(&chat_body("why?"));
    assert_eq!(
        (status(&again).as_str(), again.text().as_str()),
        ("HIT stored", FINE)
    );
    assert_eq!(again.header("content-type"), Some("application/json"));
    assert!(
        again
            .header("age")
            .is_some_and(|age| age.parse::<u64>().is_ok_and(|age| age < 60))
    );
    assert_eq!(cached.status(&chat_body("how?")), "MISS not_found");
    assert_eq!(cached.engine.requests(), 2);
    let receipt = cached.router.receipt_of(&again);
    assert_eq!(
        (
            &receipt["method"],
            &receipt["winner"],
            &receipt["candidates"]
        ),
        (&json!("cache_hit"), &json!(null), &json!([]))
    );
    assert_eq!(
        (&receipt["outcome"]["kind"], &receipt["outcome"]["status"]),
        (&json!("ok"), &json!(200))
    );
    assert!(receipt["timing_us"]["cache"].as_f64() > Some(0.0));
    assert_eq!(
        again.header("x-warmroute-worker"),
        None,
        "no worker was called"
    );
    cached.router.wait_until_idle();
}

#[test]
#[contract("CK24", "A7", "CH19")]
fn only_a_temperature_of_zero_or_none_is_looked_up() {
    let cached = CachedRouter::start("");
    for (temperature, expected) in [
        (json!(0), "MISS not_found"),
        (json!(0.0), "HIT stored"),
        (json!(0.7), "BYPASS temperature"),
        (json!(1), "BYPASS temperature"),
        (json!("0"), "BYPASS temperature"),
        (json!(null), "MISS not_found"),
    ] {
        let body = with(chat_body("why?"), "temperature", temperature.clone());
        // 0 and 0.0 are one number and may be one request or two; both must be looked up.
        let found = cached.status(&body);
        assert!(
            found == expected || (temperature == json!(0.0) && found == "MISS not_found"),
            "{temperature}: {found}"
        );
    }
    let absent = without(chat_body("why?"), "temperature");
    assert_eq!(
        [cached.status(&absent), cached.status(&absent)],
        ["MISS not_found", "HIT stored"]
    );
    let strict = CachedRouter::start(", absent_temperature: bypass");
    assert_eq!(
        [strict.status(&absent), strict.status(&absent)],
        ["BYPASS absent_temperature", "BYPASS absent_temperature"]
    );
    assert_eq!(strict.engine.requests(), 2);
}

#[test]
#[contract("CK22", "CH14", "CK26")]
fn a_disabled_cache_reports_it_and_stores_nothing() {
    let plain = CachedRouter::with("cache: {enable_deduplication: false}\n", fine());
    assert_eq!(
        [
            plain.status(&chat_body("why?")),
            plain.status(&chat_body("why?"))
        ],
        ["BYPASS off", "BYPASS off"]
    );
    assert_eq!(
        (plain.engine.requests(), plain.stats()["enabled"].clone()),
        (2, json!(false))
    );
    // Other routes lack the fields of a chat completion.
    let embeddings = RawClient::post(
        &plain.router.data(),
        "/v1/embeddings",
        br#"{"model":"m","input":"a"}"#,
    );
    assert_eq!(cache_headers(&embeddings), "- -");
}

#[test]
#[contract("S47", "CH19")]
fn a_client_may_forbid_storing_or_require_a_new_reply() {
    let cached = CachedRouter::start("");
    let send =
        |control: &str| status(&cached.send_as(&chat_body("why?"), &[("cache-control", control)]));
    assert_eq!(
        [send("no-store"), cached.status(&chat_body("why?"))],
        ["BYPASS no_store", "MISS not_found"]
    );
    assert_eq!(cached.status(&chat_body("why?")), "HIT stored");
    // A new reply replaces the old one.
    assert_eq!(
        [
            send("max-age=60, No-Cache"),
            cached.status(&chat_body("why?"))
        ],
        ["BYPASS no_cache", "HIT stored"]
    );
    assert_eq!(cached.engine.requests(), 3);
    let pinned = cached.send_as(&chat_body("why?"), &[("x-warmroute-worker", "w")]);
    assert_eq!(
        (
            status(&pinned).as_str(),
            pinned.header("x-warmroute-worker")
        ),
        ("BYPASS pinned", Some("w"))
    );
}

#[test]
#[contract("CK23")]
fn the_least_recently_used_reply_makes_room() {
    let cached = CachedRouter::start(", capacity: 2");
    // A reply is stored behind its request: each one is in the cache before the next step.
    for (text, entries) in [("a", 1), ("b", 2)] {
        cached.status(&chat_body(text));
        eventually("the reply to be stored", || {
            (cached.stats()["entries"] == entries).then_some(())
        });
    }
    assert_eq!(cached.status(&chat_body("a")), "HIT stored");
    cached.status(&chat_body("c"));
    eventually("a reply to make room", || {
        (cached.stats()["evictions"] == 1).then_some(())
    });
    assert_eq!(
        [
            cached.status(&chat_body("a")),
            cached.status(&chat_body("c"))
        ],
        ["HIT stored", "HIT stored"]
    );
}

#[test]
#[contract("CK23")]
fn hits_do_not_extend_the_ttl_of_a_reply() {
    let ttl = Duration::from_secs(1);
    let cached = CachedRouter::start(", ttl: 1s");
    let since = Stopwatch::start();
    assert_eq!(cached.status(&chat_body("a")), "MISS not_found");
    // The entry does not expire before its TTL, and a hit does not extend it.
    eventually("its TTL to be over", || {
        (cached.status(&chat_body("a")) == "MISS not_found").then_some(())
    });
    assert!(since.elapsed() >= ttl, "{:?}", since.elapsed());
}

#[test]
#[contract("CK22")]
fn new_limits_take_effect_at_once_and_another_backend_after_a_restart() {
    let cached = CachedRouter::start("");
    cached.status(&chat_body("a"));
    let reload = |section: &str| {
        cached
            .router
            .configure(&format!("response_cache: {{{section}}}\n"));
        RawClient::post(&cached.router.admin(), "/admin/reload", b"{}").json()
    };
    assert_eq!(
        reload("enabled: true, absent_temperature: bypass, max_response_size: 10")["changed"],
        json!([
            "response_cache.absent_temperature",
            "response_cache.max_response_size"
        ])
    );
    let absent = without(chat_body("b"), "temperature");
    assert_eq!(
        [cached.status(&absent), cached.status(&chat_body("a"))],
        ["BYPASS absent_temperature", "HIT stored"]
    );
    assert_eq!(
        [
            cached.status(&chat_body("c")),
            cached.status(&chat_body("c"))
        ],
        ["MISS not_found", "MISS not_found"]
    );
    assert_eq!(reload("enabled: false")["applied"], json!(true));
    assert_eq!(cached.status(&chat_body("while it is off")), "BYPASS off");
    let reloaded = reload("enabled: true, backend: redis, redis: {url: \"redis://127.0.0.1:1\"}");
    let needed = reloaded["restart_needed"].as_array().expect("a list");
    assert!(
        needed.contains(&json!("response_cache.backend")),
        "{reloaded}"
    );
    assert_eq!(
        [
            cached.status(&chat_body("a")),
            cached.status(&chat_body("a"))
        ],
        ["MISS not_found", "HIT stored"]
    );
    assert_eq!(
        cached.stats()["backend_type"],
        "memory",
        "as it was at the start"
    );
}
