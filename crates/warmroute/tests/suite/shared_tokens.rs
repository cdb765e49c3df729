//! Two routers before one engine whose tokenizer neither of them has, and one Redis: what one of them was told the other
//! does not ask for, and whatever becomes of Redis, no request fails.

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

/// An engine, what LMCache's controller needs no more than to be named for, and where two routers meet.
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

    /// A router that asks the engine, with time enough for that, and is connected to Redis.
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

    /// The engine will tell so many tokens, once.
    fn tells(&self, count: u32) {
        let tokens: Vec<u32> = (0..count).collect();
        let answer =
            json!({"count": count, "max_model_len": 4096, "tokens": tokens, "token_strs": null});
        self.engine.once(ScriptedReply::whole(json_reply(
            "200 OK",
            "",
            &answer.to_string(),
        )));
    }

    /// What the engine was asked for next.
    fn asked(&self) -> String {
        let line = self.engine.next_request().line();
        line.split(' ').nth(1).unwrap_or_default().to_owned()
    }

    /// The key of the one prompt that lies in Redis, once it does.
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

/// The tokens of the prompt, as the receipt of a request with it tells of them. It never fails.
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

/// Tokens, new ones among them, and where they come from.
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
fn what_one_router_asked_an_engine_the_other_does_not_ask_again() {
    test_programs::require!(RedisServer);
    let shared = SharedTokensFixture::start();
    let [first, second] = [shared.router(), shared.router()];
    shared.tells(100);
    assert_eq!(
        counted(&prompt(&first, "told", "a secret")),
        (100, 100, "engine_tokenize")
    );
    assert_eq!([shared.asked(), shared.asked()], [TOKENIZE, CHAT]);

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

    for id in ["found", "again"] {
        assert_eq!(
            counted(&prompt(&second, id, "a secret")),
            (100, 0, "engine_tokenize"),
            "{id}"
        );
        assert_eq!(shared.asked(), CHAT, "{id}");
    }
    // What was found is remembered: it is not looked for in Redis again.
    shared.redis.ask(&["DEL", &key]);
    assert_eq!(
        counted(&prompt(&second, "remembered", "a secret")),
        (100, 0, "engine_tokenize")
    );
    assert_eq!(shared.asked(), CHAT);
    // Another prompt is another question.
    shared.tells(7);
    assert_eq!(
        counted(&prompt(&second, "other", "another")),
        (7, 7, "engine_tokenize")
    );
    assert_eq!([shared.asked(), shared.asked()], [TOKENIZE, CHAT]);
    assert_eq!(shared.engine.requests(), 7);
}

#[test]
#[contract("V30")]
fn tokens_count_no_longer_than_configured_in_redis_too() {
    test_programs::require!(RedisServer);
    let shared = SharedTokensFixture::start();
    let [first, second] = [shared.router_with(", ttl: 90s"), shared.router()];
    shared.tells(5);
    prompt(&first, "told", "hello");
    let key = shared.key();
    let ttl: u64 = shared.redis.ask(&["TTL", &key])[0]
        .parse()
        .expect("seconds");
    assert!((1..=90).contains(&ttl), "{ttl}");
    // Near its end, when the second router takes it: from then on it is asked for again.
    shared.redis.ask(&["PEXPIRE", &key, "3000"]);
    assert_eq!(
        counted(&prompt(&second, "near its end", "hello")),
        (5, 0, "engine_tokenize")
    );
    eventually("the key to end", || {
        (shared.redis.ask(&["EXISTS", &key]) == ["0"]).then_some(())
    });
    shared.engine.forget();
    shared.tells(6);
    assert_eq!(
        counted(&prompt(&second, "after it", "hello")),
        (6, 6, "engine_tokenize")
    );
}

#[test]
#[contract("V30")]
fn what_another_writer_put_there_is_a_miss_and_goes() {
    test_programs::require!(RedisServer);
    let shared = SharedTokensFixture::start();
    let [first, second] = [shared.router(), shared.router()];
    let long = "x".repeat(3 << 20);
    // An id, the number of ids, the version; one byte more; a text of the right length; too much; what has no end; a list.
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
        shared.tells(100);
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
        // The engine does not tell now, so that nothing is written in its place.
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
        assert_eq!([shared.asked(), shared.asked()], [TOKENIZE, CHAT], "{n}");
        eventually("it to be gone", || {
            (shared.redis.ask(&["EXISTS", &key]) == ["0"]).then_some(())
        });
    }
    // And one that nobody changed.
    shared.tells(100);
    prompt(&first, "told", "hello");
    shared.key();
    assert_eq!(
        counted(&prompt(&second, "found", "hello")),
        (100, 0, "engine_tokenize")
    );
}

#[test]
#[contract("V30")]
fn redis_stopped_or_killed_costs_no_request_and_few_of_them_a_wait() {
    test_programs::require!(RedisServer);
    let mut shared = SharedTokensFixture::start();
    let router = shared.router();
    shared.tells(3);
    assert_eq!(
        counted(&prompt(&router, "before", "before")),
        (3, 3, "engine_tokenize")
    );
    shared.key();
    let ask = |shared: &SharedTokensFixture, what: &str| {
        let begun = Stopwatch::start();
        for n in 0..10 {
            let id = format!("{what} {n}");
            shared.tells(3);
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
    ask(&shared, "stopped");
    shared.redis.resume();
    shared.redis.kill();
    ask(&shared, "killed");
    // What this router knows it goes on to know.
    assert_eq!(
        counted(&prompt(&router, "known", "before")),
        (3, 0, "engine_tokenize")
    );
    shared.redis.start_again();
    eventually("tokens to be shared again", || {
        shared.engine.forget();
        shared.tells(3);
        let id = format!("back {}", shared.engine.requests());
        prompt(&router, &id, &id);
        (shared.redis.ask(&["DBSIZE"]) != ["0"]).then_some(())
    });
}
