//! A splice changes single members; every other byte is the client's.

use contract_id::contract;
use dialect::{Edit, PrefillReply, splice};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn spliced(body: &str, edits: &[Edit<'_>]) -> String {
    String::from_utf8(splice(body.as_bytes(), edits).expect("one object")).expect("text")
}

#[test]
#[contract("V39")]
fn unchanged_members_keep_their_order_spacing_and_numbers() {
    let body = "{\n  \"x-unknown\": {\"a\": [1e400, 0.10]},\n  \"max_tokens\": 64,  \"z\":\"\\u00e9\"\n}\n";
    assert_eq!(
        spliced(
            body,
            &[Edit::Set("max_tokens", "1"), Edit::Set("stream", "false")]
        ),
        "{\n  \"x-unknown\": {\"a\": [1e400, 0.10]},\n  \"max_tokens\": 1,  \"z\":\"\\u00e9\",\"stream\":false\n}\n"
    );
}

#[test]
fn a_member_is_removed_with_one_comma_at_any_position() {
    let gone = [Edit::Remove("a"), Edit::Remove("b")];
    for (body, left) in [
        ("{}", "{}"),
        ("{\"a\":1}", "{}"),
        ("{\"a\":1,\"b\":2}", "{}"),
        ("{\"a\":1, \"c\":3}", "{\"c\":3}"),
        ("{\"c\":3 , \"a\":1}", "{\"c\":3}"),
        ("{\"a\":1,\"c\":3,\"b\":2,\"d\":4}", "{\"c\":3,\"d\":4}"),
        ("{\"c\":3,\"a\":1,\"b\":2,\"d\":4}", "{\"c\":3,\"d\":4}"),
        ("{\"\\u0061\":1,\"c\":3}", "{\"c\":3}"),
    ] {
        assert_eq!(spliced(body, &gone), left, "{body}");
    }
    assert_eq!(
        spliced("{ }", &[Edit::Set("k", "1"), Edit::Set("l", "2")]),
        "{ \"k\":1,\"l\":2}"
    );
    assert_eq!(
        spliced("{\"a\":1}", &[Edit::Remove("a"), Edit::Set("k", "1")]),
        "{\"k\":1}"
    );
}

#[test]
fn a_body_that_is_not_an_object_is_unchanged() {
    for body in ["[]", "", "{\"a\":1", "{\"a\":1}}", "\"a\""] {
        assert!(
            splice(body.as_bytes(), &[Edit::Remove("a")]).is_err(),
            "{body}"
        );
    }
    assert!(splice(b"{\"a\":\"\xff\"}", &[]).is_err());
}

#[test]
#[contract("V39")]
fn a_prefill_reply_with_malformed_ids_or_parameters_is_read_without_them() {
    let read = |text: &'static str| PrefillReply::read(text.as_bytes());
    let odd = read(
        r#"{"kv_transfer_params":null,"prompt_token_ids":[1,"2"],"choices":[{"prompt_token_ids":[]}]}"#,
    );
    assert_eq!(odd, Some(PrefillReply::default()));
    assert_eq!(read(r#"{"error":{"message":"no"}}"#), None);
    assert_eq!(read("nonsense"), None);
    let usage =
        read(r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}"#);
    assert_eq!(
        usage
            .and_then(|reply| reply.usage)
            .and_then(|usage| usage.cached_tokens),
        Some(4)
    );
}

proptest! {
    #[test]
    fn a_splice_equals_the_edit_of_a_parsed_tree(keys in prop::collection::btree_set("[a-f]", 0..6), pretty: bool) {
        let before: Map<String, Value> = keys.iter().map(|key| (key.clone(), json!({"of": [key, 1]}))).collect();
        let text = if pretty { serde_json::to_string_pretty(&before) } else { serde_json::to_string(&before) };
        let edits = [Edit::Set("a", "[1, 2]"), Edit::Remove("c"), Edit::Set("g", "null"), Edit::Remove("f")];
        let mut after = before;
        after.insert("a".into(), json!([1, 2]));
        after.insert("g".into(), Value::Null);
        after.remove("c");
        after.remove("f");
        let got = spliced(&text.expect("a map is JSON"), &edits);
        prop_assert_eq!(serde_json::from_str::<Value>(&got).expect("still JSON"), Value::Object(after), "{}", got);
    }
}
