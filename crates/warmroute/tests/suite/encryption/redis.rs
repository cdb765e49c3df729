//! Redis over TLS, with an authority of its own: for cached replies, the prefix view and token ids.

use contract_id::contract;
use serde_json::{Value, json};
use test_programs::ReservedPort;

use super::certificates::TestAuthority;
use crate::{
    harness::{
        LmcacheController, Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply,
        chat, eventually, json_reply,
    },
    prefix_stream::PrefixStream,
    redis_server::{RawRedis, RedisServer},
};

const PASSWORD: &str = "hush";
const REPLY: &str = r#"{"id":"fine","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}]}"#;

/// A Redis with a password and a port for TLS. The plain port is for the test's own commands.
struct EncryptedRedis {
    server: RedisServer,
    port: ReservedPort,
    folder: tempfile::TempDir,
}

impl EncryptedRedis {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = TestAuthority::new();
        authority.write_certificate(folder.path());
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        let other = TestAuthority::new();
        std::fs::write(folder.path().join("other.pem"), other.pem()).unwrap();
        let port = ReservedPort::new();
        let file = |name: &str| folder.path().join(name).display().to_string();
        let server = RedisServer::start_with(&[
            "--tls-port",
            &port.number().to_string(),
            "--tls-cert-file",
            &file("cert.pem"),
            "--tls-key-file",
            &file("key.pem"),
            "--tls-auth-clients",
            "no",
            "--requirepass",
            PASSWORD,
        ]);
        Self {
            server,
            port,
            folder,
        }
    }

    fn client(&self) -> RawRedis {
        let mut client = self.server.client();
        assert_eq!(client.ask(&["AUTH", PASSWORD]), ["OK"]);
        client
    }

    /// The section `redis` with this scheme and these further keys, `FOLDER` replaced.
    fn section(&self, scheme: &str, keys: &str) -> String {
        let keys = keys.replace("FOLDER", &self.folder.path().display().to_string());
        let port = self.port.number();
        format!(
            "redis: {{url: \"{scheme}://:{PASSWORD}@127.0.0.1:{port}\", connect_timeout_ms: 10000, \
             command_timeout_ms: 20000{keys}}}"
        )
    }
}

/// One engine, whose tokenizer the router asks for, and the stream of its prefixes.
struct StoreUsers {
    engine: ScriptedEngine,
    controller: LmcacheController,
    stream: PrefixStream,
}

impl StoreUsers {
    fn start() -> Self {
        Self {
            engine: ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", REPLY))),
            controller: LmcacheController::start(),
            stream: PrefixStream::start(),
        }
    }

    /// A router whose three stores are in this Redis.
    fn router(&self, redis: &str) -> Program {
        let config = format!(
            "models: {{entries: {{m: {{tokenizer: engine}}}}}}\n\
             response_cache: {{enabled: true, backend: redis, lookup_budget: 20s, {redis}}}\n\
             kv_cache_index: {{enabled: true, backend: redis, event_sources: [{{backend_name: w, endpoint: \"{}\"}}]}}\n\
             routing:\n  policy: warm\n  tokenize_budget: 400ms\n  lmcache:\n    controller_url: {}\n    \
             prompt_cache: {{backend: redis}}\n",
            self.stream.url(),
            self.controller.url()
        );
        Program::serve_with(&config, &[format!("w={}", self.engine.url())], &[]).ready(1)
    }

    fn answer_tokens_once(&self) {
        let tokens: Vec<u32> = (0..20).collect();
        let answer =
            json!({"count": 20, "max_model_len": 4096, "tokens": tokens, "token_strs": null});
        let answer = json_reply("200 OK", "", &answer.to_string());
        self.engine.once(ScriptedReply::whole(answer));
    }
}

