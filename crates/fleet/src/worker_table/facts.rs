//! What workers say about themselves.

use std::sync::Arc;

use kv_blocks::{BlockSize, Moment, Target, WorkerId};

use super::{WorkerTable, find};
use crate::{
    probe::Scrape, streams::FollowedStream, worker_identity::WorkerIdentity,
    worker_record::WorkerRecord,
};

impl WorkerTable {
    /// Records a worker's identity, and which model its targets cache. `configured`: the configured
    /// block size.
    pub(crate) fn record_identity(
        &self,
        id: WorkerId,
        found: &mut WorkerIdentity,
        configured: Option<BlockSize>,
    ) {
        self.change(id, |entry| {
            entry.identify(found, configured);
            for target in entry.view.targets() {
                self.index.register(target, Arc::clone(&found.base));
                if entry.view.cache.block_size_known {
                    let size = entry.view.cache.block_size;
                    self.index.expect_block_size(target, size);
                }
                if entry.distrusted.contains(&target.rank) {
                    self.index.trust(target, false);
                }
            }
        });
    }

    /// Takes the block size from a worker's own events. Returns it if it is new.
    pub(crate) fn learn_block_size(&self, id: WorkerId) -> Option<BlockSize> {
        let size_update = self.with(id, |entry| {
            let (view, announced) = (&entry.view, entry.announced_block_size()?);
            (!view.cache.block_size_known || view.cache.block_size != announced)
                .then_some(announced)
        });
        let size = size_update.flatten()?;
        self.change(id, |entry| {
            let view = Arc::make_mut(&mut entry.view);
            view.cache.block_size = size;
            view.cache.block_size_known = true;
        });
        Some(size)
    }

    /// Records an engine's metrics, read `at`.
    pub(crate) fn record_scrape(&self, id: WorkerId, at: Moment, scrape: &Scrape) {
        let mut entries = self.entries.lock();
        let Some(entry) = find(&mut entries, id) else {
            return;
        };
        // Not part of the snapshot: it grows with every request, and no request reads it.
        entry.prefix_cache = scrape.prefix_cache.counters(at);
        if entry.view.load != scrape.load {
            Arc::make_mut(&mut entry.view).load = scrape.load;
            self.refresh_view(entry);
            self.close_replaced_and_publish(&mut entries);
        }
    }

    /// Sets whether a rank's events are trusted. A stream that becomes distrusted is fetched again.
    pub(crate) fn trust(&self, target: Target, trusted: bool) {
        if self.with(target.worker, |_| ()).is_none() {
            return;
        }
        self.index.trust(target, trusted);
        self.change(target.worker, |entry| {
            entry.distrusted.retain(|rank| *rank != target.rank);
            if !trusted {
                entry.distrusted.push(target.rank);
                entry
                    .stream_of(target.rank)
                    .inspect(|stream| stream.source.resync());
            }
        });
    }

    /// Returns whether another worker serves this model with another tokenizer, or one of them has
    /// none.
    pub(crate) fn has_conflicting_tokenizer(&self, id: WorkerId, model: &str) -> Option<Arc<str>> {
        let entries = self.entries.lock();
        let own = Arc::clone(
            entries
                .iter()
                .find(|entry| entry.view.id == id)?
                .artefacts
                .get(model)?,
        );
        let differs = |other: &&WorkerRecord| {
            other
                .artefacts
                .get(model)
                .is_some_and(|other| !own.has_tokenizer_of(other))
        };
        let other = entries.iter().find(differs)?;
        Some(Arc::clone(&other.view.name))
    }

    /// Takes a worker's streams out, so that their owner can stop them.
    pub(crate) fn take_streams(&self, id: WorkerId) -> Vec<FollowedStream> {
        self.change(id, |entry| std::mem::take(&mut entry.streams))
            .unwrap_or_default()
    }
}
