//! The one task that writes to Redis.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use net::Clock;
use parking_lot::Mutex;
use prefix_view::MemoryPrefixIndex;
use redis::{Pipeline, Value};
use supervision::Task;
use tokio::{sync::mpsc, task::yield_now};

use super::{
    ops::{KeyWriter, WriteOp},
    sweep::{SweepScope, sweep},
};
use crate::{Operation, RedisFault, pool::PoolShared, state::Epoch};

/// Operations written in one transaction, of at most four commands each.
const BATCH: usize = 256;

/// Backends whose operations were dropped since the last reconciliation; only backends with event
/// streams, so there are few.
#[derive(Debug, Default)]
pub(super) struct LostWrites(Mutex<HashSet<Arc<str>>>);

impl LostWrites {
    pub(super) fn note(&self, backend: &Arc<str>) {
        let mut backends = self.0.lock();
        if !backends.contains(backend) {
            backends.insert(Arc::clone(backend));
        }
    }

    fn take(&self) -> HashSet<Arc<str>> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Takes operations off the queue in order. While the server is down it waits with the operations
/// that it has.
#[derive(Debug)]
pub(super) struct ViewWriter {
    pub(super) shared: Arc<PoolShared>,
    pub(super) local: Arc<MemoryPrefixIndex>,
    pub(super) key_writer: KeyWriter,
    pub(super) lost: Arc<LostWrites>,
    pub(super) dropped: Arc<AtomicU64>,
    pub(super) clock: Clock,
}

impl ViewWriter {
    /// Writes until [`WriteOp::End`]. After a panic it brings Redis to the content of memory, which
    /// makes up for operations that were taken and not written.
    pub(super) async fn run(self, mut queue: mpsc::Receiver<WriteOp>) {
        let mut task = Task::new("prefix_writer");
        while task
            .attempt(Box::pin(self.write_all(&mut queue)))
            .await
            .is_none()
        {}
    }

    async fn write_all(&self, queue: &mut mpsc::Receiver<WriteOp>) {
        // The epoch of the server in which it last had the whole content of memory.
        let mut whole = None;
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let epoch = self.present().await;
            if whole != Some(epoch) {
                whole = self.refill().await.then_some(epoch);
                continue;
            }
            tokio::select! {
                // So that a server that comes back is filled even without a new event.
                () = self.shared.state.wait_until(false) => continue,
                count = queue.recv_many(&mut batch, BATCH) => if count == 0 { return },
            }
            for run in batch.chunk_by(|one, other| is_pair(one) && is_pair(other)) {
                match run {
                    [WriteOp::End] => return,
                    [WriteOp::Forget(backend)] => {
                        self.sweep(&SweepScope::Backend(Arc::clone(backend))).await
                    }
                    [WriteOp::Clear] => self.sweep(&SweepScope::Everything).await,
                    pairs => self.write(pairs).await,
                }
            }
            batch.clear();
            if queue.is_empty() && self.reconcile().await {
                whole = None;
            }
        }
    }

    /// Waits until the server is up.
    async fn present(&self) -> Epoch {
        loop {
            self.shared.state.wait_until(true).await;
            if let Some(epoch) = self.shared.state.up() {
                return epoch;
            }
        }
    }

    /// Writes pairs in one transaction, and retries while the server is down: the commands are
    /// idempotent.
    async fn write(&self, pairs: &[WriteOp]) {
        let mut pipeline = transaction();
        let mut removes_only = true;
        for op in pairs {
            if let WriteOp::Pair {
                prefix,
                backend,
                change,
            } = op
            {
                removes_only &= *change == super::ops::HoldingChange::Drop;
                self.key_writer
                    .write_pair(&mut pipeline, prefix, backend, *change);
            }
        }
        let operation = if removes_only {
            Operation::Delete
        } else {
            Operation::Set
        };
        while let Err(fault) = self.execute(operation, &pipeline).await {
            if !fault.outage {
                self.dropped
                    .fetch_add(pairs.len() as u64, Ordering::Relaxed);
                return;
            }
            self.present().await;
        }
    }

    async fn sweep(&self, what: &SweepScope) {
        while let Err(fault) = sweep(&self.shared, what).await {
            if !fault.outage {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
            self.present().await;
        }
    }

    /// Removes from Redis the entries of backends with dropped operations, which may include
    /// removals. Returns whether there were any; if so, the caller writes the content of memory.
    async fn reconcile(&self) -> bool {
        let backends = self.lost.take();
        if backends.is_empty() {
            return false;
        }
        tracing::warn!(
            server = self.shared.server,
            "events came faster than redis took them: bringing it up to date"
        );
        for backend in backends {
            self.sweep(&SweepScope::Backend(backend)).await;
        }
        true
    }

    /// Writes the content of memory; returns `false` if the server went down meanwhile.
    async fn refill(&self) -> bool {
        for part in 0..self.local.parts() {
            for some in self
                .local
                .live_entries(part, self.clock.now())
                .chunks(BATCH)
            {
                let mut pipeline = transaction();
                some.iter()
                    .for_each(|entry| self.key_writer.write_entry(&mut pipeline, entry));
                match self.execute(Operation::Set, &pipeline).await {
                    Err(fault) if fault.outage => return false,
                    _ => {}
                }
            }
            // A view may have thousands of empty parts.
            yield_now().await;
        }
        true
    }

    async fn execute(&self, operation: Operation, pipeline: &Pipeline) -> Result<(), RedisFault> {
        let answers = self.shared.send(operation, pipeline).await?;
        for answer in &answers {
            // The other commands of the transaction were executed.
            if let Value::ServerError(error) = answer {
                self.shared
                    .refused(&RedisFault::from(&error.clone().into()));
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

fn is_pair(op: &WriteOp) -> bool {
    matches!(op, WriteOp::Pair { .. })
}

/// Creates an atomic transaction with one answer per command.
fn transaction() -> Pipeline {
    let mut pipeline = Pipeline::new();
    pipeline.atomic().ignore_errors();
    pipeline
}
