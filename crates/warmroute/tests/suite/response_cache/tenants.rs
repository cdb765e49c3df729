//! No tenant gets another tenant's reply or learns that it exists.

use contract_id::contract;
use serde_json::{Value, json};

use super::{CachedRouter, FINE, chat_body, status, with};
use crate::{
    harness::{RawClient, RawReply, RouterQueries as _, eventually},
    redis_server::RedisServer,
};

/// Questions of one tenant.
const QUESTIONS: usize = 500;
/// Requests of other tenants for the same questions.
const PROBES: usize = 50_000;

fn answer(client: &mut RawClient, bearer: &str, number: usize) -> RawReply {
    let body = super::chat_body(&format!("question {number}")).to_string();
    client.send(
        "POST",
        "/v1/chat/completions",
        &[("authorization", bearer)],
        body.as_bytes(),
    );
    client.reply()
}

/// The parts of a reply that do not depend on the request's identity.
fn visible_parts(reply: &RawReply) -> (u16, Vec<(String, Vec<u8>)>, String) {
    let own = |name: &str| {
        matches!(
            name,
            "x-request-id" | "x-warmroute-decision" | "date" | "age"
        )
    };
    let headers = reply
        .headers
        .iter()
        .filter(|(name, _)| !own(name))
        .cloned()
        .collect();
    (reply.status, headers, reply.text())
}

#[test]
#[contract("CK28", "S45", "G18")]
fn fifty_thousand_probes_of_other_tenants_find_nothing_and_look_like_new_questions() {
    let cached = CachedRouter::start(", capacity: 100000");
    let mut owner = RawClient::connect(&cached.router.data());
    for number in 0..QUESTIONS {
        assert_eq!(
            status(&answer(&mut owner, "Bearer a", number)),
            "MISS not_found"
        );
    }
    let known = (0..QUESTIONS)
        .filter(|number| status(&answer(&mut owner, "Bearer a", *number)) == "HIT stored");
    let known = known.count();
    assert!(
        known * 100 >= QUESTIONS * 99,
        "the positive control: {known} of {QUESTIONS}"
    );
    assert_eq!(cached.engine.requests(), QUESTIONS as u64);
    // Half of the probes repeat the owner's questions, half are new; each has another caller.
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let address = cached.router.data();
            std::thread::spawn(move || {
                let mut socket = RawClient::connect(&address);
                let mut seen = [Vec::new(), Vec::new()];
                for probe in 0..PROBES / 4 {
                    let (kind, caller) = (probe % 2, format!("Bearer b{client}-{probe}"));
                    let number = probe / 2 % QUESTIONS + kind * 1_000_000;
                    let visible_parts = visible_parts(&answer(&mut socket, &caller, number));
                    if !seen[kind].contains(&visible_parts) {
                        seen[kind].push(visible_parts);
                    }
                }
                seen
            })
        })
        .collect();
    for client in clients {
        let [repeated, unseen] = client.join().expect("the client ran to its end");
        assert_eq!(repeated, unseen, "no reply distinguishes them");
        assert!(
            repeated
                .iter()
                .all(|(status, _, text)| (*status, text.as_str()) == (200, FINE))
        );
        assert!(repeated.iter().all(|(_, headers, _)| {
            headers
                .iter()
                .any(|(name, value)| name == "x-cache" && value == b"MISS")
        }));
    }
    assert_eq!(
        cached.engine.requests(),
        (QUESTIONS + PROBES) as u64,
        "every probe reached the engine"
    );
    cached.router.wait_until_idle();
}

#[test]
#[contract("CK28", "S44", "S45")]
fn a_salt_of_the_client_keeps_its_replies_apart_too() {
    let cached = CachedRouter::start("");
    let salted = |salt: &str| with(chat_body("why?"), "cache_salt", json!(salt));
    assert_eq!(cached.status(&salted("a")), "MISS not_found");
    assert_eq!(
        [cached.status(&salted("b")), cached.status(&salted("a"))],
        ["MISS not_found", "HIT stored"]
    );
}

