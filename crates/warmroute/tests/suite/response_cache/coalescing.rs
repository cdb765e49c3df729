//! Requests that would all miss are sent once.

use std::time::Duration;

use contract_id::contract;
use serde_json::json;

use super::{CachedRouter, FINE, question, without};
use crate::harness::{RawClient, RouterQueries as _, ScriptedReply, eventually, json_reply};

#[test]
#[contract("CK26", "B6")]
fn of_many_that_miss_together_one_is_sent() {
    let late = ScriptedReply::Late(Duration::from_millis(500), json_reply("200 OK", "", FINE));
    // Also where requests are not joined otherwise, and do not ask for a repeatable answer themselves.
    let cached = CachedRouter::with(
        "response_cache: {enabled: true}\ncache: {enable_deduplication: false}\n",
        late,
    );
    let body = without(question("why?"), "temperature");
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
    let said = |what: &str| {
        replies
            .iter()
            .filter(|reply| reply.header("x-cache") == Some(what))
            .count()
    };
    assert_eq!((said("MISS"), said("HIT")), (1, 15));
    assert_eq!(cached.status(&body), "HIT stored");
    cached.router.settled();
}

#[test]
#[contract("S48", "CK75")]
fn what_was_asked_before_a_clearing_does_not_answer_after_it() {
    let cached = CachedRouter::with(
        "response_cache: {enabled: true}\n",
        ScriptedReply::Late(
            Duration::from_millis(600),
            json_reply("200 OK", "", &FINE.replace("yes", "old")),
        ),
    );
    let mut early = RawClient::chat(&cached.router.data(), &question("why?"));
    cached.engine.next_request();
    let cleared = RawClient::post(
        &cached.router.admin(),
        "/admin/response-cache/invalidate",
        br#"{"clear_all": true}"#,
    );
    assert_eq!(cleared.json()["success"], json!(true));
    cached.engine.script(super::fine());
    // Neither the reply on its way is joined, nor is it kept when it comes.
    assert_eq!(cached.ask(&question("why?")).text(), FINE);
    assert!(early.reply().text().contains("old"));
    eventually("everything to be kept that will be", || {
        (cached.ask(&question("why?")).text() == FINE).then_some(())
    });
    assert_eq!(
        (
            cached.status(&question("why?")).as_str(),
            cached.engine.requests()
        ),
        ("HIT stored", 2)
    );
}
