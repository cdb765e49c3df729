//! Converts that router's use of LMCache's controller, and its cache of prompt tokens.

use routing::FALLBACKS;
use settings::{MAX_DURATION, Value, ValueKind, ValueNode, ValueOrigin, word};

use super::{Conversion, KeyMapping, WEIGHT, key, urls::any_url};
use crate::{
    converted_config::{host, quoted},
    source_config::{SourceField, UnreadFields},
};

/// That router's default URL of the controller.
const USUAL_URL: &str = "http://localhost:9000";
const URL: &str = "routing.lmcache.controller_url";
const API_KEY: &str = "routing.lmcache.controller_api_key";
/// Default address of Redis if the file names none.
const USUAL_SERVER: &str = "redis://localhost:6379";
const SERVER: &str = "response_cache.redis.url";

const SECONDS: ValueKind = ValueKind::Int {
    min: 1,
    max: MAX_DURATION.as_secs(),
};

const MODE: ValueKind = ValueKind::Word(&[word("occupancy"), word("prefix_lookup")]);
const BACKEND: ValueKind = ValueKind::Word(&[word("memory"), word("redis")]);

const CONTROLLER: &[KeyMapping] = &[
    key("lookup_mode", "routing.lmcache.mode", MODE),
    KeyMapping {
        unit: "s",
        ..key(
            "poll_interval_secs",
            "routing.lmcache.poll_interval",
            SECONDS,
        )
    },
    KeyMapping {
        unit: "ms",
        ..key(
            "controller_timeout_ms",
            "routing.lmcache.controller_timeout",
            ValueKind::Int {
                min: 1,
                max: MAX_DURATION.as_secs() * 1_000,
            },
        )
    },
    key("cache_weight", "routing.lmcache.cache_weight", WEIGHT),
];

const CACHE: &[KeyMapping] = &[
    KeyMapping {
        unit: "s",
        ..key("ttl_secs", "routing.lmcache.prompt_cache.ttl", SECONDS)
    },
    key(
        "max_entries",
        "routing.lmcache.prompt_cache.capacity",
        ValueKind::Int {
            min: 2,
            max: 10_000_000,
        },
    ),
];

const MILLISECONDS: ValueKind = ValueKind::Int {
    min: 1,
    max: 3_600_000,
};

const REDIS: &[KeyMapping] = &[
    key(
        "pool_size",
        "response_cache.redis.pool_size",
        ValueKind::Int { min: 1, max: 1_024 },
    ),
    key(
        "connection_timeout_ms",
        "response_cache.redis.connect_timeout_ms",
        MILLISECONDS,
    ),
    key(
        "command_timeout_ms",
        "response_cache.redis.command_timeout_ms",
        MILLISECONDS,
    ),
];

impl Conversion {
    /// Converts the keys beside the policy.
    pub(super) fn lmcache(&mut self, policy: &mut UnreadFields<'_>) {
        let url = policy.take("controller_url");
        let place = policy.place("controller_url", url.as_ref());
        let url = match &url {
            None => Some(USUAL_URL.to_owned()),
            Some(url) => self.given.url(url, any_url),
        };
        if let Some(url) = url {
            self.set(URL, quoted(&url), &place);
        }
        self.keys(CONTROLLER, policy);
        if let Some(name) = policy.take("fallback_policy") {
            self.fallback(name);
        }
        if let Some(key) = policy.take("controller_api_key") {
            let place = (key.path.clone(), key.value.origin.clone());
            if let Some(Value::Secret(secret)) = self.given.value(&key, &ValueKind::Secret) {
                self.set(API_KEY, quoted(secret.expose()), &place);
                self.ours.note(
                    API_KEY,
                    "better as ${NAME} of an environment variable".to_owned(),
                );
            }
        }
        if let Some(map) = policy.take("lmcache_worker_map") {
            self.worker_map(&map);
        }
    }

    /// Converts the fallback; ours takes the policies that need no key of the request.
    fn fallback(&mut self, field: SourceField<'_>) {
        let place = (field.path.clone(), field.value.origin.clone());
        let Some(Value::Text(name)) = self.given.value(&field, &ValueKind::Text) else {
            return;
        };
        match FALLBACKS.iter().find(|word| word.matches(&name)) {
            Some(word) => self.set("routing.lmcache.fallback", word.word.to_owned(), &place),
            None => self.given.unused(field),
        }
    }

    /// Converts the worker map; workers of ours are named after their URLs.
    fn worker_map(&mut self, map: &SourceField<'_>) {
        let place = (map.path.clone(), map.value.origin.clone());
        let Some(mut fields) = self.given.fields(map) else {
            return;
        };
        let mut entries = Vec::new();
        for instance in fields.names() {
            let Some(url) = fields.take(&instance) else {
                continue;
            };
            if let Some(url) = self.given.url(&url, any_url) {
                entries.push(format!(
                    "{}: {}",
                    serde_json::Value::from(instance),
                    quoted(&host(&url))
                ));
            }
        }
        if !entries.is_empty() {
            self.set(
                "routing.lmcache.worker_map",
                format!("{{{}}}", entries.join(", ")),
                &place,
            );
        }
        self.given.leave(fields);
    }

    /// Converts the top-level section.
    pub(super) fn prompt_cache(&mut self, top: &mut UnreadFields<'_>) {
        let cache = top
            .take("prompt_cache")
            .and_then(|cache| self.given.fields(&cache));
        if let Some(mut cache) = cache {
            if let Some(backend) = cache.take("backend")
                && self.given.value(&backend, &BACKEND) == Some(Value::Word("redis"))
            {
                let place = (backend.path.clone(), backend.value.origin.clone());
                self.set(
                    "routing.lmcache.prompt_cache.backend",
                    "redis".to_owned(),
                    &place,
                );
                self.server(&mut cache, &place);
            }
            self.keys(CACHE, &mut cache);
            self.given.leave(cache);
        }
    }

    /// Converts the store shared by the prompts of `cache`, selected by `chosen`.
    fn server(&mut self, cache: &mut UnreadFields<'_>, chosen: &(String, ValueOrigin)) {
        let redis = cache
            .take("redis")
            .and_then(|redis| self.given.fields(&redis));
        let Some(mut redis) = redis else {
            return self.usual_server(chosen);
        };
        match redis.take("url") {
            None => self.usual_server(chosen),
            Some(url) => {
                let place = (url.path.clone(), url.value.origin.clone());
                let checked = self.given.value(&url, &ValueKind::RedisUrl);
                // As written in the file: the checked URL hides its password.
                if let (Some(Value::RedisUrl(checked)), ValueNode::Text(text)) =
                    (checked, &url.value.node)
                {
                    self.set(SERVER, quoted(text), &place);
                    if checked.password().is_some() {
                        self.ours.note(
                            SERVER,
                            "better as ${NAME} of an environment variable".to_owned(),
                        );
                    }
                }
            }
        }
        self.keys(REDIS, &mut redis);
        self.given.leave(redis);
    }

    fn usual_server(&mut self, chosen: &(String, ValueOrigin)) {
        self.set(SERVER, quoted(USUAL_SERVER), chosen);
        self.ours
            .note(SERVER, "the file names no server".to_owned());
    }
}