#[test]
#[contract("S45", "S49")]
fn a_key_that_only_the_engine_can_check_never_gets_another_tenants_reply() {
    let cached = CachedRouter::start("");
    let as_caller = |key: &str| status(&cached.send_as(&chat_body("why?"), &[("x-api-key", key)]));
    assert_eq!(
        [as_caller("right"), as_caller("right")],
        ["MISS not_found", "HIT stored"]
    );
    assert_eq!(
        [as_caller("wrong"), cached.status(&chat_body("why?"))],
        ["MISS not_found", "MISS not_found"]
    );
    let with_cookie = cached.send_as(&chat_body("why?"), &[("cookie", "session=a")]);
    assert_eq!(status(&with_cookie), "MISS not_found");
    // The same holds for requests in flight.
    cached.engine.script(super::ScriptedReply::Late(
        std::time::Duration::from_millis(400),
        super::json_reply("200 OK", "", FINE),
    ));
    let body = chat_body("how?").to_string();
    let mut clients: Vec<_> = ["Bearer a", "Bearer b"]
        .iter()
        .map(|caller| {
            let mut client = RawClient::connect(&cached.router.data());
            client.send(
                "POST",
                "/v1/chat/completions",
                &[("authorization", caller)],
                body.as_bytes(),
            );
            client
        })
        .collect();
    let replies: Vec<_> = clients
        .iter_mut()
        .map(|client| status(&client.reply()))
        .collect();
    assert_eq!(replies, ["MISS not_found", "MISS not_found"]);
    assert_eq!(cached.engine.requests(), 6);
}

/// Removes entries over the admin API; returns the status and the reply.
fn remove(cached: &CachedRouter, query: &str) -> (u16, serde_json::Value) {
    let mut client = RawClient::connect(&cached.router.admin());
    let path = format!("/admin/response-cache/entries{query}");
    client.send("DELETE", &path, &[], b"");
    let reply = client.reply();
    (reply.status, reply.json())
}

#[test]
#[contract("S48")]
fn the_replies_of_one_tenant_or_model_are_removed_from_redis_and_no_others() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    redis.ask(&["SET", "somebody:else", "1"]);
    let config = format!(
        "response_cache: {{enabled: true, backend: redis, insecure: true, lookup_budget: 20s, \
         redis: {{url: \"{}\", command_timeout_ms: 20000}}}}\n\
         tenants: {{api_keys: [{{name: a, key: key-of-a}}, {{name: b, key: key-of-b}}]}}\n",
        redis.url()
    );
    let cached = CachedRouter::with(&config, super::fine());
    eventually("Redis to be in use", || {
        (cached.stats()["redis"]["fallback_active"] == false).then_some(())
    });
    let ask = |tenant: &str, text: &str| {
        let bearer = format!("Bearer key-of-{tenant}");
        let mut client = RawClient::connect(&cached.router.data());
        let body = chat_body(text).to_string();
        client.send(
            "POST",
            "/v1/chat/completions",
            &[("authorization", &bearer)],
            body.as_bytes(),
        );
        status(&client.reply())
    };
    let questions = [("a", "one"), ("a", "two"), ("b", "one")];
    let fill = || {
        for (tenant, text) in questions {
            ask(tenant, text);
            assert_eq!(ask(tenant, text), "HIT stored");
        }
        assert_eq!(redis.ask(&["KEYS", "cr:resp:*"]).len(), 3);
    };
    fill();
    for query in ["", "?", "?tennant=a", "?tenant=a&all=1"] {
        let (code, reply) = remove(&cached, query);
        assert_eq!(code, 400, "{query}: {reply}");
    }
    let get = RawClient::get(
        &cached.router.admin(),
        "/admin/response-cache/entries?tenant=a",
    );
    assert_eq!(get.status, 405);
    for nobody in [
        "?tenant=nobody",
        "?tenant=*",
        "?model=%5Bm%5D",
        "?tenant=b&model=other",
    ] {
        assert_eq!(remove(&cached, nobody).1["cleared_entries"], 0, "{nobody}");
    }
    let expected = json!({"success": true, "action": "clear_tenant", "cleared_entries": 2});
    assert_eq!(remove(&cached, "?tenant=a"), (200, expected));
    assert_eq!(ask("b", "one"), "HIT stored");
    assert_eq!(ask("a", "one"), "MISS not_found");
    ask("a", "two");
    fill();
    let model = chat_body("one")["model"]
        .as_str()
        .expect("a model")
        .to_owned();
    let of_both = remove(&cached, &format!("?tenant=b&model={model}"));
    assert_eq!(of_both.1["cleared_entries"], 1);
    let of_model = remove(&cached, &format!("?model={model}"));
    assert_eq!(of_model.1["cleared_entries"], 2);
    assert_eq!(redis.ask(&["KEYS", "*"]), ["somebody:else"]);
}

