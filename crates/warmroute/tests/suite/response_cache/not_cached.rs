//! Replies that are never cached.

use contract_id::contract;
use serde_json::json;

use super::{CachedRouter, DONE, FINE, cache_headers, chat_body, chat_chunk, event, fine, with};
use crate::harness::{
    PieceGate, RawClient, RouterQueries as _, ScriptedReply, chunk, chunked, json_reply,
    stream_head, stream_reply,
};

/// Asserts that two equal requests both reach the engine.
fn assert_never_cached(what: &str, reply: ScriptedReply, streamed: bool) {
    let cached = CachedRouter::with("response_cache: {enabled: true}\n", reply);
    let body = with(chat_body("why?"), "stream", json!(streamed));
    for count in 1..=2 {
        let reply = cached.send(&body);
        assert_eq!(
            cache_headers(&reply),
            "MISS not_found",
            "{what}: {}",
            reply.text()
        );
        assert_eq!(cached.engine.requests(), count, "{what}");
    }
    cached.router.wait_until_idle();
    assert_eq!(cached.stats()["entries"], 0, "{what}");
}

fn whole(reply: &str) -> ScriptedReply {
    ScriptedReply::whole(json_reply("200 OK", "", reply))
}

#[test]
#[contract("CH15", "S47")]
fn replies_with_an_error_and_malformed_bodies_are_not_cached() {
    for (what, reply) in [
        ("an error at the end", FINE.replace("\"stop\"", "\"error\"")),
        ("an aborted one", FINE.replace("\"stop\"", "\"abort\"")),
        (
            "an error in one choice of two",
            FINE.replace(
                "\"finish_reason\":\"stop\"}",
                "\"finish_reason\":\"stop\"},{\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":\"error\"}",
            ),
        ),
        ("an error object", r#"{"error":{"message":"no","type":"server_error"}}"#.to_owned()),
        ("no JSON", "yes".to_owned()),
    ] {
        assert_never_cached(what, whole(&reply), false);
    }
    let tools = FINE.replace(
        "\"content\":\"yes\"",
        r#""content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":"}}]"#,
    );
    assert_never_cached("arguments that were cut", whole(&tools), false);
}

#[test]
#[contract("CH15", "S47")]
fn statuses_other_than_200_are_not_cached() {
    for status in [
        "400 Bad Request",
        "404 Not Found",
        "500 Internal Server Error",
    ] {
        let body = r#"{"error":{"message":"no"}}"#;
        let config = "response_cache: {enabled: true}\nretry: {max_attempts: 1}\n";
        let cached = CachedRouter::with(config, ScriptedReply::whole(json_reply(status, "", body)));
        for count in 1..=2 {
            let reply = cached.send(&chat_body("why?"));
            assert_eq!(
                (cache_headers(&reply).as_str(), reply.status.to_string()),
                ("MISS not_found", status[..3].to_owned())
            );
            assert_eq!(cached.engine.requests(), count, "{status}");
        }
    }
}

#[test]
#[contract("CK25", "CK23")]
fn replies_over_the_configured_size_are_not_cached() {
    let cached = CachedRouter::start(", max_response_size: 100, max_stream_buffer_size: 100");
    let long = with(chat_body("why?"), "stream", json!(true));
    for count in 1..=2 {
        assert_eq!(
            cache_headers(&cached.send(&chat_body("why?"))),
            "MISS not_found"
        );
        assert_eq!(cached.engine.requests(), count);
    }
    cached.engine.script(ScriptedReply::whole(stream_reply(&[
        &chat_chunk(&"x".repeat(90), "\"stop\""),
        DONE,
    ])));
    for count in 3..=4 {
        let reply = cached.send(&long);
        assert!(
            reply.clean && reply.text().contains("[DONE]"),
            "{}",
            reply.text()
        );
        assert_eq!(
            (cache_headers(&reply).as_str(), cached.engine.requests()),
            ("MISS not_found", count)
        );
    }
}

#[test]
#[contract("CH16", "F19", "F20", "F21", "S47")]
fn incomplete_or_failed_streams_are_not_cached() {
    let (yes, end, done) = (
        chat_chunk("yes", "null"),
        chat_chunk("", "\"stop\""),
        DONE.to_vec(),
    );
    let error = event(r#"{"error":{"message":"no"}}"#);
    for (what, pieces) in [
        ("no end", vec![&yes, &end]),
        ("no reason", vec![&yes, &done]),
        ("an error in it", vec![&yes, &error, &done]),
        ("done twice", vec![&yes, &end, &done, &done]),
        ("something after the end", vec![&yes, &end, &done, &yes]),
    ] {
        let pieces: Vec<&[u8]> = pieces.into_iter().map(Vec::as_slice).collect();
        assert_never_cached(what, ScriptedReply::whole(stream_reply(&pieces)), true);
    }
    assert_never_cached(
        "a cut",
        ScriptedReply::Cut([stream_head(), chunk(&yes)].concat()),
        true,
    );
}

#[test]
#[contract("CH16", "F35")]
fn a_stream_whose_client_left_is_not_cached() {
    let gate = PieceGate::new();
    let stream = ScriptedReply::Gated(
        vec![
            stream_head(),
            chunk(&chat_chunk("yes", "null")),
            chunk(&chat_chunk("", "\"stop\"")),
            chunked(&[DONE]),
        ],
        gate.clone(),
    );
    let cached = CachedRouter::with("response_cache: {enabled: true}\n", stream);
    let body = with(chat_body("why?"), "stream", json!(true));
    let mut client = RawClient::chat(&cached.router.data(), &body);
    // The client gets its head with the first event.
    (0..2).for_each(|_| gate.open());
    client.head();
    drop(client);
    cached.router.wait_until_idle();
    cached.engine.script(fine());
    assert_eq!(cached.stats()["entries"], 0);
    assert_eq!(
        cache_headers(&cached.send(&chat_body("why?"))),
        "MISS not_found"
    );
}

#[test]
#[contract("CH16", "F6")]
fn a_stream_that_timed_out_is_not_cached() {
    let stall = ScriptedReply::Stall([stream_head(), chunk(&chat_chunk("yes", "null"))].concat());
    let config = "response_cache: {enabled: true}\nrequest: {stream_idle_timeout: 300ms}\n";
    let cached = CachedRouter::with(config, stall);
    let body = with(chat_body("why?"), "stream", json!(true));
    for count in 1..=2 {
        let reply = cached.send(&body);
        assert_eq!(cache_headers(&reply), "MISS not_found");
        assert!(
            !reply.clean && reply.text().contains("stream_idle_timeout"),
            "{}",
            reply.text()
        );
        assert_eq!(cached.engine.requests(), count);
    }
    cached.router.wait_until_idle();
    assert_eq!(cached.stats()["entries"], 0);
}
