//! Tokens that routers fetched from an engine whose tokenizer they do not have: in memory, and in
//! one Redis for two routers. A router does not fetch tokens that the other has fetched, and no
//! failure of Redis fails a request.

use std::time::Duration;

use contract_id::contract;
use serde_json::{Value, json};

use crate::{
    harness::{
        LmcacheController, Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply,
        Stopwatch, chat, eventually, json_reply,
    },
    redis_server::RedisServer,
};

const CHAT: &str = "/v1/chat/completions";
const TOKENIZE: &str = "/tokenize";

/// An engine, an LMCache controller address that needs only to be configured, and the Redis that
/// two routers share.
struct SharedTokensFixture {
    engine: ScriptedEngine,
    controller: LmcacheController,
    redis: RedisServer,
}

impl SharedTokensFixture {
    fn start() -> Self {
        let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply(
            "200 OK",
            "",
            r#"{"id":"fine"}"#,
        )));
        Self {
            engine,
            controller: LmcacheController::start(),
            redis: RedisServer::start(),
        }
    }

    fn router(&self) -> Program {
        self.router_with("")
    }

    /// A router that fetches tokens from the engine, with a generous budget, connected to Redis.
    fn router_with(&self, keys: &str) -> Program {
        let config = format!(
            "models: {{entries: {{m: {{tokenizer: engine}}}}}}\nresponse_cache: {{redis: {{url: \"{}\", \
             connect_timeout_ms: 500, command_timeout_ms: 300}}}}\nrouting:\n  tokenize_budget: 400ms\n  lmcache:\n    \
             controller_url: {}\n    prompt_cache: {{backend: redis{keys}}}\n",
            self.redis.url(),
            self.controller.url()
        );
        let router =
            Program::serve_with(&config, &[format!("w={}", self.engine.url())], &[]).ready(1);
        until_connected(&router);
        router
    }

    /// Makes the engine answer one tokenization with `count` tokens.
    fn answer_tokens_once(&self, count: u32) {
        let tokens: Vec<u32> = (0..count).collect();
        let answer =
            json!({"count": count, "max_model_len": 4096, "tokens": tokens, "token_strs": null});
        self.engine.once(ScriptedReply::whole(json_reply(
            "200 OK",
            "",
            &answer.to_string(),
        )));
    }

    /// The path of the next request at the engine.
    fn next_path(&self) -> String {
        let line = self.engine.next_request().line();
        line.split(' ').nth(1).unwrap_or_default().to_owned()
    }

    /// The key of the only prompt in Redis, once it exists.
    fn key(&self) -> String {
        eventually("the tokens to be in Redis", || {
            let mut keys = self.redis.ask(&["KEYS", "*"]);
            assert!(keys.len() <= 1, "{keys:?}");
            keys.pop()
        })
    }
}

fn until_connected(router: &Program) {
    eventually("the router to be connected", || {
        router.stderr().contains("redis answers").then_some(())
    });
}

/// The prompt part of the receipt of a request with this prompt. The request never fails.
fn prompt(router: &Program, id: &str, text: &str) -> Value {
    let (id, body) = (id.replace(' ', "-"), chat("m", text, 1).to_string());
    let reply = RawClient::post_with(
        &router.data(),
        CHAT,
        &[("x-request-id", &id)],
        body.as_bytes(),
    );
    assert_eq!(reply.status, 200, "{}", reply.text());
    router.receipt(&id)["prompt"].clone()
}

/// Waits until a request uses so many tokens out of Redis, which may answer too late on a busy
/// machine. Its chat is the next request of the engine.
fn until_found(shared: &SharedTokensFixture, router: &Program, text: &str, count: u64) {
    let mut number = 0;
    eventually("tokens from Redis", || {
        number += 1;
        shared.engine.forget();
        let found = prompt(router, &format!("found {text} {number}"), text);
        let is_new = found["new_tokens"] != 0;
        (!is_new && found["tokens"] == count && found["source"] == "engine_tokenize").then_some(())
    });
}

