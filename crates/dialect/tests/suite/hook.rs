//! Requests to hooks before routing, and the accepted replies.

use contract_id::contract;
use dialect::{HookAnswer, hook_answer, hook_question, named_model};
use proptest::prelude::*;

#[test]
#[contract("V44")]
fn the_hook_request_contains_the_body_unchanged() {
    let body = "{ \"model\" : \"a\\\"b\", \"x\":1e2 , \"messages\":[]}";
    let payload =
        hook_question("r\"1", "/v1/chat/completions", body.as_bytes()).expect("an object");
    assert!(
        payload.ends_with(&format!("\"body\":{body}}}")),
        "{payload}"
    );
    let read: serde_json::Value = serde_json::from_str(&payload).expect("valid JSON");
    assert_eq!(
        (read["request_id"].as_str(), read["model"].as_str()),
        (Some("r\"1"), Some("a\"b"))
    );
    let without = hook_question("r", "/v1/completions", b"{}").expect("an object");
    assert!(without.contains("\"model\":null"), "{without}");
    for body in [&b"[]"[..], b"{", b"", b"\xff", b"{} {}"] {
        assert_eq!(hook_question("r", "/", body), None);
        assert_eq!(named_model(body), None);
    }
}

#[test]
#[contract("V44")]
fn only_the_three_documented_replies_are_accepted() {
    let reject = hook_answer(br#"{"action":"reject","status":451,"message":"no"}"#);
    assert_eq!(
        reject,
        Some(HookAnswer::Reject {
            status: Some(451),
            message: Some("no".into())
        })
    );
    for odd in ["200", "503", "99999", "\"x\"", "null", "-1"] {
        let text = format!("{{\"action\":\"reject\",\"status\":{odd}}}");
        assert_eq!(
            hook_answer(text.as_bytes()),
            Some(HookAnswer::Reject {
                status: None,
                message: None
            }),
            "{odd}"
        );
    }
    let Some(HookAnswer::Transform(body)) =
        hook_answer(br#"{"body": {"a": 1.0}, "action": "transform"}"#)
    else {
        panic!("a body")
    };
    assert_eq!(body.as_str(), "{\"a\": 1.0}");
    for text in [
        "{}",
        "[]",
        "",
        "{\"action\":\"pass\"}",
        "{\"action\":\"transform\",\"body\":[1]}",
        "{\"action\":1}",
    ] {
        assert_eq!(hook_answer(text.as_bytes()), None, "{text}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>, text in "[{}\\[\\]\":,a-z0-9 ]{0,60}") {
        for bytes in [bytes.as_slice(), text.as_bytes()] {
            let _ = (hook_answer(bytes), named_model(bytes), hook_question("r", "/", bytes));
        }
    }
}
