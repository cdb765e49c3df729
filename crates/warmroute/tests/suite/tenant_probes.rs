//! Whether a tenant can tell which prompts another one has sent: every reply to a prompt that
//! somebody has sent is that to a prompt of the same length that nobody has.
//!
//! `bench/isolation/run.py` does the same with 50,000 probes, and compares their times too.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{RawClient, RawReply, RoutedFleet, RouterQueries as _, chat_message};

const TENANTS: &str = "tenants: {api_keys: [{name: a, key: sk-a}, {name: b, key: sk-b}]}\n";
const CHAT: &str = "/v1/chat/completions";
const ROUTE: &str = "/v1/route";

/// Each is one token with the space before it, so that all prompts have one length.
const VOCABULARY: [&str; 16] = [
    "self", "with", "that", "name", "read", "text", "what", "path", "from", "over", "body", "else",
    "head", "list", "back", "host",
];
/// More than 4 KiB: the router remembers chats from there on.
const WORDS: usize = 900;

/// A chat that no other number has.
fn numbered_chat(number: u64) -> Value {
    let mut state = number;
    let mut word = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        VOCABULARY[(state >> 60) as usize]
    };
    // The first word has no space before it.
    let text: Vec<&str> = [VOCABULARY[0]]
        .into_iter()
        .chain((0..WORDS).map(|_| word()))
        .collect();
    let messages = [chat_message("user", &text.join(" "))];
    json!({"model": "sim", "messages": messages, "max_tokens": 1, "ignore_eos": true})
}

fn send(routed: &RoutedFleet, key: &str, path: &str, body: &Value) -> RawReply {
    let headers = [("x-api-key", key)];
    let body = body.to_string();
    let reply = RawClient::post_with(&routed.router.data(), path, &headers, body.as_bytes());
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    reply
}

/// Removes what names the request or a time, and the generated text, which follows the prompt.
fn remove_own(value: &mut Value) {
    let own = |name: &str| {
        ["_ms", "_us", "_at"].iter().any(|end| name.ends_with(end))
            || [
                "id",
                "request_id",
                "decision_id",
                "created",
                "timing",
                "at",
                "session",
                "content",
                // It follows the workers' measured speed, which changes by the moment.
                "cost",
                "terms",
            ]
            .contains(&name)
    };
    match value {
        Value::Object(members) => {
            members.retain(|name, _| !own(name));
            members.values_mut().for_each(remove_own);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_own),
        _ => {}
    }
}

/// All that the tenant sees of a reply, but for the request's own names and times.
fn visible(reply: &RawReply) -> (Vec<(String, Vec<u8>)>, Value) {
    let own = |name: &str| matches!(name, "date" | "x-request-id" | "content-length");
    let headers = reply.headers.iter().filter(|(name, _)| !own(name));
    let mut body = reply.json();
    remove_own(&mut body);
    (headers.cloned().collect(), body)
}

fn predicted(reply: &RawReply) -> u64 {
    let body = reply.json();
    let candidates = body["candidates"].as_array().expect("candidates");
    let tokens = |row: &Value| row["predicted_cached_tokens"].as_u64().expect("a number");
    candidates.iter().map(tokens).sum()
}

#[test]
#[contract("S55", "G18")]
fn a_dry_run_of_a_prompt_that_another_tenant_sent_is_that_of_a_new_one() {
    // With two engines, the moment's speed of each would decide between them.
    let routed = RoutedFleet::with(&[&[]], TENANTS, &[]);
    for number in 1..=100 {
        let (used, unused) = (numbered_chat(number), numbered_chat(1_000_000 + number));
        send(&routed, "sk-a", CHAT, &used);
        routed.caught_up();
        let own = send(&routed, "sk-a", ROUTE, &used);
        assert!(predicted(&own) > 0, "the positive control: {}", own.text());
        let [one, other] = [&used, &unused].map(|body| send(&routed, "sk-b", ROUTE, body));
        assert_eq!((predicted(&one), predicted(&other)), (0, 0));
        assert_eq!(visible(&one), visible(&other), "of number {number}");
        let prompt = &one.json()["prompt"];
        assert_eq!(prompt["new_tokens"], prompt["tokens"], "{prompt}");
    }
}

#[test]
#[contract("S55", "G18")]
fn a_chat_that_another_tenant_sent_is_answered_like_a_new_one() {
    let routed = RoutedFleet::with(&[&[]], TENANTS, &[]);
    for number in 1..=50 {
        let (used, unused) = (numbered_chat(number), numbered_chat(1_000_000 + number));
        for expects_hit in [false, true] {
            let own = send(&routed, "sk-a", CHAT, &used);
            let usage = own.json()["usage"].clone();
            let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
            assert_eq!(cached > Some(0), expects_hit, "{usage}");
            routed.caught_up();
        }
        let [one, other] = [&used, &unused].map(|body| {
            let reply = send(&routed, "sk-b", CHAT, body);
            let receipt = routed.router.receipt_of(&reply);
            let new = &receipt["prompt"]["new_tokens"];
            assert_eq!(receipt["outcome"]["cached_tokens"], 0, "{receipt}");
            assert_eq!(*new, receipt["prompt"]["tokens"], "{receipt}");
            visible(&reply)
        });
        assert_eq!(one, other, "of number {number}");
    }
    routed.router.wait_until_idle();
}
