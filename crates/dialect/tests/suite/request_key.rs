//! Equivalent requests have the same key, and other requests have other keys.

use contract_id::contract;
use dialect::{RepeatabilityView, RequestKey, Temperature};
use proptest::prelude::*;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn read(body: &str) -> RepeatabilityView<'_> {
    RepeatabilityView::read(body.as_bytes()).expect("an object")
}

fn of(body: &str) -> RequestKey {
    read(body).key("a", CHAT, &[])
}

fn body() -> Value {
    let hi = json!({"role": "user", "content": "hi"});
    json!({"model": "m", "messages": [hi], "temperature": 0})
}

/// Bodies that differ from [`body`] in one member.
fn changed(changes: &[(&str, Value)]) -> Vec<String> {
    let change = |(name, value): &(&str, Value)| {
        let mut changed = body();
        changed[name] = value.clone();
        changed.to_string()
    };
    changes.iter().map(change).collect()
}

fn assert_all_differ(bodies: &[String]) {
    let mut keys = vec![(of(&body().to_string()), body().to_string())];
    for text in bodies {
        let key = of(text);
        let same = keys.iter().find(|(other, _)| *other == key);
        assert!(
            same.is_none(),
            "{text} has the key of {}",
            same.expect("some").1
        );
        keys.push((key, text.clone()));
    }
}

#[test]
#[contract("A6", "CK27", "S44")]
fn requests_with_different_content_have_different_keys() {
    let assistant =
        |call: Value| json!([{"role": "assistant", "content": null, "tool_calls": [call]}]);
    let call = |id: &str, name: &str, arguments: &str| {
        assistant(
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}),
        )
    };
    assert_all_differ(&changed(&[
        ("messages", json!([{"role": "user", "content": "ho"}])),
        ("messages", json!([{"role": "user", "content": "hi "}])),
        ("messages", json!([{"role": "user", "content": ["hi"]}])),
        (
            "messages",
            json!([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]),
        ),
        (
            "messages",
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "hi"}}]}]),
        ),
        ("messages", json!([{"role": "user", "content": null}])),
        ("messages", json!([{"role": "user"}])),
        ("messages", json!([{"role": "system", "content": "hi"}])),
        (
            "messages",
            json!([{"role": "user", "content": "hi", "name": "x"}]),
        ),
        (
            "messages",
            json!([{"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}}]),
        ),
        (
            "messages",
            json!([{"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}]),
        ),
        (
            "messages",
            json!([{"role": "tool", "tool_call_id": "1", "content": "hi"}]),
        ),
        (
            "messages",
            json!([{"role": "tool", "tool_call_id": "2", "content": "hi"}]),
        ),
        ("messages", call("1", "f", "{}")),
        ("messages", call("2", "f", "{}")),
        ("messages", call("1", "g", "{}")),
        ("messages", call("1", "f", "{ }")),
        (
            "messages",
            json!([{"role": "assistant", "reasoning": "hm", "content": "hi"}]),
        ),
        ("messages", json!([])),
        ("messages", json!(null)),
        ("prompt", json!("hi")),
        ("prompt", json!([1, 2])),
        ("prompt", json!([1, 2, 0])),
        ("prompt", json!([[1, 2]])),
        ("prompt_embeds", json!("AAAA")),
        ("system", json!("be brief")),
        ("suffix", json!("the end")),
        ("echo", json!(true)),
        ("documents", json!([])),
        ("prediction", json!({"type": "content", "content": "hi"})),
        ("modalities", json!(["text"])),
        ("audio", json!({"voice": "a"})),
        ("mm_processor_kwargs", json!({})),
    ]));
}

#[test]
#[contract("A6", "CK27", "S44")]
fn every_field_that_changes_the_model_or_the_prompt_changes_the_key() {
    assert_all_differ(&changed(&[
        ("model", json!("n")),
        ("model", json!("M")),
        ("lora", json!("x")),
        ("lora_path", json!("x")),
        ("lora_request", json!({"lora_name": "x"})),
        ("adapter", json!("x")),
        ("adapter_id", json!("x")),
        ("tools", json!([])),
        (
            "tools",
            json!([{"type": "function", "function": {"name": "f"}}]),
        ),
        (
            "tools",
            json!([{"type": "function", "function": {"name": "f", "description": "d"}}]),
        ),
        ("tool_choice", json!("none")),
        ("tool_choice", json!("required")),
        (
            "tool_choice",
            json!({"type": "function", "function": {"name": "f"}}),
        ),
        ("parallel_tool_calls", json!(false)),
        ("functions", json!([{"name": "f"}])),
        ("function_call", json!({"name": "f"})),
        ("response_format", json!({"type": "json_object"})),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {}}),
        ),
        ("structured_outputs", json!({"regex": "a"})),
        ("guided_json", json!({})),
        ("guided_regex", json!("a")),
        ("guided_choice", json!(["a"])),
        ("guided_grammar", json!("a")),
        ("guided_decoding_backend", json!("a")),
        ("guided_whitespace_pattern", json!("a")),
        ("chat_template", json!("")),
        ("chat_template_kwargs", json!({})),
        ("chat_template_kwargs", json!({"enable_thinking": false})),
        ("add_generation_prompt", json!(false)),
        ("continue_final_message", json!(true)),
        ("add_special_tokens", json!(true)),
        ("truncate_prompt_tokens", json!(9)),
        ("cache_salt", json!("s")),
        ("reasoning_effort", json!("low")),
        ("reasoning", json!({"effort": "low"})),
        ("include_reasoning", json!(false)),
        ("thinking", json!({"type": "enabled"})),
        ("verbosity", json!("low")),
        ("service_tier", json!("flex")),
        ("web_search_options", json!({})),
        ("store", json!(true)),
        ("priority", json!(1)),
        ("vllm_xargs", json!({})),
        ("logits_processors", json!([])),
        ("kv_transfer_params", json!({})),
        ("a field that nobody knows", json!(null)),
        ("a field that nobody knows", json!("null")),
        ("", json!(null)),
    ]));
}

