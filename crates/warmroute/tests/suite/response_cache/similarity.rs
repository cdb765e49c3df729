//! Questions with the same meaning (`response_cache.semantic`).

use std::time::Duration;

use contract_id::contract;
use serde_json::{Value, json};

use super::{CachedRouter, FINE, chat_body, fine, status, with};
use crate::harness::{RouterQueries as _, ScriptedReply, eventually, json_reply};

/// With more time for an embedding than a busy machine needs.
const SEMANTIC: &str = "response_cache: {enabled: true, semantic: {enabled: true, embedding_model: m, timeout: 30s}}\n";

/// An engine that gives every text this embedding until it is changed.
fn router_with_embeddings(config: &str) -> CachedRouter {
    let cached = CachedRouter::with(config, fine());
    set_embedding(&cached, &[1.0, 0.0]);
    cached
}

fn embedding(direction: &[f32]) -> String {
    json!({"data": [{"index": 0, "embedding": direction}]}).to_string()
}

fn set_embedding(cached: &CachedRouter, direction: &[f32]) {
    cached
        .engine
        .answer("/v1/embeddings", "200 OK", &embedding(direction));
}

/// The section with more keys for the similarity.
fn semantic(keys: &str) -> String {
    format!(
        "response_cache: {{enabled: true, semantic: {{enabled: true, embedding_model: m, timeout: 30s, {keys}}}}}\n"
    )
}

/// Sends a request without a cached reply, and waits until its reply can answer others.
fn first(cached: &CachedRouter, text: &str) {
    assert_eq!(cached.status(&chat_body(text)), "MISS not_found");
    eventually("the reply to be stored", || {
        (cached.stats()["semantic_entries"] == 1).then_some(())
    });
}

#[test]
#[contract("V35", "V44")]
fn a_question_with_the_same_meaning_gets_the_cached_reply() {
    let cached = router_with_embeddings(&format!("{SEMANTIC}compat: {{headers: [vllm-router]}}\n"));
    first(&cached, "How tall is K2?");
    set_embedding(&cached, &[1.0, 0.1]);
    let near = cached.send(&chat_body("What is the height of K2?"));
    assert_eq!(
        (status(&near).as_str(), near.text().as_str()),
        ("HIT similar", FINE)
    );
    for name in [
        "x-warmroute-cache-similarity",
        "x-vllm-router-cache-similarity",
    ] {
        assert_eq!(near.header(name), Some("0.9950"), "{name}");
    }
    assert_eq!(near.header("x-vllm-router-method"), Some("semantic-hit"));
    assert_eq!(cached.router.receipt_of(&near)["method"], "semantic_hit");
    assert_eq!(
        cached
            .router
            .metric("vllm_router_cache_similarity_count", ""),
        1.0
    );
    // The same text again is an exact hit, which needs no embedding.
    let same = cached.send(&chat_body("How tall is K2?"));
    assert_eq!(
        (
            status(&same).as_str(),
            same.header("x-warmroute-cache-similarity")
        ),
        ("HIT stored", None)
    );
    set_embedding(&cached, &[0.0, 1.0]);
    assert_eq!(
        cached.status(&chat_body("Why is the sky blue?")),
        "MISS not_found"
    );
    assert_eq!(cached.engine.requests(), 2);
}

#[test]
#[contract("V44", "CK28", "S45")]
fn only_the_text_of_the_last_question_may_differ() {
    let cached = router_with_embeddings(SEMANTIC);
    first(&cached, "How tall is K2?");
    let original = chat_body("What is the height of K2?");
    let mut after = original.clone();
    after["messages"] = json!([{"role": "system", "content": "In feet."}, original["messages"][0]]);
    for (what, body) in [
        (
            "other parameters",
            with(original.clone(), "max_tokens", json!(5)),
        ),
        ("another conversation", after),
        (
            "another salt",
            with(original.clone(), "cache_salt", json!("b")),
        ),
    ] {
        assert_eq!(cached.status(&body), "MISS not_found", "{what}");
    }
    assert_eq!(
        status(&cached.send_as(&original, &[("authorization", "Bearer b")])),
        "MISS not_found",
        "another caller"
    );
    assert_eq!(cached.status(&original), "HIT similar");
    let streamed = cached.send(&with(chat_body("K2's height?"), "stream", json!(true)));
    assert_eq!(
        (status(&streamed).as_str(), streamed.header("content-type")),
        ("HIT similar", Some("text/event-stream"))
    );
}

