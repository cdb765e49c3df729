//! Converts that router's caches of replies, and the Redis server that they share with its cache of
//! prompt tokens.

use settings::{Value, ValueKind, ValueNode, kinds::int, word};

use super::{
    Conversion, KeyMapping, Place,
    keys::{MILLISECONDS, SECONDS, SHARE, SIZE, key},
    urls::any_url,
};
use crate::{
    converted_config::{ConvertedWorker, SECRET_NOTE, quoted},
    source_config::UnreadFields,
};

/// Default address of Redis if the file names none.
const USUAL_SERVER: &str = "redis://localhost:6379";
const SERVER: &str = "response_cache.redis.url";

pub(super) const BACKEND: ValueKind = ValueKind::Word(&[word("memory"), word("redis")]);

/// That router caches exact repetitions for 60 s.
const CACHE: &[KeyMapping] = &[
    key("max_entries", "response_cache.capacity", SIZE).or("1024"),
    key("ttl_secs", "response_cache.ttl", SECONDS)
        .unit("s")
        .or("60s"),
];

const SEMANTIC: &[KeyMapping] = &[
    key(
        "embeddings_model",
        "response_cache.semantic.embedding_model",
        ValueKind::Text,
    )
    .or("default"),
    key("threshold", "response_cache.semantic.threshold", SHARE),
    key("max_entries", "response_cache.semantic.max_entries", SIZE),
    key("ttl_secs", "response_cache.semantic.ttl", SECONDS).unit("s"),
    key(
        "embedding_timeout_ms",
        "response_cache.semantic.timeout",
        MILLISECONDS,
    )
    .unit("ms"),
];

const REDIS: &[KeyMapping] = &[
    key("pool_size", "response_cache.redis.pool_size", int(1, 1_024)),
    key(
        "connection_timeout_ms",
        "response_cache.redis.connect_timeout_ms",
        int(1, 3_600_000),
    ),
    key(
        "command_timeout_ms",
        "response_cache.redis.command_timeout_ms",
        int(1, 3_600_000),
    ),
];

const KEY_PREFIX: &[KeyMapping] = &[key(
    "key_prefix",
    "response_cache.redis.key_prefix",
    ValueKind::Text,
)];

impl Conversion {
    pub(super) fn caches(&mut self, top: &mut UnreadFields<'_>) {
        let exact = top.take("cache");
        let place = top.place("cache", exact.as_ref());
        let exact = exact.and_then(|exact| self.given.fields(&exact));
        let similar = self.similarity(top);
        if exact.is_none() && !similar {
            return;
        }
        self.set("response_cache.enabled", "true".to_owned(), &place);
        let mut exact = exact.unwrap_or_else(|| top.absent("cache"));
        if self.is_in_redis(&mut exact) {
            self.set("response_cache.backend", "redis".to_owned(), &place);
            if let Some(mut redis) = self.section(&mut exact, "redis") {
                self.keys(KEY_PREFIX, &mut redis);
                self.server(redis, &place);
            } else {
                self.usual_server(&place);
            }
        }
        self.keys(CACHE, &mut exact);
        self.given.leave(exact);
    }

    /// Converts the similarity cache; returns whether it is on.
    fn similarity(&mut self, top: &mut UnreadFields<'_>) -> bool {
        let Some(mut similar) = self.section(top, "semantic_cache") else {
            return false;
        };
        let place = similar.place("embeddings_url", None);
        let on = self.embedding_server(&mut similar);
        if on {
            self.set("response_cache.semantic.enabled", "true".to_owned(), &place);
            self.keys(SEMANTIC, &mut similar);
        }
        let off = (!on).then_some("the section is off there without embeddings_url");
        self.given.leave_because(similar, off);
        on
    }

    /// Takes a backend; returns whether it is Redis.
    pub(super) fn is_in_redis(&mut self, cache: &mut UnreadFields<'_>) -> bool {
        let backend = cache.take("backend");
        backend.and_then(|backend| self.given.value(&backend, &BACKEND))
            == Some(Value::Word("redis"))
    }

    /// Converts the store shared by the prompts of `cache`, selected by `chosen`. That router uses
    /// the one of its response cache if this one names none.
    pub(super) fn prompt_store(&mut self, cache: &mut UnreadFields<'_>, chosen: &Place) {
        match self.section(cache, "redis") {
            Some(redis) => self.server(redis, chosen),
            None if self.ours.has(SERVER) => {}
            None => self.usual_server(chosen),
        }
    }

    fn server(&mut self, mut redis: UnreadFields<'_>, chosen: &Place) {
        match redis.take("url") {
            None => self.usual_server(chosen),
            Some(url) => {
                let checked = self.given.value(&url, &ValueKind::RedisUrl);
                // As written in the file: the checked URL hides its password.
                if let (Some(Value::RedisUrl(checked)), ValueNode::Text(text)) =
                    (checked, &url.value.node)
                {
                    self.set(SERVER, quoted(text), &url.place());
                    if checked.password().is_some() {
                        self.ours.note(SERVER, SECRET_NOTE.to_owned());
                    }
                }
            }
        }
        self.keys(REDIS, &mut redis);
        self.given.leave(redis);
    }

    fn usual_server(&mut self, chosen: &Place) {
        self.set(SERVER, quoted(USUAL_SERVER), chosen);
        self.ours
            .note(SERVER, "the file names no server".to_owned());
    }

    /// Adds an embedding server to the workers, because ours sends embedding requests to workers.
    /// Returns whether the section names one.
    pub(super) fn embedding_server(&mut self, section: &mut UnreadFields<'_>) -> bool {
        let url = section.take("embeddings_url");
        let Some(url) = url.and_then(|url| self.given.url(&url, any_url)) else {
            return false;
        };
        let key = section.take("embeddings_api_key");
        let secret = key.as_ref().and_then(|key| self.secret(key));
        let workers = &mut self.ours.workers;
        match workers.iter_mut().find(|worker| worker.url == url) {
            None => workers.push(ConvertedWorker {
                url,
                api_key: secret,
                ..ConvertedWorker::default()
            }),
            Some(worker) if worker.api_key.is_none() => worker.api_key = secret,
            Some(worker) if secret.is_some() && worker.api_key != secret => {
                key.into_iter().for_each(|key| self.given.unused(key));
            }
            Some(_) => {}
        }
        true
    }
}