/// A router whose tenant `a` has a cached reply, and whose records of requests are all on.
struct RecordedRouter {
    cached: CachedRouter,
    log: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl RecordedRouter {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let log = folder.path().join("decisions.jsonl");
        let cached = CachedRouter::with(&Self::config(&log, ""), super::fine());
        Self {
            cached,
            log,
            _folder: folder,
        }
    }

    fn config(log: &std::path::Path, rules: &str) -> String {
        format!(
            "response_cache: {{enabled: true}}\nlogging: {{requests: true}}\n\
             decision_log: {{path: \"{}\", interval: 10ms}}\n\
             tenants: {{api_keys: [{{name: a, key: key-of-a{rules}}}, {{name: b, key: key-of-b}}]}}\n",
            log.display()
        )
    }

    /// Changes the rules of tenant `a`.
    fn reload(&self, rules: &str) {
        let router = &self.cached.router;
        router.configure(&Self::config(&self.log, rules));
        let reload = RawClient::post(&router.admin(), "/admin/reload", b"{}");
        assert_eq!(reload.status, 200, "{}", reload.text());
    }

    fn ask(&self, key: &str) -> RawReply {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", &*bearer)];
        self.cached.send_as(&chat_body("why?"), &headers)
    }

    /// Asks as tenant `a`, which is refused and learns nothing of its reply.
    fn refuse(&self, key: &str, status: u16, code: &str) {
        let reply = self.ask(key);
        let found = (reply.status, reply.error_code());
        assert_eq!(found, (status, code.to_owned()), "{}", reply.text());
        assert_eq!(reply.header("age"), None);
        assert_ne!(reply.header("x-cache"), Some("HIT"));
    }

    /// The line of a request in the decision log.
    fn logged_decision(&self, request_id: &str) -> Value {
        eventually("the line of the decision log", || {
            let text = std::fs::read_to_string(&self.log).ok()?;
            let lines = text.lines();
            let mut records = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
            records.find(|record| record["request_id"] == request_id)
        })
    }

    /// The requests that a tenant has sent.
    fn requests_of(&self, tenant: &str) -> Value {
        let path = format!("/admin/tenants?name={tenant}");
        RawClient::get(&self.cached.router.admin(), &path).json()["tenants"][0]["requests"].clone()
    }
}

#[test]
#[contract("S49")]
fn a_hit_passes_the_checks_of_its_tenant_and_is_recorded_like_any_request() {
    let recorded = RecordedRouter::start();
    let stored = ["MISS not_found", "HIT stored"];
    let first = [0, 1].map(|_| status(&recorded.ask("key-of-a")));
    assert_eq!(first, stored, "the positive control");
    let hit = recorded.ask("key-of-a");
    assert_eq!(status(&hit), "HIT stored");
    assert!(hit.header("age").is_some());

    let router = &recorded.cached.router;
    let id = hit.header("x-request-id").expect("its id").to_owned();
    for record in [router.receipt(&id), recorded.logged_decision(&id)] {
        let who = [&record["tenant"], &record["method"], &record["winner"]];
        assert_eq!(who, [&json!("a"), &json!("cache_hit"), &Value::Null]);
        let outcome = &record["outcome"];
        assert_eq!(
            (&outcome["kind"], &outcome["status"]),
            (&json!("ok"), &json!(200))
        );
    }
    eventually("the line of the request in the log", || {
        router.stderr().contains(&id).then_some(())
    });
    assert_eq!(recorded.requests_of("a"), 3);

    // Its reply is no one else's, and nobody gets it whose request would be refused otherwise.
    let other = recorded.ask("key-of-b");
    assert_eq!(
        (status(&other), other.header("age")),
        (stored[0].to_owned(), None)
    );
    recorded.refuse("key-of-nobody", 401, "invalid_api_key");
    recorded.reload(", allowed_models: [other]");
    recorded.refuse("key-of-a", 403, "model_not_allowed");
    recorded.reload(", scopes: [models]");
    recorded.refuse("key-of-a", 403, "scope_missing");
    // One request, and the next in a quarter of an hour.
    recorded.reload(", rate_limit_rps: 0.001");
    assert_eq!(status(&recorded.ask("key-of-a")), stored[1]);
    recorded.refuse("key-of-a", 429, "rate_limited");
    assert_eq!(recorded.requests_of("a"), 7);
    recorded.reload(", enabled: false");
    recorded.refuse("key-of-a", 401, "invalid_api_key");
    assert_eq!(recorded.requests_of("a"), 7);
    assert_eq!(recorded.cached.engine.requests(), 2);
}