/// The `X-Cache` of a question that the cache may answer.
fn ask(router: &Program, text: &str) -> String {
    let mut body = chat("m", text, 4);
    body["temperature"] = json!(0);
    let path = "/v1/chat/completions";
    let reply = RawClient::post(&router.data(), path, body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply
        .header("x-cache")
        .expect("every reply has it")
        .to_owned()
}

fn stats(router: &Program) -> Value {
    RawClient::get(&router.admin(), "/admin/response-cache/stats").json()
}

#[test]
#[contract("CK32")]
fn all_stores_use_redis_over_tls_with_an_authority_of_its_own() {
    test_programs::require!(RedisServer);
    for (scheme, keys) in [
        ("rediss", ", tls_ca: FOLDER/ca.pem"),
        ("redis", ", tls: true, tls_ca: FOLDER/ca.pem"),
    ] {
        let redis = EncryptedRedis::start();
        let users = StoreUsers::start();
        let router = users.router(&redis.section(scheme, keys));
        eventually("the connection", || {
            (stats(&router)["redis"]["fallback_active"] == false).then_some(())
        });
        users.stream.publish("cache_created", "You are terse.", 100);
        users.answer_tokens_once();
        assert_eq!(ask(&router, "why?"), "MISS");
        let mut client = redis.client();
        for prefix in ["cr:resp:", "cr:kvidx:", "cr:tok:"] {
            let pattern = format!("{prefix}*");
            eventually(&format!("{prefix} to be in Redis"), || {
                (!client.ask(&["KEYS", &pattern]).is_empty()).then_some(())
            });
        }
        assert_eq!(ask(&router, "why?"), "HIT");
        assert_eq!(router.metric("continuum_cache_fallback_active", ""), 0.0);

        let own = format!("laddr=127.0.0.1:{} ", redis.port.number());
        let clients = client.ask(&["CLIENT", "LIST"]).concat();
        let encrypted = clients.lines().filter(|line| line.contains(&own)).count();
        assert!(encrypted > 0, "connections of the router: {clients}");
        assert_eq!(
            clients.lines().count(),
            encrypted + 1,
            "only this test has a plain one: {clients}"
        );
    }
}

#[test]
#[contract("CK32", "CK36", "CK38")]
fn a_redis_with_an_untrusted_certificate_is_reported_and_memory_answers() {
    test_programs::require!(RedisServer);
    let redis = EncryptedRedis::start();
    for keys in [", tls_ca: FOLDER/other.pem", ""] {
        let users = StoreUsers::start();
        let router = users.router(&redis.section("rediss", keys));
        let log = eventually("the refusal to be reported", || {
            let log = router.stderr();
            log.contains("the TLS handshake failed").then_some(log)
        });
        assert!(
            log.contains("response_cache.redis.tls_ca") && log.contains("127.0.0.1"),
            "{log}"
        );
        assert!(!log.contains(PASSWORD), "{log}");
        assert_eq!(ask(&router, "why?"), "MISS");
        eventually("the fallback to have the reply", || {
            (ask(&router, "why?") == "HIT").then_some(())
        });
        assert_eq!(router.metric("continuum_cache_fallback_active", ""), 1.0);
        let errors = router.metric("continuum_cache_redis_errors_total", "type=\"connection\"");
        assert!(errors > 0.0, "{errors}");
        let health = RawClient::get(&router.data(), "/health").json();
        assert!(health["degraded"].to_string().contains("redis"), "{health}");
        assert_eq!(redis.client().ask(&["DBSIZE"]), ["0"], "nothing was sent");
    }
}

#[test]
#[contract("CK32")]
fn a_file_of_authorities_that_cannot_be_read_is_an_error_at_the_start() {
    let config = tempfile::NamedTempFile::new().unwrap();
    let redis = "{url: \"rediss://127.0.0.1:1\", tls_ca: /none/ca.pem}";
    std::fs::write(
        config.path(),
        format!("response_cache: {{enabled: true, backend: redis, redis: {redis}}}\n"),
    )
    .unwrap();
    let file = config.path().display().to_string();
    let listen = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let flags = [&["-w", "http://127.0.0.1:1"] as &[&str], &listen].concat();
    let done = Program::finish(&[&["serve", "-c", &file] as &[&str], &flags].concat());
    assert_ne!(done.code, Some(0));
    assert!(
        done.stderr
            .contains("response_cache.redis: /none/ca.pem cannot be read"),
        "{}",
        done.stderr
    );
}
