//! The running router with `backend: tiered`: memory before a real object store, over TLS with an
//! authority of its own.

use contract_id::contract;
use serde_json::Value;

use super::{cache_headers, chat_body, fine, status};
use crate::{
    encryption::{TestAuthority, TlsFront},
    harness::{
        Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply,
        eventually, json_reply,
    },
    s3_server::S3Server,
};

const KEYS: (&str, &str) = ("AKIAWARMROUTE", "a secret of the object store");

/// An object store behind TLS, and an engine.
struct TieredFixture {
    objects: S3Server,
    front: TlsFront,
    engine: ScriptedEngine,
    folder: tempfile::TempDir,
}

impl TieredFixture {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = TestAuthority::new();
        authority.write_certificate(folder.path());
        for (name, authority) in [("ca.pem", &authority), ("other.pem", &TestAuthority::new())] {
            std::fs::write(folder.path().join(name), authority.pem()).unwrap();
        }
        let objects = S3Server::start_with(Some(KEYS));
        let front = TlsFront::before(&format!("127.0.0.1:{}", objects.port()), folder.path());
        Self {
            objects,
            front,
            engine: ScriptedEngine::start(fine()),
            folder,
        }
    }

    /// A router with an empty first tier; `keys` of the cache beside those of the second tier.
    fn router(&self, authority: &str, l2: &str, keys: &str) -> Program {
        let file = tempfile::NamedTempFile::new().unwrap();
        let plain = self.objects.l2_at(self.front.port);
        let encrypted = plain.replace("http://", "https://");
        let ca = self.folder.path().join(authority).display().to_string();
        let config = format!(
            "response_cache: {{enabled: true, backend: tiered, lookup_budget: 20s, l2: {{type: s3, {encrypted}, tls_ca: {ca}, \
             access_key: \"${{S3_ACCESS_KEY}}\", secret_key: \"${{S3_SECRET_KEY}}\"{l2}}}{keys}}}\n"
        );
        std::fs::write(file.path(), config).unwrap();
        let path = file.path().display().to_string();
        let env = [("S3_ACCESS_KEY", KEYS.0), ("S3_SECRET_KEY", KEYS.1)];
        let workers = [format!("w={}", self.engine.url())];
        Program::serve_with_env(&workers, &["-c", &path], &env)
            .with_file(file)
            .ready(1)
    }

    fn until_objects(&self, count: usize) {
        eventually("the object store to have them", || {
            (self.objects.names().len() == count).then_some(())
        });
    }
}

fn ask(router: &Program, body: &Value) -> RawReply {
    let body = body.to_string();
    RawClient::post(&router.data(), "/v1/chat/completions", body.as_bytes())
}

/// Lookups in the first tier that hit and missed, and the same for the second.
fn lookups(router: &Program) -> [[f64; 2]; 2] {
    ["l1", "l2"].map(|tier| {
        ["hit", "miss"].map(|result| {
            let labels = format!("tier=\"{tier}\",result=\"{result}\"");
            router.metric("continuum_cache_tier_requests_total", &labels)
        })
    })
}

#[test]
#[contract("CH23", "CH24", "CH26")]
fn a_second_router_answers_from_the_object_store_and_then_from_its_memory() {
    let tiers = TieredFixture::start();
    let first = tiers.router("ca.pem", "", "");
    assert_eq!(
        status(&ask(&first, &chat_body("why?"))),
        "MISS not_found",
        "both tiers are empty"
    );
    tiers.until_objects(1);
    let name = tiers.objects.names().remove(0);
    assert!(name.starts_with("response-cache/"), "{name}");
    assert_eq!(status(&ask(&first, &chat_body("why?"))), "HIT stored");
    assert_eq!(lookups(&first), [[1.0, 1.0], [0.0, 1.0]]);

    let second = tiers.router("ca.pem", "", "");
    assert_eq!(status(&ask(&second, &chat_body("why?"))), "HIT stored");
    assert_eq!(lookups(&second), [[0.0, 1.0], [1.0, 0.0]]);
    eventually("the copy to the first tier", || {
        (second.metric("continuum_cache_promotions_total", "") == 1.0).then_some(())
    });
    assert_eq!(status(&ask(&second, &chat_body("why?"))), "HIT stored");
    assert_eq!(lookups(&second), [[1.0, 1.0], [1.0, 0.0]]);
    assert_eq!(tiers.engine.requests(), 1);
    assert_eq!(second.metric("continuum_cache_demotions_total", ""), 0.0);
}

#[test]
#[contract("CH23", "CH24")]
fn a_reply_above_the_limit_of_the_first_tier_is_kept_in_the_second_alone() {
    let tiers = TieredFixture::start();
    let router = tiers.router(
        "ca.pem",
        ", key_prefix: \"own/\"",
        ", l1: {type: memory, max_value_size: 10}",
    );
    assert_eq!(status(&ask(&router, &chat_body("why?"))), "MISS not_found");
    tiers.until_objects(1);
    assert!(tiers.objects.names()[0].starts_with("own/"));
    assert_eq!(router.metric("continuum_cache_demotions_total", ""), 1.0);
    for hits in [1.0, 2.0] {
        assert_eq!(status(&ask(&router, &chat_body("why?"))), "HIT stored");
        assert_eq!(lookups(&router)[1], [hits, 1.0]);
    }
    assert_eq!(router.metric("continuum_cache_promotions_total", ""), 0.0);
}

#[test]
#[contract("CH25")]
fn an_expired_object_is_a_miss_and_the_lookup_deletes_it() {
    let tiers = TieredFixture::start();
    let router = tiers.router(
        "ca.pem",
        ", ttl_override: 1s",
        ", l1: {type: memory, max_value_size: 10}",
    );
    assert_eq!(status(&ask(&router, &chat_body("why?"))), "MISS not_found");
    tiers.until_objects(1);
    // The server writes them after the object.
    eventually("the object's metadata", || {
        tiers
            .objects
            .metadata()
            .contains("expires-at")
            .then_some(())
    });
    // A reply that is not stored: what is found after it was there before.
    let refusal = json_reply("400 Bad Request", "", r#"{"error":{"message":"no"}}"#);
    tiers.engine.script(ScriptedReply::whole(refusal));
    eventually("the object to expire", || {
        let reply = ask(&router, &chat_body("why?"));
        (reply.status == 400).then(|| assert_eq!(cache_headers(&reply), "MISS not_found"))
    });
    tiers.until_objects(0);
}

#[test]
#[contract("CH23", "CK36")]
fn an_object_store_with_an_untrusted_certificate_is_reported_and_no_request_fails() {
    let tiers = TieredFixture::start();
    let router = tiers.router("other.pem", "", "");
    for text in ["why?", "how?", "why?"] {
        let reply = ask(&router, &chat_body(text));
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let log = eventually("the refusal to be reported", || {
        let log = router.stderr();
        log.contains("response_cache.l2.tls_ca").then_some(log)
    });
    assert!(!log.contains(KEYS.1), "{log}");
    let health = RawClient::get(&router.data(), "/health").json();
    assert!(health["degraded"].to_string().contains("s3"), "{health}");
    assert_eq!(tiers.objects.requests(), 0, "nothing was sent");
}
