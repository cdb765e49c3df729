//! What makes two requests the same.

use contract_id::contract;
use dialect::{KeyedRequest, RequestKey, asks_repeatable, reply_form, request_key};
use proptest::prelude::*;
use serde_json::{Value, json};

fn key_of(request: KeyedRequest<'_>) -> RequestKey {
    request_key(request).expect("an object")
}

fn of(body: &str) -> RequestKey {
    key_of(KeyedRequest { tenant: "a", route: "/v1/chat/completions", headers: &[], body: body.as_bytes() })
}

fn body() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0})
}

#[test]
#[contract("A6", "S44")]
fn every_field_that_can_change_the_output_changes_the_key() {
    let changes = [
        ("model", json!("n")),
        ("messages", json!([{"role": "user", "content": "ho"}])),
        ("messages", json!([{"role": "user", "content": "hi", "name": "x"}])),
        ("messages", json!([{"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "1", "content": ""}])),
        ("tools", json!([])),
        ("tool_choice", json!("none")),
        ("stop", json!(["a"])),
        ("seed", json!(1)),
        ("n", json!(2)),
        ("response_format", json!({"type": "json_object"})),
        ("logprobs", json!(true)),
        ("top_logprobs", json!(2)),
        ("presence_penalty", json!(0)),
        ("frequency_penalty", json!(0)),
        ("repetition_penalty", json!(1)),
        ("logit_bias", json!({"1": 1})),
        ("max_tokens", json!(0)),
        ("max_completion_tokens", json!(0)),
        ("temperature", json!(null)),
        ("temperature", json!(0.1)),
        ("top_p", json!(1)),
        ("top_k", json!(0)),
        ("min_p", json!(0)),
        ("lora", json!("x")),
        ("chat_template_kwargs", json!({})),
        ("chat_template", json!("")),
        ("cache_salt", json!("s")),
        ("guided_json", json!({})),
        ("a field that nobody knows", json!(null)),
    ];
    let mut keys = vec![of(&body().to_string())];
    for (name, value) in changes {
        let mut changed = body();
        changed[name] = value;
        let key = of(&changed.to_string());
        assert!(!keys.contains(&key), "{changed}");
        keys.push(key);
    }
    let mut without = body();
    without.as_object_mut().expect("an object").remove("temperature");
    assert!(!keys.contains(&of(&without.to_string())), "absent is not zero");
}

#[test]
#[contract("S44", "CK28")]
fn tenant_route_and_headers_are_in_the_key() {
    let text = body().to_string();
    let usual = KeyedRequest { tenant: "a", route: "/v1/completions", headers: &[("v", b"1")], body: text.as_bytes() };
    let others = [
        KeyedRequest { tenant: "b", ..usual },
        KeyedRequest { route: "/v1/chat/completions", ..usual },
        KeyedRequest { headers: &[("v", b"2")], ..usual },
        KeyedRequest { headers: &[], ..usual },
        KeyedRequest { tenant: "a/v1/completions", route: "", ..usual },
    ];
    for other in others {
        assert_ne!(key_of(usual), key_of(other), "{other:?}");
    }
}

#[test]
#[contract("A6")]
fn what_cannot_change_the_output_does_not_change_the_key() {
    let usual = of(&body().to_string());
    for (name, value) in [
        ("stream", json!(true)),
        ("stream_options", json!({"include_usage": true})),
        ("user", json!("me")),
        ("metadata", json!({"a": 1})),
        ("request_id", json!("r")),
    ] {
        let mut other = body();
        other[name] = value;
        assert_eq!(of(&other.to_string()), usual, "{name}");
    }
    let spaced = "\n{ \"temperature\" :0 ,\"messages\": [ {\"role\":\"user\", \"content\":\"hi\"} ],\t\"model\":\"m\"}";
    assert_eq!(of(spaced), usual);
    // Space inside a text is text, also behind an escaped quote.
    assert_ne!(of(r#"{"p":"a \" b"}"#), of(r#"{"p":"a \"b"}"#));
    assert_ne!(of(r#"{"p":"a\\", "q":" "}"#), of(r#"{"p":"a\\", "q":""}"#));
}

#[test]
fn a_stream_and_a_whole_reply_have_two_forms() {
    let form = |text: &str| reply_form(text.as_bytes());
    assert_ne!(form(r#"{"stream":true}"#), form("{}"));
    assert_ne!(form(r#"{"stream":true}"#), form(r#"{"stream":true,"stream_options":{"include_usage":true}}"#));
    assert_eq!(form(r#"{"stream": true, "x": 1}"#), form(r#"{"y":2,"stream":true}"#));
}

#[test]
#[contract("CH11")]
fn only_an_explicit_zero_or_a_seed_asks_for_a_repeatable_answer() {
    for (text, repeatable) in [
        (r#"{"temperature":0}"#, true),
        (r#"{"temperature": 0.0}"#, true),
        (r#"{"temperature":-0.0}"#, true),
        (r#"{"temperature":1,"seed":0}"#, true),
        (r#"{"seed":-5}"#, true),
        (r#"{"temperature":1e-9}"#, false),
        (r#"{"temperature":null}"#, false),
        (r#"{"temperature":"0"}"#, false),
        (r#"{"seed":null}"#, false),
        (r#"{"seed":"7"}"#, false),
        (r#"{"messages":[{"seed":1,"temperature":0}]}"#, false),
        (r#"{"prompt":"\"seed\":1"}"#, false),
        ("{}", false),
        ("[0]", false),
        ("{\"seed\":1", false),
    ] {
        assert_eq!(asks_repeatable(text.as_bytes()), repeatable, "{text}");
    }
}

proptest! {
    #[test]
    #[contract("S44")]
    fn another_field_or_value_is_another_key(name in "[a-z_]{1,12}", one in "[ -~]{0,12}", other in "[ -~]{0,12}") {
        prop_assume!(!["stream", "stream_options", "user", "metadata", "request_id", "rid"].contains(&name.as_str()));
        let body = |value: &str| json!({name.as_str(): value}).to_string();
        prop_assert_eq!(of(&body(&one)) == of(&body(&other)), one == other);
        prop_assert_ne!(of(&body(&one)), of("{}"));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>) {
        let _ = (asks_repeatable(&bytes), reply_form(&bytes));
        let _ = request_key(KeyedRequest { tenant: "", route: "", headers: &[], body: &bytes });
    }
}