#[test]
#[contract("V44", "CK75")]
fn similarity_is_off_unless_configured_and_cleared_with_the_rest() {
    let off = router_with_embeddings("response_cache: {enabled: true}\n");
    off.status(&chat_body("How tall is K2?"));
    assert_eq!(
        off.status(&chat_body("What is the height of K2?")),
        "MISS not_found"
    );
    let cached = router_with_embeddings(SEMANTIC);
    first(&cached, "How tall is K2?");
    assert_eq!(
        cached.status(&chat_body("What is the height of K2?")),
        "HIT similar"
    );
    let clear = super::RawClient::post(
        &cached.router.admin(),
        "/admin/response-cache/invalidate",
        br#"{"clear_all":true}"#,
    );
    assert_eq!(clear.status, 200);
    assert_eq!(
        cached.status(&chat_body("And its height?")),
        "MISS not_found"
    );
}

#[test]
#[contract("V44", "CK65")]
fn any_failure_of_the_embedding_model_is_only_a_miss() {
    let cached = router_with_embeddings(SEMANTIC);
    first(&cached, "How tall is K2?");
    for (status, body) in [
        ("500 Oops", "{}".to_owned()),
        ("400 Too Long", "{}".to_owned()),
        ("200 OK", "[".to_owned()),
        (
            "200 OK",
            json!({"data": [{"index": 0, "embedding": Value::Array(vec![])}]}).to_string(),
        ),
    ] {
        cached.engine.answer("/v1/embeddings", status, &body);
        assert_eq!(
            cached.status(&chat_body(&format!("What about {status} and {body}?"))),
            "MISS not_found"
        );
    }
}

#[test]
#[contract("V44")]
fn a_question_is_similar_from_the_configured_threshold_on() {
    for (threshold, reply) in [("0.999", "MISS not_found"), ("0.99", "HIT similar")] {
        let cached = router_with_embeddings(&semantic(&format!("threshold: {threshold}")));
        first(&cached, "How tall is K2?");
        // A cosine of 0.995.
        set_embedding(&cached, &[1.0, 0.1]);
        assert_eq!(
            cached.status(&chat_body("K2's height?")),
            reply,
            "{threshold}"
        );
    }
}

#[test]
#[contract("V44")]
fn as_many_replies_are_kept_for_similar_questions_as_configured() {
    for (most, reply) in [(1, "MISS not_found"), (2, "HIT similar")] {
        let cached = router_with_embeddings(&semantic(&format!("max_entries: {most}")));
        first(&cached, "How tall is K2?");
        set_embedding(&cached, &[0.0, 1.0]);
        // Asked again in other words until a reply is stored, the last of which takes the place.
        let mut number = 0;
        eventually("the second reply to be stored", || {
            number += 1;
            let again = chat_body(&format!("Why is the sky blue? ({number})"));
            (cached.status(&again) == "HIT similar").then_some(())
        });
        set_embedding(&cached, &[1.0, 0.0]);
        assert_eq!(cached.status(&chat_body("K2's height?")), reply, "{most}");
    }
}

#[test]
#[contract("V44")]
fn a_reply_answers_similar_questions_for_as_long_as_configured() {
    let cached = router_with_embeddings(&semantic("ttl: 1s"));
    first(&cached, "How tall is K2?");
    // The reply is stored; 300 seconds are the default.
    std::thread::sleep(Duration::from_millis(1_100));
    assert_eq!(cached.status(&chat_body("K2's height?")), "MISS not_found");
}

#[test]
#[contract("V44")]
fn a_request_waits_for_the_embedding_of_its_question_as_long_as_configured() {
    let cached = CachedRouter::with(SEMANTIC, fine());
    let vector = json_reply("200 OK", "", &embedding(&[1.0, 0.0]));
    cached.engine.once(ScriptedReply::whole(vector.clone()));
    first(&cached, "How tall is K2?");
    // Twice the default.
    cached
        .engine
        .once(ScriptedReply::Late(Duration::from_secs(1), vector));
    assert_eq!(cached.status(&chat_body("K2's height?")), "HIT similar");
}
