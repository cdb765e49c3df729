//! A router with every tier switched on, and requests whose replies tell their placement, so that
//! the expected query results are known.

use serde_json::{Value, json};

use super::queries;
use crate::{
    harness::{Program, RawClient, RoutedFleet, chat_message, eventually, words},
    prefix_stream::PrefixStream,
    redis_server::RedisServer,
};

/// More tokens than any prompt here has.
const ALL_OF_IT: u32 = 4_000;

/// Engines `a` and `b`; `b` has a prefix stream beside its own events.
pub(crate) struct TrafficFixture {
    routed: RoutedFleet,
    pub(crate) stream: PrefixStream,
}

/// The sent requests by their placement.
#[derive(Debug, Default)]
pub(crate) struct SentRequests {
    /// Sent to the owner of the prefix.
    pub(crate) owner: usize,
    /// Sent to another engine because the owner was full.
    pub(crate) overflow: usize,
    /// Sent without a prefix to hash.
    pub(crate) keyless: usize,
    /// Sent to the engine with the cached prompt: the cached shares of the prompts.
    pub(crate) overlaps: Vec<f64>,
    /// Different prefixes that were looked up.
    pub(crate) beginnings: usize,
    /// Answered by the response cache, looked up without a hit, and not looked up.
    pub(crate) hits: usize,
    pub(crate) misses: usize,
    pub(crate) skips: usize,
}

impl SentRequests {
    /// Placed by the ring or by the fallback.
    pub(crate) fn not_by_cache(&self) -> usize {
        self.owner + self.overflow + self.keyless
    }
}

impl TrafficFixture {
    pub(crate) fn start(redis: &RedisServer) -> Self {
        let stream = PrefixStream::start();
        let cache = if queries::has_response_cache() {
            "enabled: true, backend: redis, "
        } else {
            ""
        };
        let config = format!(
            "prefix_routing: {{enabled: true}}\nresponse_cache: {{{cache}redis: {{url: \"{}\", command_timeout_ms: 5000}}}}\n\
             kv_cache_index: {{enabled: true, backend: redis, event_sources: [{{backend_name: b, endpoint: \"{}\", \
             reconnect_interval_ms: 100}}]}}\n",
            redis.url(),
            stream.url()
        );
        // Without KV events of their own, so that only ring and view place the requests.
        let slow: &[&str] = &["--speed", "4", "--no-kv-events"];
        Self {
            routed: RoutedFleet::with(&[slow, slow], &config, &[]),
            stream,
        }
    }

    pub(crate) fn router(&self) -> &Program {
        &self.routed.router
    }

    /// Sends all traffic that the queries cover.
    pub(crate) fn traffic(&self) -> SentRequests {
        let mut sent = SentRequests::default();
        let [whole, part] = self.homes_on_a(&mut sent);
        self.burst(&whole, &mut sent);
        self.stream.publish("cache_created", &whole, ALL_OF_IT);
        self.cached_on_b(&whole, 1.0, 5, &mut sent);
        // A bit less than half of it.
        let prompt_tokens = self.chat(&part).prompt_tokens;
        sent.owner += 1;
        sent.skips += 1;
        let held = prompt_tokens * 45 / 100;
        self.stream.publish("cache_created", &part, held);
        self.cached_on_b(
            &part,
            f64::from(held) / f64::from(prompt_tokens),
            3,
            &mut sent,
        );
        self.routed
            .completion(json!({"prompt": [1, 2, 3, 4], "temperature": 0.7}), &[]);
        sent.keyless += 1;
        sent.skips += 1;
        if queries::has_response_cache() {
            self.repeated(&mut sent);
        }
        sent
    }

    /// Two requests that run until they are dropped.
    pub(crate) fn two_in_flight(&self, sent: &mut SentRequests) -> [RawClient; 2] {
        sent.keyless += 2;
        sent.skips += 2;
        [7, 8].map(|token| {
            let mut client = RawClient::connect(&self.router().data());
            let body = json!({
                "model": "sim", "prompt": [token, token], "max_tokens": 30_000, "ignore_eos": true, "stream": true,
                "temperature": 0.7,
            });
            client.send("POST", "/v1/completions", &[], body.to_string().as_bytes());
            assert_eq!(client.head().status, 200);
            client
        })
    }

    /// Two system prompts whose owner is `a`.
    fn homes_on_a(&self, sent: &mut SentRequests) -> [String; 2] {
        let mut found = Vec::new();
        for n in 0..40 {
            let prompt = format!("You are assistant {n}. {}", words(&n.to_string(), 60));
            let home = self.chat(&prompt).worker;
            sent.owner += 1;
            sent.skips += 1;
            sent.beginnings += 1;
            if home == "a" {
                found.push(prompt);
            }
            if let [one, other] = &found[..] {
                return [one.clone(), other.clone()];
            }
        }
        panic!("a ring with two owners gives one of them next to nothing");
    }

    /// Sends more requests at once than one owner takes.
    fn burst(&self, system: &str, sent: &mut SentRequests) {
        let mut body = chat(system, 0.7);
        body["max_tokens"] = 300.into();
        let clients: Vec<RawClient> = (0..8)
            .map(|_| RawClient::chat(&self.router().data(), &body))
            .collect();
        for mut client in clients {
            let reply = client.reply();
            assert_eq!(reply.status, 200, "{}", reply.text());
            if reply.header("x-warmroute-worker") == Some("a") {
                sent.owner += 1
            } else {
                sent.overflow += 1
            }
            sent.skips += 1;
        }
        assert!(sent.overflow > 0, "{sent:?}");
    }

    /// Sends requests until the router uses the announced prefix, and then `times` more.
    fn cached_on_b(&self, system: &str, overlap: f64, times: usize, sent: &mut SentRequests) {
        eventually("the router to use the stream", || {
            sent.skips += 1;
            if self.chat(system).worker == "b" {
                return Some(());
            }
            sent.owner += 1;
            None
        });
        for _ in 0..times {
            assert_eq!(self.chat(system).worker, "b");
        }
        sent.skips += times;
        sent.overlaps.extend(vec![overlap; times + 1]);
    }

    /// Sends a request that the response cache may answer three times.
    fn repeated(&self, sent: &mut SentRequests) {
        let body = chat("You repeat yourself.", 0.0);
        for expected in ["MISS", "HIT", "HIT"] {
            let reply = RawClient::chat(&self.router().data(), &body).reply();
            assert_eq!(
                (reply.status, reply.header("x-cache")),
                (200, Some(expected)),
                "{}",
                reply.text()
            );
        }
        sent.misses += 1;
        sent.hits += 2;
        sent.owner += 1;
        sent.beginnings += 1;
    }

    fn chat(&self, system: &str) -> PlacedRequest {
        let reply = RawClient::chat(&self.router().data(), &chat(system, 0.7)).reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        let tokens = reply.json()["usage"]["prompt_tokens"]
            .as_u64()
            .expect("usage with prompt tokens");
        PlacedRequest {
            worker: reply
                .header("x-warmroute-worker")
                .expect("the reply names its worker")
                .to_owned(),
            prompt_tokens: u32::try_from(tokens).expect("a short prompt"),
        }
    }
}

struct PlacedRequest {
    worker: String,
    prompt_tokens: u32,
}

fn chat(system: &str, temperature: f64) -> Value {
    let messages = [
        chat_message("system", system),
        chat_message("user", "hello"),
    ];
    json!({"model": "sim", "messages": messages, "max_tokens": 2, "ignore_eos": true, "temperature": temperature})
}
