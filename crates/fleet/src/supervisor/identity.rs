//! Applies a worker's identity: view, tokenizers, streams.

use std::sync::Arc;

use config::EngineKind;
use tracing::warn;

use super::{Supervisor, findings::load_figures};
use crate::{
    ServedModel,
    probe::EngineMetrics,
    worker_identity::WorkerIdentity,
    worker_machine::{IdentityReport, IdentitySource, WorkerEvent},
};

impl Supervisor {
    /// Applies the worker's identity.
    pub(super) async fn apply_identity(
        &mut self,
        mut found: WorkerIdentity,
        source: IdentitySource,
    ) {
        if self.is_other_release(&found) {
            self.feed(WorkerEvent::EngineChanged).await;
        }
        self.forget_other_engine(&found).await;
        let (id, config) = (self.id(), &self.checker.config);
        self.worker_table
            .record_identity(id, &mut found, config.block_size);
        if let Some(other) = self.worker_table.has_conflicting_tokenizer(id, &found.base) {
            warn!(worker = %config.name, %other, model = %found.base, "two workers serve one model with different tokenizers, or one of them without: none is used");
        }
        if let Some((at, scrape)) = &found.scrape {
            self.worker_table.record_scrape(id, *at, scrape);
            self.report_invalid(scrape);
        }
        let report = IdentityReport {
            source,
            complete: found.complete,
            reports_load: matches!(
                found.engine,
                EngineKind::Vllm | EngineKind::Sglang | EngineKind::Trtllm
            ) || found.facts.metrics().is_some_and(EngineMetrics::is_known),
            load: found
                .scrape
                .as_ref()
                .map(|(_, scrape)| load_figures(scrape)),
        };
        self.facts = found.facts;
        self.feed(WorkerEvent::Identified(report)).await;
        let settings = &self.checker.config.streams;
        let coverage = self.streams.run(settings, &found.base, found.streams).await;
        if let Some(coverage) = coverage {
            self.feed(WorkerEvent::StreamsStarted(coverage)).await;
        }
    }

    /// Returns whether another engine or release was known at the address, or other models.
    fn is_other_release(&self, found: &WorkerIdentity) -> bool {
        let is_other = self.worker_table.with(self.id(), |entry| {
            let (engine, served) = (&entry.view.engine, &entry.view.served);
            let ids = |models: &[ServedModel]| -> Vec<Arc<str>> {
                models.iter().map(|model| Arc::clone(&model.id)).collect()
            };
            served.namespace_model.is_some()
                && (engine.kind != found.engine
                    || engine.version.as_ref() != found.facts.version()
                    || ids(&served.models) != ids(&found.list.models))
        });
        is_other.unwrap_or_default()
    }

    /// Stops the streams and forgets the cache of a worker that serves another model now, or has
    /// other ranks. This also forgets which model it serves: it registers another one next.
    async fn forget_other_engine(&mut self, found: &WorkerIdentity) {
        let id = self.id();
        let before = self.worker_table.with(id, |entry| {
            let base = entry.view.served.namespace_model.clone()?;
            Some((base, entry.view.dp_ranks()))
        });
        let Some((old_base, old_ranks)) = before.flatten() else {
            return;
        };
        if old_base != found.base {
            warn!(worker = %self.checker.config.name, was = %old_base, is = %found.base, "serves another model now: its cache is forgotten");
        } else if old_ranks == found.ranks {
            return;
        }
        self.streams.stop().await;
        self.worker_table.forget_model(id);
    }
}
