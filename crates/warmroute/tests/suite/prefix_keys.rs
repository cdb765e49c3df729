//! The prefix key is a property of the conversation, whatever API the client writes it in.

use contract_id::contract;
use serde_json::{Value, json};

use crate::{
    harness::{RawClient, RoutedFleet, RouterQueries as _, eventually, words},
    kv_index,
    prefix_stream::PrefixStream,
};

/// One conversation beginning, and every way to write it.
struct Conversation {
    chat: Value,
    messages: Vec<Value>,
}

fn conversations(count: usize) -> Vec<Conversation> {
    let ask = json!([{"role": "user", "content": "hello"}]);
    let with_system = |n: usize| {
        let (head, tail) = (
            format!("You are assistant {n}. "),
            words(&n.to_string(), 12),
        );
        let block = |text: &str| json!({"type": "text", "text": text});
        let marked = json!({"type": "text", "text": head, "cache_control": {"type": "ephemeral"}});
        let system = json!({"role": "system", "content": format!("{head}{tail}")});
        Conversation {
            chat: json!({"messages": [system, ask[0]]}),
            messages: vec![
                json!({"system": format!("{head}{tail}"), "messages": ask}),
                json!({"system": [block(&head), block(&tail)], "messages": ask}),
                json!({"system": [marked, block(&tail)], "messages": ask}),
            ],
        }
    };
    let without_system = |n: usize| {
        let text = format!("Document {n}: {}", words(&format!("d{n}x"), 12));
        let turn = json!({"role": "user", "content": text});
        let blocks = json!({"role": "user", "content": [{"type": "text", "text": text}]});
        Conversation {
            chat: json!({"messages": [turn]}),
            messages: vec![
                json!({"messages": [turn]}),
                json!({"messages": [blocks]}),
                json!({"system": "", "messages": [turn]}),
                json!({"system": [], "messages": [turn]}),
            ],
        }
    };
    (0..count)
        .flat_map(|n| [with_system(n), without_system(n)])
        .collect()
}

/// Sends a request; returns the worker that the ring chose.
fn owner(routed: &RoutedFleet, path: &str, fields: &Value) -> String {
    let mut body = json!({"model": "sim", "max_tokens": 2});
    for (name, value) in fields.as_object().expect("fields are an object") {
        body[name] = value.clone();
    }
    let reply = RawClient::post(&routed.router.data(), path, body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{path} {fields}: {}", reply.text());
    reply
        .header("x-warmroute-worker")
        .expect("the reply names its worker")
        .to_owned()
}

#[test]
#[contract("CK10")]
fn a_message_and_its_equal_chat_have_one_prefix_key_and_one_owner() {
    // Engines that support messages natively, and engines that get them translated.
    for flags in [&["--anthropic"] as &[&str], &[]] {
        let routed = RoutedFleet::with(
            &[flags, flags, flags],
            "prefix_routing: {enabled: true}\n",
            &[],
        );
        let keys = || {
            routed
                .router
                .metric("continuum_prefix_routing_prefix_cardinality", "")
        };
        let all = conversations(6);
        let owners: Vec<String> = all
            .iter()
            .map(|one| owner(&routed, "/v1/chat/completions", &one.chat))
            .collect();
        assert!(
            owners.iter().any(|other| *other != owners[0]),
            "the keys are spread: {owners:?}"
        );
        assert_eq!(keys(), 12.0, "one key for each conversation");
        for (one, home) in all.iter().zip(&owners) {
            for fields in &one.messages {
                for path in ["/v1/messages", "/anthropic/v1/messages"] {
                    assert_eq!(owner(&routed, path, fields), *home, "{path} {fields}");
                }
            }
        }
        assert_eq!(keys(), 12.0, "a message has the key of its chat");
    }
}

/// `hashlib.sha256(b"sim\0SYou are a careful coding agent that answers in one line.")` in Python.
const AGENT: &str = "2d497970119b1d77e857abed2a5471d92467fc6e6d00f657665add0cba823ead";

#[test]
#[contract("CK7")]
fn a_key_of_another_program_finds_a_prompt_also_behind_the_line_that_agents_change() {
    let stream = PrefixStream::start();
    let routed = kv_index::routed_to_silent(&stream);
    stream.publish_raw(&format!(
        "event: cache_created\ndata: {{\"prefix_hash\": \"{AGENT}\", \"token_count\": 4000}}\n\n"
    ));
    eventually("the event", || {
        let stats = kv_index::get(&routed.router, "/admin/kv-index/stats");
        (stats["index"]["entry_count"] == 1).then_some(())
    });
    let send = |system: String| {
        let messages = json!([
            {"role": "system", "content": system}, {"role": "user", "content": "hello"}
        ]);
        owner(
            &routed,
            "/v1/chat/completions",
            &json!({"messages": messages}),
        )
    };
    let decided = |decision: &str| {
        let name = "continuum_kv_index_routing_decisions_total";
        let labels = [("decision", decision)];
        kv_index::page(&routed.router).value(name, &labels)
    };
    let prompt = "You are a careful coding agent that answers in one line.";
    let line = |n: u32| format!("x-anthropic-billing-header: cc_version=2.1.37; cch={n};");
    for system in [
        prompt.to_owned(),
        format!("{}{prompt}", line(1)),
        format!("{}\n{prompt}", line(2)),
    ] {
        assert_eq!(send(system), "b");
    }
    assert_eq!((decided("kv_aware"), decided("fallback")), (3.0, 0.0));
    send(format!("{prompt} And kind."));
    assert_eq!((decided("kv_aware"), decided("fallback")), (3.0, 1.0));
}

#[test]
#[contract("CK2")]
fn only_the_first_bytes_of_a_prompt_up_to_the_configured_length_are_in_its_key() {
    let config = "prefix_routing: {enabled: true, max_prefix_length: 64}\n";
    let routed = RoutedFleet::with(&[&[]], config, &[]);
    let keys = || {
        routed
            .router
            .metric("continuum_prefix_routing_prefix_cardinality", "")
    };
    let send = |system: String| {
        let messages = json!([
            {"role": "system", "content": system}, {"role": "user", "content": "hello"}
        ]);
        owner(
            &routed,
            "/v1/chat/completions",
            &json!({"messages": messages}),
        );
    };
    let equal = "x".repeat(64);
    send(format!("{equal} You are terse."));
    send(format!("{equal} You are verbose."));
    assert_eq!(keys(), 1.0, "the 64 bytes are equal");
    send(format!("{}y You are terse.", "x".repeat(63)));
    assert_eq!(keys(), 2.0, "the last of the 64 bytes differs");
}
