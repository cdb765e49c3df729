//! Converts that router's settings of all workers, or by the URL of one: keys and ranks.

use settings::{Value, ValueKind, kinds::int};

use super::Conversion;
use crate::source_config::{SourceField, UnreadFields};

impl Conversion {
    pub(super) fn worker_keys(&mut self, top: &mut UnreadFields<'_>) {
        if let Some(field) = top.take("api_key") {
            let secret = self.secret(&field);
            for worker in &mut self.ours.workers {
                worker.api_key.clone_from(&secret);
            }
        }
        if let Some(keys) = self.section(top, "worker_api_keys") {
            self.own_keys(keys);
        }
        let ranks = top.take("intra_node_data_parallel_size");
        if let Some(Value::Int(ranks)) =
            ranks.and_then(|ranks| self.given.value(&ranks, &int(1, 4_096)))
        {
            for worker in &mut self.ours.workers {
                worker.dp_ranks = Some(ranks);
            }
        }
    }

    /// Converts the keys of single workers, which take precedence.
    fn own_keys(&mut self, mut keys: UnreadFields<'_>) {
        for url in keys.names() {
            let Some(field) = keys.take(&url) else {
                continue;
            };
            let secret = self.secret(&field);
            let base = |url: &str| url.trim_end_matches('/').to_owned();
            let workers = &mut self.ours.workers;
            match workers
                .iter_mut()
                .find(|worker| base(&worker.url) == base(&url))
            {
                Some(worker) => worker.api_key = secret,
                None => self.given.unused(field),
            }
        }
    }

    pub(super) fn secret(&mut self, field: &SourceField<'_>) -> Option<String> {
        match self.given.value(field, &ValueKind::Secret)? {
            Value::Secret(secret) => Some(secret.expose().to_owned()),
            _ => None,
        }
    }
}
