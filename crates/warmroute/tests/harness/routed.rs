//! A router before simulated engines, and requests with the cache figures of router and engine.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Program, RawClient, RawReply, RouterQueries, SimControls, eventually};

/// Tokens are computed in debug builds too, however long that takes. Further keys of this section
/// may follow.
const CONFIG: &str = "routing:\n  tokenize_budget: 60s\n";

/// Engines `a`, `b`, ... on free ports and a router that sees all of them as ready. Dropping it
/// stops everything.
pub struct RoutedFleet {
    pub router: Program,
    pub engines: Vec<Program>,
    /// The folder of the configuration, for further files of a test.
    pub dir: tempfile::TempDir,
    flags: Vec<String>,
}

impl RoutedFleet {
    /// Starts one engine per list of flags.
    pub fn start(engines: &[&[&str]]) -> Self {
        Self::with(engines, "", &[])
    }

    /// The same with more keys of section `routing`, each on its own line after two spaces.
    pub fn with_routing(engines: &[&[&str]], keys: &str) -> Self {
        // Continues the section that every file begins with.
        assert!(keys.starts_with("  "), "{keys}");
        Self::with(engines, keys, &[])
    }

    /// The same with more sections of configuration and more flags of `serve`.
    pub fn with(engines: &[&[&str]], config: &str, flags: &[&str]) -> Self {
        let fast = |flags: &&[&str]| {
            let speed: &[&str] = if flags.contains(&"--speed") {
                &[]
            } else {
                &["--speed", "20"]
            };
            Program::engine(&[speed, *flags].concat())
        };
        let engines: Vec<Program> = engines.iter().map(fast).collect();
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("warmroute.yaml");
        std::fs::write(&file, format!("{CONFIG}{config}"))
            .expect("the configuration can be written");
        let file = file.display().to_string();
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        flags.extend(["-c".to_owned(), file]);
        let router = serve(&engines, &flags);
        Self {
            router,
            engines,
            dir,
            flags,
        }
    }

    /// Replaces the router by another one with the same configuration.
    pub fn restart_router(&mut self) {
        self.router.kill();
        self.router = serve(&self.engines, &self.flags);
    }

    /// Sends a chat completion.
    pub fn chat(&self, messages: &[Value], headers: &[(&str, &str)]) -> RoutedReply {
        let body =
            json!({"model": "sim", "messages": messages, "max_tokens": 20, "ignore_eos": true});
        self.send("/v1/chat/completions", &body, headers)
    }

    /// Sends a completion with these fields.
    pub fn completion(&self, fields: Value, headers: &[(&str, &str)]) -> RoutedReply {
        let mut body = json!({"model": "sim", "max_tokens": 4, "ignore_eos": true});
        for (key, value) in fields.as_object().expect("fields are an object") {
            body[key] = value.clone();
        }
        self.send("/v1/completions", &body, headers)
    }

    /// Sends a request, and waits until the router has applied the resulting cache events.
    pub fn send(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> RoutedReply {
        let mut client = RawClient::connect(&self.router.data());
        client.send("POST", path, headers, body.to_string().as_bytes());
        let turn = RoutedReply::read(client.reply());
        self.caught_up();
        turn
    }

    /// Waits until every published batch of events has been applied.
    pub fn caught_up(&self) {
        eventually("the router to have applied all events", || {
            let streams = self.streams();
            self.engines
                .iter()
                .all(|engine| caught_up(engine, &streams))
                .then_some(())
        });
    }

    /// Shapes S.
    pub fn streams(&self) -> Vec<Value> {
        let body = RawClient::get(&self.router.admin(), "/admin/streams").json();
        body["streams"]
            .as_array()
            .expect("a list of streams")
            .clone()
    }

    /// Shape W.
    pub fn worker(&self, name: &str) -> Value {
        RawClient::get(&self.router.admin(), &format!("/admin/workers/{name}")).json()
    }

    /// The finished receipt of a reply.
    pub fn receipt(&self, turn: &RoutedReply) -> Value {
        eventually("the receipt to be settled", || {
            let path = format!("/admin/decisions/{}", turn.decision);
            let receipt = RawClient::get(&self.router.admin(), &path).json();
            (!receipt["outcome"].is_null()).then_some(receipt)
        })
    }

    pub fn digest(&self) -> Value {
        RawClient::get(&self.router.admin(), "/admin/kv-index/digest").json()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn serve(engines: &[Program], flags: &[String]) -> Program {
    let workers: Vec<String> = ('a'..)
        .zip(engines)
        .map(|(name, engine)| format!("{name}={}", engine.url()))
        .collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let router = Program::serve(&workers, &flags).ready(engines.len());
    router.follows_events(0);
    router
}

fn caught_up(engine: &Program, streams: &[Value]) -> bool {
    let stats = engine.stats();
    let ranks = stats["ranks"]
        .as_array()
        .expect("the engine lists its ranks");
    let endpoints = engine.ready["kv_events"]
        .as_array()
        .expect("the engine lists its publishers");
    stats["running"] == 0
        && endpoints.iter().zip(ranks).all(|(endpoint, rank)| {
            let stream = streams
                .iter()
                .find(|stream| stream["endpoint"] == *endpoint);
            stream.is_none_or(|stream| {
                stream["state"] == "live" && stream["last_seq"] == rank["last_seq"]
            })
        })
}

/// One reply.
#[derive(Debug)]
pub struct RoutedReply {
    pub reply: RawReply,
    pub worker: String,
    pub decision: String,
    /// `x-warmroute-predicted-cached-tokens`.
    pub predicted: u64,
    /// The cached tokens in the engine's usage.
    pub cached: u64,
    pub prompt_tokens: u64,
    pub text: String,
}

impl RoutedReply {
    fn read(reply: RawReply) -> Self {
        assert_eq!(reply.status, 200, "{}", reply.text());
        let header = |name: &str| {
            reply
                .header(name)
                .unwrap_or_else(|| panic!("no {name} in {reply:?}"))
                .to_owned()
        };
        let body = reply.json();
        let (usage, choice) = (&body["usage"], &body["choices"][0]);
        let text = choice["message"]["content"]
            .as_str()
            .or(choice["text"].as_str());
        Self {
            worker: header("x-warmroute-worker"),
            decision: header("x-warmroute-decision"),
            predicted: header("x-warmroute-predicted-cached-tokens")
                .parse()
                .expect("a whole number"),
            cached: usage["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .expect("usage with cached tokens"),
            prompt_tokens: usage["prompt_tokens"]
                .as_u64()
                .expect("usage with prompt tokens"),
            text: text.expect("a reply has text").to_owned(),
            reply,
        }
    }
}

/// One message of a chat.
pub fn chat_message(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

/// `count` words that no other `topic` has.
pub fn words(topic: &str, count: usize) -> String {
    (0..count).map(|n| format!("{topic}{n} ")).collect()
}
