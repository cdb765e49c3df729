//! Converts that router's use of LMCache's controller, and its cache of prompt tokens.

use routing::FALLBACKS;
use settings::{Value, ValueKind, kinds::int, word};

use super::{
    Conversion, KeyMapping,
    keys::{MILLISECONDS, SECONDS, SHARE, key},
    urls::any_url,
};
use crate::{
    converted_config::{host, quoted},
    source_config::{SourceField, UnreadFields},
};

/// That router's default URL of the controller.
const USUAL_URL: &str = "http://localhost:9000";
const URL: &str = "routing.lmcache.controller_url";

const MODE: ValueKind = ValueKind::Word(&[word("occupancy"), word("prefix_lookup")]);

const CONTROLLER: &[KeyMapping] = &[
    key("lookup_mode", "routing.lmcache.mode", MODE),
    key(
        "poll_interval_secs",
        "routing.lmcache.poll_interval",
        SECONDS,
    )
    .unit("s"),
    key(
        "controller_timeout_ms",
        "routing.lmcache.controller_timeout",
        MILLISECONDS,
    )
    .unit("ms"),
    key("cache_weight", "routing.lmcache.cache_weight", SHARE),
    key(
        "controller_api_key",
        "routing.lmcache.controller_api_key",
        ValueKind::Secret,
    ),
];

const CACHE: &[KeyMapping] = &[
    key("ttl_secs", "routing.lmcache.prompt_cache.ttl", SECONDS).unit("s"),
    key(
        "max_entries",
        "routing.lmcache.prompt_cache.capacity",
        int(2, 10_000_000),
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
        if let Some(map) = policy.take("lmcache_worker_map") {
            self.worker_map(&map);
        }
    }

    /// Converts the fallback; ours takes the policies that need no key of the request.
    fn fallback(&mut self, field: SourceField<'_>) {
        let place = field.place();
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
                &map.place(),
            );
        }
        self.given.leave(fields);
    }

    /// Converts the top-level section.
    pub(super) fn prompt_cache(&mut self, top: &mut UnreadFields<'_>) {
        let Some(mut cache) = self.section(top, "prompt_cache") else {
            return;
        };
        let place = cache.place("backend", None);
        if self.is_in_redis(&mut cache) {
            self.set(
                "routing.lmcache.prompt_cache.backend",
                "redis".to_owned(),
                &place,
            );
            self.prompt_store(&mut cache, &place);
        }
        self.keys(CACHE, &mut cache);
        self.given.leave(cache);
    }
}