#[test]
#[contract("A6", "CK27", "S44")]
fn every_field_that_changes_sampling_or_output_changes_the_key() {
    assert_all_differ(&changed(&[
        ("temperature", json!(null)),
        ("temperature", json!(0.1)),
        ("temperature", json!(1)),
        ("temperature", json!("0")),
        ("seed", json!(null)),
        ("seed", json!(0)),
        ("seed", json!(1)),
        ("n", json!(1)),
        ("n", json!(2)),
        ("best_of", json!(2)),
        ("use_beam_search", json!(true)),
        ("length_penalty", json!(1)),
        ("stop", json!("a")),
        ("stop", json!(["a"])),
        ("stop", json!([])),
        ("stop", json!(["a", "b"])),
        ("stop", json!(["a, b"])),
        ("stop_token_ids", json!([1])),
        ("include_stop_str_in_output", json!(true)),
        ("ignore_eos", json!(true)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(null)),
        ("max_tokens", json!(16)),
        ("max_completion_tokens", json!(0)),
        ("max_completion_tokens", json!(16)),
        ("min_tokens", json!(1)),
        ("top_p", json!(1)),
        ("top_p", json!(0.9)),
        ("top_k", json!(0)),
        ("top_k", json!(-1)),
        ("min_p", json!(0)),
        ("typical_p", json!(0.5)),
        ("presence_penalty", json!(0)),
        ("frequency_penalty", json!(0)),
        ("repetition_penalty", json!(1)),
        ("logit_bias", json!({"1": 1})),
        ("logit_bias", json!({"1": 2})),
        ("logit_bias", json!({"11": 1})),
        ("bad_words", json!(["a"])),
        ("allowed_token_ids", json!([1])),
        ("logprobs", json!(true)),
        ("logprobs", json!(1)),
        ("top_logprobs", json!(2)),
        ("prompt_logprobs", json!(1)),
        ("return_token_ids", json!(true)),
        ("return_tokens_as_token_ids", json!(true)),
        ("skip_special_tokens", json!(false)),
        ("spaces_between_special_tokens", json!(false)),
        ("detokenize", json!(false)),
    ]));
}

#[test]
#[contract("A6", "CK27")]
fn absent_null_and_zero_have_different_keys() {
    for name in ["temperature", "max_tokens", "top_p", "seed", "n"] {
        let mut without = body();
        without.as_object_mut().expect("an object").remove(name);
        let with = |value: Value| {
            let mut with = without.clone();
            with[name] = value;
            of(&with.to_string())
        };
        let keys = [
            of(&without.to_string()),
            with(json!(null)),
            with(json!(0)),
            with(json!(0.0)),
            with(json!("")),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{name}: {at}");
        }
    }
}

