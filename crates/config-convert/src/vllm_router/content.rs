//! Converts that router's routing by the meaning and by the beginning of prompts.

use settings::{MAX_DURATION, Value, ValueKind, word};

use super::{Conversion, KeyMapping, WEIGHT, key, urls::any_url};
use crate::{
    converted_config::{ConvertedWorker, host, quoted},
    source_config::{SourceField, UnreadFields},
};

const CLUSTERS: &[KeyMapping] = &[
    key("threshold", "routing.semantic_clusters.threshold", WEIGHT),
    KeyMapping {
        unit: "ms",
        ..key(
            "embedding_timeout_ms",
            "routing.semantic_clusters.timeout",
            ValueKind::Int {
                min: 1,
                max: MAX_DURATION.as_secs() * 1_000,
            },
        )
    },
    key(
        "embeddings_model",
        "routing.semantic_clusters.embedding_model",
        ValueKind::Text,
    ),
];

const PREFIXES: &[KeyMapping] = &[
    key(
        "prefix_chars",
        "routing.shared_prefix_routing.prefix_chars",
        ValueKind::Int {
            min: 1,
            max: 65_536,
        },
    ),
    KeyMapping {
        unit: "s",
        ..key(
            "ttl_secs",
            "routing.shared_prefix_routing.ttl",
            ValueKind::Int {
                min: 1,
                max: MAX_DURATION.as_secs(),
            },
        )
    },
    key(
        "write_probability",
        "routing.shared_prefix_routing.write_probability",
        WEIGHT,
    ),
];

const BACKEND: ValueKind = ValueKind::Word(&[word("memory"), word("redis")]);

impl Conversion {
    pub(super) fn content(&mut self, top: &mut UnreadFields<'_>) {
        let clusters = top
            .take("semantic_cluster")
            .and_then(|clusters| self.given.fields(&clusters));
        if let Some(clusters) = clusters {
            self.clusters(clusters);
        }
        let prefixes = top.take("shared_prefix_routing");
        let place = top.place("shared_prefix_routing", prefixes.as_ref());
        let prefixes = prefixes.and_then(|prefixes| self.given.fields(&prefixes));
        if let Some(mut prefixes) = prefixes {
            self.set(
                "routing.shared_prefix_routing.enabled",
                "true".to_owned(),
                &place,
            );
            self.keys(PREFIXES, &mut prefixes);
            if let Some(backend) = prefixes.take("backend")
                && self.given.value(&backend, &BACKEND) == Some(Value::Word("redis"))
            {
                // Each router of ours has its own memory.
                self.given.unused(backend);
            }
            self.given.leave(prefixes);
        }
    }

    /// Converts the clusters. The embedding server becomes one more worker, because ours sends
    /// embedding requests to workers.
    fn clusters(&mut self, mut clusters: UnreadFields<'_>) {
        let place = clusters.place("clusters", None);
        self.set(
            "routing.semantic_clusters.enabled",
            "true".to_owned(),
            &place,
        );
        if let Some(url) = clusters.take("embeddings_url")
            && let Some(url) = self.given.url(&url, any_url)
            && self.ours.workers.iter().all(|worker| worker.url != url)
        {
            self.ours.workers.push(ConvertedWorker {
                url,
                word: None,
                bootstrap_port: None,
            });
        }
        self.keys(CLUSTERS, &mut clusters);
        if let Some(list) = clusters.take("clusters") {
            let place = (list.path.clone(), list.value.origin.clone());
            let entries: Vec<String> = self
                .given
                .items(&list)
                .iter()
                .filter_map(|entry| self.cluster(entry))
                .collect();
            self.set(
                "routing.semantic_clusters.clusters",
                format!("[{}]", entries.join(", ")),
                &place,
            );
        }
        self.given.leave(clusters);
    }

    /// Returns one cluster as YAML on a line.
    fn cluster(&mut self, entry: &SourceField<'_>) -> Option<String> {
        let mut fields = self.given.fields(entry)?;
        let name = self
            .given
            .required(&mut fields, "name", "the cluster's name");
        let name = name.and_then(|name| self.given.value(&name, &ValueKind::Text));
        let mut texts = Vec::new();
        for example in fields
            .take("examples")
            .map(|list| self.given.items(&list))
            .unwrap_or_default()
        {
            if let Some(Value::Text(text)) = self.given.value(&example, &ValueKind::Text) {
                texts.push(quoted(&text));
            }
        }
        let mut workers = Vec::new();
        for worker in fields
            .take("workers")
            .map(|list| self.given.items(&list))
            .unwrap_or_default()
        {
            if let Some(url) = self.given.url(&worker, any_url) {
                // Our workers have names; an unnamed worker is named after its host.
                workers.push(quoted(&host(&url)));
            }
        }
        self.given.leave(fields);
        let Some(Value::Text(name)) = name else {
            return None;
        };
        Some(format!(
            "{{name: {}, examples: [{}], workers: [{}]}}",
            quoted(&name),
            texts.join(", "),
            workers.join(", ")
        ))
    }
}
