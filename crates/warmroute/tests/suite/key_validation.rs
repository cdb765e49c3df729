//! Keys of clients that a service of the operator validates.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, eventually,
    json_reply,
};

const CHAT: &str = "/v1/chat/completions";
/// The path of the service.
const VALIDATE: &str = "/auth/validate";

/// A router before one engine whose clients' keys a service validates.
struct ValidatingRouter {
    router: Program,
    engine: ScriptedEngine,
    service: ScriptedEngine,
}

impl ValidatingRouter {
    /// `ttl`: `tenants.key_validation_ttl`.
    fn start(ttl: &str) -> Self {
        Self::with_limit(ttl, "60s")
    }

    /// The same with this time limit of a question.
    fn with_limit(ttl: &str, limit: &str) -> Self {
        let body = json!({"id": "c", "object": "chat.completion", "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}]});
        let reply = || ScriptedReply::whole(json_reply("200 OK", "", &body.to_string()));
        let (engine, service) = (
            ScriptedEngine::start(reply()),
            ScriptedEngine::start(reply()),
        );
        let yaml = format!(
            "tenants:\n  key_validation_ttl: {ttl}\n  key_validation: [{{url: \"{}{VALIDATE}\", timeout: {limit}}}]\n",
            service.url()
        );
        service.answer(VALIDATE, "200 OK", "{}");
        let router = Program::serve_with(&yaml, &[engine.url()], &[]).ready(1);
        Self {
            router,
            engine,
            service,
        }
    }

    fn chat(&self, key: Option<&str>) -> RawReply {
        let bearer = key.map(|key| format!("Bearer {key}"));
        let headers: Vec<(&str, &str)> = (bearer.iter())
            .map(|bearer| ("authorization", &**bearer))
            .collect();
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        RawClient::post_with(
            &self.router.data(),
            CHAT,
            &headers,
            body.to_string().as_bytes(),
        )
    }

    fn code(&self, key: &str) -> (u16, String) {
        let reply = self.chat(Some(key));
        let code = if reply.status == 200 {
            String::new()
        } else {
            reply.error_code()
        };
        (reply.status, code)
    }

    /// Returns the number of questions since the last call.
    fn questions(&self) -> usize {
        self.service.seen_lines().len()
    }
}

#[test]
#[contract("V33")]
fn a_service_says_which_keys_are_valid_and_is_asked_once() {
    let routed = ValidatingRouter::start("60s");
    let missing = routed.chat(None);
    assert_eq!(
        (missing.status, &*missing.error_code()),
        (401, "missing_api_key")
    );
    assert_eq!(routed.questions(), 0);
    assert_eq!(RawClient::get(&routed.router.data(), "/health").status, 200);

    assert_eq!(routed.code("sk-good").0, 200);
    let asked = routed.service.next_request();
    assert_eq!(asked.line(), format!("GET {VALIDATE} HTTP/1.1"));
    assert_eq!(
        asked.header("authorization").as_deref(),
        Some("Bearer sk-good")
    );
    for _ in 0..5 {
        assert_eq!(routed.code("sk-good").0, 200);
    }
    assert_eq!(routed.questions(), 0);

    for status in ["401 Unauthorized", "403 Forbidden"] {
        routed.service.answer(VALIDATE, status, "{}");
        let key = format!("sk-{}", &status[..3]);
        let invalid = (401, "invalid_api_key".to_owned());
        for _ in 0..3 {
            assert_eq!(routed.code(&key), invalid);
        }
        assert_eq!(routed.questions(), 1, "{status}");
    }
    assert_eq!(routed.engine.requests(), 6);
    assert_eq!(
        routed.code("sk-good").0,
        200,
        "it was accepted a moment ago"
    );
}

#[test]
#[contract("V32", "V33", "F94")]
fn every_accepted_key_is_a_tenant_without_a_right_to_override() {
    let routed = ValidatingRouter::start("60s");
    for key in ["sk-1", "sk-2"] {
        assert_eq!(routed.code(key).0, 200);
    }
    let listed = RawClient::get(&routed.router.admin(), "/admin/tenants").json();
    let names: Vec<&str> = (listed["tenants"].as_array().expect("a list").iter())
        .filter_map(|tenant| tenant["name"].as_str())
        .collect();
    // The digests of the keys begin so.
    assert_eq!(names, ["key-0f2c10bf3d12", "key-bbaae8c99d8c"]);
    let headers = [("x-api-key", "sk-1"), ("x-warmroute-policy", "random")];
    let body: Value = json!({"model": "m", "messages": []});
    let reply = RawClient::post_with(
        &routed.router.data(),
        CHAT,
        &headers,
        body.to_string().as_bytes(),
    );
    assert_eq!(
        (reply.status, &*reply.error_code()),
        (403, "field_not_allowed")
    );
}

#[test]
#[contract("F94", "S5")]
fn while_no_service_answers_known_keys_pass_for_their_time_and_others_do_not() {
    let routed = ValidatingRouter::start("4s");
    assert_eq!(routed.code("sk-known").0, 200);
    for broken in [
        "500 Internal Server Error",
        "302 Found",
        "429 Too Many Requests",
        "204 No Content",
    ] {
        routed.service.answer(VALIDATE, broken, "{}");
        let unknown = (503, "key_validation_failed".to_owned());
        assert_eq!(routed.code(&format!("sk-{broken:.3}")), unknown, "{broken}");
        assert_eq!(routed.code("sk-known").0, 200, "{broken}");
    }
    assert_eq!(routed.router.metric("warmroute_key_validation_up", ""), 0.0);
    eventually("the known key to pass no more", || {
        (routed.code("sk-known").0 == 503).then_some(())
    });
    let engine = routed.engine.requests();
    assert_eq!(routed.code("sk-known").0, 503);
    assert_eq!(routed.engine.requests(), engine);

    routed.service.answer(VALIDATE, "200 OK", "{}");
    eventually("the service to be asked again", || {
        (routed.code("sk-known").0 == 200).then_some(())
    });
    assert_eq!(routed.router.metric("warmroute_key_validation_up", ""), 1.0);
}

#[test]
#[contract("F94")]
fn a_service_that_hangs_holds_a_request_for_its_time_limit_and_the_next_ones_not_at_all() {
    let routed = ValidatingRouter::with_limit("60s", "1s");
    // The head never comes.
    routed.service.answer_bytes(VALIDATE, b"HTTP/1.1 ".to_vec());
    let unknown = (503, "key_validation_failed".to_owned());
    assert_eq!(routed.code("sk-a"), unknown);
    for number in 0..20 {
        assert_eq!(routed.code(&format!("sk-{number}")), unknown);
    }
    let questions = routed.questions();
    assert!((1..=5).contains(&questions), "{questions}");
}

#[test]
#[contract("F94")]
fn a_revoked_key_passes_at_most_for_the_time_to_live() {
    let routed = ValidatingRouter::start("2s");
    assert_eq!(routed.code("sk-a").0, 200);
    routed.service.answer(VALIDATE, "401 Unauthorized", "{}");
    eventually("the key to be refused", || {
        let (status, code) = routed.code("sk-a");
        (status == 401 && code == "invalid_api_key").then_some(())
    });
}