#[test]
#[contract("S44", "CK27", "CK28")]
fn tenant_route_and_headers_are_in_the_key() {
    let text = body().to_string();
    let body = read(&text);
    type Headers<'a> = &'a [(&'a str, &'a [u8])];
    let others: [(&str, &str, Headers<'_>); 12] = [
        ("a", CHAT, &[("anthropic-beta", b"1")]),
        ("b", CHAT, &[("anthropic-beta", b"1")]),
        ("", CHAT, &[("anthropic-beta", b"1")]),
        ("a", "/anthropic/v1/messages", &[("anthropic-beta", b"1")]),
        ("a", "/v1/completions", &[("anthropic-beta", b"1")]),
        ("a/v1/chat/completions", "", &[("anthropic-beta", b"1")]),
        ("a", CHAT, &[("anthropic-beta", b"2")]),
        ("a", CHAT, &[("anthropic-version", b"1")]),
        ("a", CHAT, &[("anthropic-beta1", b"")]),
        (
            "a",
            CHAT,
            &[("anthropic-beta", b"1"), ("anthropic-beta", b"1")],
        ),
        (
            "a",
            CHAT,
            &[("anthropic-beta", b"1"), ("anthropic-version", b"1")],
        ),
        ("a", CHAT, &[]),
    ];
    let keys = others.map(|(tenant, route, headers)| body.key(tenant, route, headers));
    for (at, key) in keys.iter().enumerate() {
        assert!(!keys[..at].contains(key), "{:?}", others[at]);
    }
}

#[test]
#[contract("S44")]
fn moving_a_byte_between_adjacent_parts_changes_the_key() {
    let bodies = [
        r#"{"a":"b","c":"d"}"#,
        r#"{"a":"bc","":"d"}"#,
        r#"{"a":"b,\"c\":\"d\""}"#,
        r#"{"ab":"","c":"d"}"#,
        r#"{"a":["b","c"],"d":[]}"#,
        r#"{"a":["b"],"c":["d"]}"#,
        r#"{"a":[1,23]}"#,
        r#"{"a":[12,3]}"#,
        r#"{"a":["b","c"]}"#,
        r#"{"a":["b, c"]}"#,
        r#"{"a":["b , c"]}"#,
    ];
    for (at, body) in bodies.iter().enumerate() {
        assert!(
            bodies[..at].iter().all(|other| of(other) != of(body)),
            "{body}"
        );
    }
    // Members, headers and the tenant are separate parts of the key.
    assert_ne!(
        read("{}").key("a", "r", &[("n", b"1")]),
        read(r#"{"n":1}"#).key("a", "r", &[])
    );
    assert_ne!(
        read("{}").key("a", "r", &[("n", b"1")]),
        read("{}").key("a", "rn1", &[])
    );
}

#[test]
#[contract("S44")]
fn a_duplicate_member_has_another_key_than_either_value() {
    let bodies = [
        r#"{"seed":1}"#,
        r#"{"seed":2}"#,
        r#"{"seed":1,"seed":2}"#,
        r#"{"seed":2,"seed":1}"#,
        r#"{"seed":1,"seed":1}"#,
        r#"{"seed":1,"\u0073eed":2,"seed":1}"#,
    ];
    for (at, body) in bodies.iter().enumerate() {
        assert!(
            bodies[..at].iter().all(|other| of(other) != of(body)),
            "{body}"
        );
    }
    // A body with indistinguishable names has no key.
    assert!(RepeatabilityView::read(br#"{"\ud800":1}"#).is_none());
}

#[test]
#[contract("A6", "CK27")]
fn a_field_that_cannot_change_the_output_does_not_change_the_key() {
    let usual = of(&body().to_string());
    let ignored = changed(&[
        ("stream", json!(true)),
        ("stream", json!(false)),
        ("stream_options", json!({"include_usage": true})),
        ("user", json!("me")),
        ("metadata", json!({"a": 1})),
        ("request_id", json!("r")),
        ("rid", json!("r")),
    ]);
    for text in ignored {
        assert_eq!(of(&text), usual, "{text}");
    }
    let spaced = "\n{ \"temperature\" :0 ,\"messages\": [ {\"role\":\"user\", \"content\":\"hi\"} ],\t\"model\":\"m\"}";
    assert_eq!(of(spaced), usual);
    assert_eq!(
        of(r#"{"\u0073tream":true,"p":"x"}"#),
        of(r#"{"p":"x"}"#),
        "a name is compared decoded"
    );
    // Whitespace inside a string is significant, also after an escaped quote.
    assert_ne!(of(r#"{"p":"a \" b"}"#), of(r#"{"p":"a \"b"}"#));
    assert_ne!(of(r#"{"p":"a\\", "q":" "}"#), of(r#"{"p":"a\\", "q":""}"#));
    // Only top-level members are left out, not nested ones.
    assert_ne!(of(r#"{"p":{"user":1}}"#), of(r#"{"p":{}}"#));
}

#[test]
fn a_stream_and_a_complete_reply_have_different_forms() {
    let form = |text: &str| read(text).form();
    assert_ne!(form(r#"{"stream":true}"#), form("{}"));
    assert_ne!(
        form(r#"{"stream":true}"#),
        form(r#"{"stream":true,"stream_options":{"include_usage":true}}"#)
    );
    assert_eq!(
        form(r#"{"stream": true, "x": 1}"#),
        form(r#"{"y":2,"stream":true}"#)
    );
}

#[test]
#[contract("CH11")]
fn only_temperature_zero_or_a_seed_makes_a_request_repeatable() {
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
        (r#"{"temperature":0,"temperature":1}"#, false),
        (r#"{"seed":1,"seed":null}"#, false),
        (r#"{"messages":[{"seed":1,"temperature":0}]}"#, false),
        (r#"{"prompt":"\"seed\":1"}"#, false),
        ("{}", false),
    ] {
        assert_eq!(read(text).asks_repeatable(), repeatable, "{text}");
    }
    assert!(
        ["[0]", "{\"seed\":1", "", "null"]
            .iter()
            .all(|text| RepeatabilityView::read(text.as_bytes()).is_none())
    );
}

#[test]
fn temperature_is_absent_zero_or_another_value() {
    for (text, expected) in [
        ("{}", Temperature::Absent),
        (r#"{"temperature":null}"#, Temperature::Absent),
        (r#"{"temperature":0}"#, Temperature::Zero),
        (r#"{"temperature":0.00}"#, Temperature::Zero),
        (r#"{"temperature":0.7}"#, Temperature::Other),
        (r#"{"temperature":"0"}"#, Temperature::Other),
        (r#"{"temperature":false}"#, Temperature::Other),
        (r#"{"temperature":0,"temperature":0}"#, Temperature::Other),
    ] {
        assert_eq!(read(text).temperature(), expected, "{text}");
    }
}

#[test]
fn stream_options_are_read_as_the_request_view_reads_them() {
    let stream_options = |text: &str| {
        let read = read(text);
        (
            read.stream(),
            read.include_usage(),
            read.other_stream_options(),
        )
    };
    assert_eq!(stream_options("{}"), (false, false, false));
    assert_eq!(
        stream_options(r#"{"stream":null,"stream_options":null}"#),
        (false, false, false)
    );
    assert_eq!(
        stream_options(r#"{"stream":"true","stream_options":{"include_usage":1}}"#),
        (true, true, false)
    );
    assert_eq!(
        stream_options(r#"{"stream":true,"stream_options":{"include_obfuscation":false}}"#),
        (true, false, false)
    );
    assert_eq!(
        stream_options(
            r#"{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#
        ),
        (true, true, true)
    );
    assert_eq!(
        stream_options(r#"{"stream":true,"stream_options":"all"}"#),
        (true, false, true)
    );
}

proptest! {
    #[test]
    #[contract("S44")]
    fn a_different_field_or_value_changes_the_key(name in "[a-z_]{1,12}", one in "[ -~]{0,12}", other in "[ -~]{0,12}") {
        prop_assume!(!["stream", "stream_options", "user", "metadata", "request_id", "rid"].contains(&name.as_str()));
        let body = |value: &str| json!({name.as_str(): value}).to_string();
        prop_assert_eq!(of(&body(&one)) == of(&body(&other)), one == other);
        prop_assert_ne!(of(&body(&one)), of("{}"));
    }

    // None of the names is one that the key leaves out.
    #[test]
    #[contract("S44")]
    fn only_whitespace_and_the_order_of_members_are_ignored(
        members in prop::collection::btree_map("[a-m]{1,4}", prop::collection::vec("[ \"\\\\,:a-c]{0,6}", 0..4), 0..5),
        space in prop::sample::select(vec!["", " ", "\n\t", "  \r\n"]),
    ) {
        let text = |list: &Vec<String>, space: &str| {
            let list: Vec<_> = list.iter().map(|text| json!(text).to_string()).collect();
            format!("{space}[{space}{}{space}]", list.join(&format!("{space},{space}")))
        };
        let object = |members: Vec<(&String, &Vec<String>)>, space: &str| {
            let members: Vec<_> =
                members.iter().map(|(name, list)| format!("\"{name}\"{space}:{}", text(list, space))).collect();
            format!("{{{space}{}{space}}}", members.join(","))
        };
        let plain = object(members.iter().collect(), "");
        prop_assert_eq!(of(&plain), of(&object(members.iter().rev().collect(), space)));
        for (name, list) in &members {
            let mut longer = members.clone();
            longer.insert(name.clone(), [list.as_slice(), &[String::new()]].concat());
            prop_assert_ne!(of(&plain), of(&object(longer.iter().collect(), space)));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>) {
        if let Some(read) = RepeatabilityView::read(&bytes) {
            let _ = (read.asks_repeatable(), read.form(), read.key("", "", &[]), read.other_stream_options());
        }
    }
}