/// Tokens, new tokens, and their source.
fn counted(prompt: &Value) -> (u64, u64, &str) {
    let number = |key: &str| {
        prompt[key]
            .as_u64()
            .unwrap_or_else(|| panic!("no {key} in {prompt}"))
    };
    (
        number("tokens"),
        number("new_tokens"),
        prompt["source"].as_str().expect("a word"),
    )
}

#[test]
#[contract("V30")]
fn tokens_that_one_router_fetched_are_not_fetched_by_the_other() {
    test_programs::require!(RedisServer);
    let shared = SharedTokensFixture::start();
    let [first, second] = [shared.router(), shared.router()];
    shared.answer_tokens_once(100);
    assert_eq!(
        counted(&prompt(&first, "told", "a secret")),
        (100, 100, "engine_tokenize")
    );
    assert_eq!([shared.next_path(), shared.next_path()], [TOKENIZE, CHAT]);

    let key = shared.key();
    let digest = key.strip_prefix("cr:tok:").expect("the prefix");
    assert!(
        digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{key}"
    );
    assert_eq!(
        shared.redis.ask(&["STRLEN", &key]),
        ["413"],
        "ids, and nothing of the text"
    );
    let ttl: u64 = shared.redis.ask(&["TTL", &key])[0]
        .parse()
        .expect("seconds");
    assert!((3500..=3600).contains(&ttl), "{ttl}");

    until_found(&shared, &second, "a secret", 100);
    assert_eq!(shared.next_path(), CHAT);
    assert_eq!(
        counted(&prompt(&second, "again", "a secret")),
        (100, 0, "engine_tokenize")
    );
    assert_eq!(shared.next_path(), CHAT);
    // The found tokens are cached locally: they are not read from Redis again.
    shared.redis.ask(&["DEL", &key]);
    assert_eq!(
        counted(&prompt(&second, "remembered", "a secret")),
        (100, 0, "engine_tokenize")
    );
    assert_eq!(shared.next_path(), CHAT);
    // Another prompt is fetched separately.
    shared.answer_tokens_once(7);
    assert_eq!(
        counted(&prompt(&second, "other", "another")),
        (7, 7, "engine_tokenize")
    );
    assert_eq!([shared.next_path(), shared.next_path()], [TOKENIZE, CHAT]);
    assert_eq!(shared.engine.seen_lines(), [""; 0]);
}

#[test]
#[contract("V30")]
fn tokens_in_redis_expire_as_configured_too() {
    test_programs::require!(RedisServer);
    let shared = SharedTokensFixture::start();
    let [first, second] = [shared.router_with(", ttl: 90s"), shared.router()];
    shared.answer_tokens_once(5);
    prompt(&first, "told", "hello");
    let key = shared.key();
    let ttl: u64 = shared.redis.ask(&["TTL", &key])[0]
        .parse()
        .expect("seconds");
    assert!((1..=90).contains(&ttl), "{ttl}");
    // The second router reads the entry near its expiry; after that the engine is called again.
    shared.redis.ask(&["PEXPIRE", &key, "3000"]);
    until_found(&shared, &second, "hello", 5);
    eventually("the key to expire", || {
        (shared.redis.ask(&["EXISTS", &key]) == ["0"]).then_some(())
    });
    shared.engine.forget();
    shared.answer_tokens_once(6);
    assert_eq!(
        counted(&prompt(&second, "after it", "hello")),
        (6, 6, "engine_tokenize")
    );
}

