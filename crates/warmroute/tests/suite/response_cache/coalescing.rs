//! Of equal simultaneous misses only one request is sent.

use std::time::Duration;

use contract_id::contract;
use serde_json::json;

use super::{CachedRouter, FINE, chat_body, without};
use crate::harness::{RawClient, RouterQueries as _, ScriptedReply, eventually, json_reply};

#[test]
#[contract("CK26", "B6")]
fn of_many_simultaneous_misses_one_is_sent() {
    let late = ScriptedReply::Late(Duration::from_millis(500), json_reply("200 OK", "", FINE));
    // This also holds where coalescing is off otherwise and for requests without a repeatable
    // reply.
    let cached = CachedRouter::with(
        "response_cache: {enabled: true}\ncache: {enable_deduplication: false}\n",
        late,
    );
    let body = without(chat_body("why?"), "temperature");
    let mut clients: Vec<_> = (0..16)
        .map(|_| RawClient::chat(&cached.router.data(), &body))
        .collect();
    let replies: Vec<_> = clients.iter_mut().map(RawClient::reply).collect();
    assert!(
        replies
            .iter()
            .all(|reply| reply.status == 200 && reply.text() == FINE)
    );
    assert_eq!(cached.engine.requests(), 1);
    let count_of = |what: &str| {
        replies
            .iter()
            .filter(|reply| reply.header("x-cache") == Some(what))
            .count()
    };
    assert_eq!((count_of("MISS"), count_of("HIT")), (1, 15));
    assert_eq!(cached.status(&body), "HIT stored");
    cached.router.wait_until_idle();
}

#[test]
#[contract("S48", "CK75")]
fn a_request_from_before_a_clear_answers_none_after_it() {
    let cached = CachedRouter::with(
        "response_cache: {enabled: true}\n",
        ScriptedReply::Late(
            Duration::from_millis(600),
            json_reply("200 OK", "", &FINE.replace("yes", "old")),
        ),
    );
    let mut early = RawClient::chat(&cached.router.data(), &chat_body("why?"));
    cached.engine.next_request();
    let cleared = RawClient::post(
        &cached.router.admin(),
        "/admin/response-cache/invalidate",
        br#"{"clear_all": true}"#,
    );
    assert_eq!(cleared.json()["success"], json!(true));
    cached.engine.script(super::fine());
    // The reply in flight is neither joined nor stored when it arrives.
    assert_eq!(cached.send(&chat_body("why?")).text(), FINE);
    assert!(early.reply().text().contains("old"));
    eventually("all cacheable replies to be stored", || {
        (cached.send(&chat_body("why?")).text() == FINE).then_some(())
    });
    assert_eq!(
        (
            cached.status(&chat_body("why?")).as_str(),
            cached.engine.requests()
        ),
        ("HIT stored", 2)
    );
}
