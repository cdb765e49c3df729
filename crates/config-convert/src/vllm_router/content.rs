//! Converts that router's routing by the meaning and by the beginning of prompts.

use settings::{Value, ValueKind, kinds::int};

use super::{
    Conversion, KeyMapping,
    caches::BACKEND,
    keys::{MILLISECONDS, SECONDS, SHARE, key},
    urls::any_url,
};
use crate::{
    converted_config::{host, quoted},
    source_config::{SourceField, UnreadFields},
};

const CLUSTERS: &[KeyMapping] = &[
    key("threshold", "routing.semantic_clusters.threshold", SHARE),
    key(
        "embedding_timeout_ms",
        "routing.semantic_clusters.timeout",
        MILLISECONDS,
    )
    .unit("ms"),
    key(
        "embeddings_model",
        "routing.semantic_clusters.embedding_model",
        ValueKind::Text,
    )
    .or("default"),
];

const PREFIXES: &[KeyMapping] = &[
    key(
        "prefix_chars",
        "routing.shared_prefix_routing.prefix_chars",
        int(1, 65_536),
    ),
    key("ttl_secs", "routing.shared_prefix_routing.ttl", SECONDS).unit("s"),
    key(
        "write_probability",
        "routing.shared_prefix_routing.write_probability",
        SHARE,
    ),
];

impl Conversion {
    pub(super) fn content(&mut self, top: &mut UnreadFields<'_>) {
        if let Some(clusters) = self.section(top, "semantic_cluster") {
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

    fn clusters(&mut self, mut clusters: UnreadFields<'_>) {
        let place = clusters.place("clusters", None);
        self.set(
            "routing.semantic_clusters.enabled",
            "true".to_owned(),
            &place,
        );
        self.embedding_server(&mut clusters);
        self.keys(CLUSTERS, &mut clusters);
        if let Some(list) = clusters.take("clusters") {
            self.list("routing.semantic_clusters.clusters", &list, Self::cluster);
        }
        self.given.leave(clusters);
    }

    /// Returns one cluster as YAML on a line.
    fn cluster(&mut self, entry: SourceField<'_>) -> Option<String> {
        let mut fields = self.given.fields(&entry)?;
        let name = self
            .given
            .required(&mut fields, "name", "the cluster's name");
        let name = name.and_then(|name| self.given.value(&name, &ValueKind::Text));
        let examples = fields.take("examples");
        let examples = examples.map_or("[]".to_owned(), |list| self.texts(&list));
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
            "{{name: {}, examples: {examples}, workers: [{}]}}",
            quoted(&name),
            workers.join(", ")
        ))
    }
}