#[test]
#[contract("V30")]
fn a_value_of_another_writer_is_a_miss_and_is_removed() {
    test_programs::require!(RedisServer);
    let shared = SharedTokensFixture::start();
    let [first, second] = [shared.router(), shared.router()];
    let long = "x".repeat(3 << 20);
    // An id, the number of ids, the version; one byte more; a text of the right length; too much; a
    // value without an end; a list.
    let changes: [&[&[&str]]; 9] = [
        &[&["SETRANGE", "KEY", "13", "y"]],
        &[&["SETRANGE", "KEY", "1", "e"]],
        &[&["SETRANGE", "KEY", "0", "2"]],
        &[&["APPEND", "KEY", "z"]],
        &[&["SET", "KEY", "", "EX", "60"]],
        &[&["SET", "KEY", &long[..413], "EX", "60"]],
        &[&["SET", "KEY", &long, "EX", "60"]],
        &[&["PERSIST", "KEY"]],
        &[&["DEL", "KEY"], &["LPUSH", "KEY", "1"]],
    ];
    for (n, commands) in changes.into_iter().enumerate() {
        let text = format!("prompt {n}");
        shared.answer_tokens_once(100);
        assert_eq!(
            counted(&prompt(&first, &format!("told {n}"), &text)),
            (100, 100, "engine_tokenize")
        );
        let key = shared.key();
        for command in commands {
            let words: Vec<&str> = command
                .iter()
                .map(|word| if *word == "KEY" { &*key } else { *word })
                .collect();
            shared.redis.ask(&words);
        }
        shared.engine.forget();
        // The engine does not answer now, so that no value replaces it.
        shared.engine.once(ScriptedReply::whole(json_reply(
            "400 Bad Request",
            "",
            "{}",
        )));
        assert_eq!(
            prompt(&second, &format!("changed {n}"), &text)["source"],
            "text_prefix",
            "{n}"
        );
        assert_eq!(
            [shared.next_path(), shared.next_path()],
            [TOKENIZE, CHAT],
            "{n}"
        );
        eventually("it to be gone", || {
            (shared.redis.ask(&["EXISTS", &key]) == ["0"]).then_some(())
        });
    }
    // An unchanged value is used.
    shared.answer_tokens_once(100);
    prompt(&first, "told", "hello");
    shared.key();
    until_found(&shared, &second, "hello", 100);
}

#[test]
#[contract("V30")]
fn redis_stopped_or_killed_costs_no_request_and_delays_few() {
    test_programs::require!(RedisServer);
    let mut shared = SharedTokensFixture::start();
    let router = shared.router();
    shared.answer_tokens_once(3);
    assert_eq!(
        counted(&prompt(&router, "before", "before")),
        (3, 3, "engine_tokenize")
    );
    shared.key();
    let send = |shared: &SharedTokensFixture, what: &str| {
        let begun = Stopwatch::start();
        for n in 0..10 {
            let id = format!("{what} {n}");
            shared.answer_tokens_once(3);
            assert_eq!(
                counted(&prompt(&router, &id, &id)),
                (3, 3, "engine_tokenize"),
                "{id}"
            );
        }
        // Each would have waited until Redis is given up.
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{what}: {:?}",
            begun.elapsed()
        );
    };
    shared.redis.pause();
    send(&shared, "stopped");
    shared.redis.resume();
    shared.redis.kill();
    send(&shared, "killed");
    // Locally cached tokens stay usable.
    assert_eq!(
        counted(&prompt(&router, "known", "before")),
        (3, 0, "engine_tokenize")
    );
    shared.redis.start_again();
    eventually("tokens to be shared again", || {
        shared.engine.forget();
        shared.answer_tokens_once(3);
        let id = format!("back {}", shared.engine.requests());
        prompt(&router, &id, &id);
        (shared.redis.ask(&["DBSIZE"]) != ["0"]).then_some(())
    });
}

#[test]
#[contract("V30")]
fn as_many_prompts_are_kept_in_memory_as_configured() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"id":"fine"}"#,
    )));
    let controller = LmcacheController::start();
    let config = format!(
        "models: {{entries: {{m: {{tokenizer: engine}}}}}}\nrouting:\n  tokenize_budget: 60s\n  lmcache:\n    \
         controller_url: {}\n    prompt_cache: {{capacity: 2}}\n",
        controller.url()
    );
    let router = Program::serve_with(&config, &[format!("w={}", engine.url())], &[]).ready(1);
    let fetched = |id: &str, text: &str| {
        let tokens = json!({"count": 3, "max_model_len": 4096, "tokens": [1, 2, 3]}).to_string();
        engine.forget();
        engine.once(ScriptedReply::whole(json_reply("200 OK", "", &tokens)));
        counted(&prompt(&router, id, text)).1 > 0
    };
    for text in ["one", "two", "three"] {
        assert!(fetched(text, text), "{text}");
    }
    assert!(!fetched("three again", "three"), "the latest is kept");
    assert!(fetched("one again", "one"), "the oldest made room");
}
