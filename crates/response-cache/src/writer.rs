//! Writes entries outside the request path.
//!
//! **Invariant**: the queue is bounded in number and in bytes, and a clear runs alone: an entry
//! that began before it is not written after it.

use std::{any::Any, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use resilience::{ByteBudget, BytePermit};
use supervision::Task;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    CacheKey, CacheSelection, StoreFault,
    counters::CacheCounters,
    generation::Generations,
    store::{Store, StoreFill},
};

/// Maximum number of queued entries. If the queue is full, or its bytes are, further entries are
/// dropped and counted.
const QUEUE: usize = 1_024;
/// Maximum bytes of the entries that are queued or being written.
const QUEUE_BYTES: usize = 64 << 20;
/// How long the end of the process waits for the queued entries.
const FAREWELL: Duration = Duration::from_secs(1);
/// Timeout of a clear.
const LONGEST_CLEAR: Duration = Duration::from_secs(60);

/// The handle of the writer task.
#[derive(Debug)]
pub(crate) struct StoreWriter {
    lane: FillSender,
    /// Taken by the first [`Self::stop`].
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The sender for entries alone.
#[derive(Clone, Debug)]
pub(crate) struct FillSender {
    queue: mpsc::Sender<WriteJob>,
    queue_bytes: ByteBudget,
    counters: Arc<CacheCounters>,
}

#[derive(Debug)]
enum WriteJob {
    /// Writes to all stores.
    Write(QueuedFill),
    /// Writes to the first tier alone.
    Promote(QueuedFill),
    Remove(CacheKey),
    Clear(CacheSelection, oneshot::Sender<Result<u64, StoreFault>>),
    End,
}

/// An entry in the queue.
#[derive(Debug)]
struct QueuedFill {
    fill: StoreFill,
    /// Its share of the queue's bytes, until it is written or dropped.
    _permit: BytePermit,
    /// The caller's guard, dropped at that time.
    _guard: Option<WriteGuard>,
}

/// A guard that is dropped when an entry was written, or discarded.
pub(crate) type WriteGuard = Box<dyn Any + Send + Sync>;

/// The stores that the writer writes to.
#[derive(Debug)]
pub(crate) struct WriterTarget {
    pub(crate) store: Arc<dyn Store>,
    /// The target of copies, unless they go into memory directly.
    pub(crate) l1: Option<Arc<dyn Store>>,
    /// Concurrent writes.
    pub(crate) at_once: usize,
    pub(crate) generations: Arc<Generations>,
}

/// The queue before its task starts: the store to write to may need the sender.
#[derive(Debug)]
pub(crate) struct WriterQueue {
    pub(crate) lane: FillSender,
    jobs: mpsc::Receiver<WriteJob>,
}

impl WriterQueue {
    pub(crate) fn new(counters: Arc<CacheCounters>) -> Self {
        let (queue, jobs) = mpsc::channel(QUEUE);
        Self {
            lane: FillSender {
                queue,
                queue_bytes: ByteBudget::new(QUEUE_BYTES),
                counters,
            },
            jobs,
        }
    }

    /// Starts the task. Call inside a tokio runtime.
    pub(crate) fn start(self, written: WriterTarget) -> StoreWriter {
        let counters = Arc::clone(&self.lane.counters);
        let task = runtime::spawn(run(written, self.jobs, counters));
        StoreWriter {
            lane: self.lane,
            task: Mutex::new(Some(task)),
        }
    }
}

impl FillSender {
    /// Queues an entry. Never waits.
    pub(crate) fn write(&self, fill: StoreFill, guard: Option<WriteGuard>) {
        self.enqueue(fill, guard, WriteJob::Write);
    }

    /// Queues an entry for the first tier alone. Never waits.
    pub(crate) fn promote(&self, fill: StoreFill) {
        self.enqueue(fill, None, WriteJob::Promote);
    }

    fn enqueue(
        &self,
        fill: StoreFill,
        guard: Option<WriteGuard>,
        job: impl FnOnce(QueuedFill) -> WriteJob,
    ) {
        let permit = self.queue_bytes.try_take(fill.entry.cost());
        let queued = permit.is_some_and(|permit| {
            let fill = QueuedFill {
                fill,
                _permit: permit,
                _guard: guard,
            };
            self.queue.try_send(job(fill)).is_ok()
        });
        if !queued {
            self.counters.writes_dropped.one();
        }
    }
}

impl StoreWriter {
    pub(crate) fn write(&self, fill: StoreFill, guard: Option<WriteGuard>) {
        self.lane.write(fill, guard);
    }

    /// Queues a removal, after everything that is queued or being written.
    pub(crate) fn remove(&self, key: CacheKey) {
        if self.lane.queue.try_send(WriteJob::Remove(key)).is_err() {
            self.lane.counters.writes_dropped.one();
        }
    }

    /// Removes the selected entries, after everything that is being written. The caller has raised the
    /// generation.
    pub(crate) async fn clear(&self, selection: CacheSelection) -> Result<u64, StoreFault> {
        let over = || StoreFault {
            store: "cache",
            outage: true,
            reason: "it is being stopped".to_owned(),
        };
        let (sender, receiver) = oneshot::channel();
        self.lane
            .queue
            .send(WriteJob::Clear(selection, sender))
            .await
            .map_err(|_| over())?;
        receiver.await.unwrap_or_else(|_| Err(over()))
    }

    pub(crate) async fn stop(&self) {
        let Some(task) = self.task.lock().take() else {
            return;
        };
        let abort = task.abort_handle();
        let ending = async {
            let _ = self.lane.queue.send(WriteJob::End).await;
            let _ = task.await;
        };
        if timeout(FAREWELL, ending).await.is_err() {
            abort.abort();
        }
    }
}

impl Drop for StoreWriter {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

/// Runs the jobs. Queued jobs survive a panic. Running ones are lost: entries are dropped and
/// counted, a clear fails for its caller.
async fn run(
    written: WriterTarget,
    mut jobs: mpsc::Receiver<WriteJob>,
    counters: Arc<CacheCounters>,
) {
    let mut task = Task::new("response_cache_writer");
    while task
        .attempt(write_all(&written, &mut jobs, &counters))
        .await
        .is_none()
    {
        counters.writes_dropped.one();
    }
}

async fn write_all(
    written: &WriterTarget,
    jobs: &mut mpsc::Receiver<WriteJob>,
    counters: &CacheCounters,
) {
    let mut writing = FuturesUnordered::new();
    loop {
        let job = tokio::select! {
            Some(()) = writing.next() => continue,
            job = jobs.recv(), if writing.len() < written.at_once => job,
        };
        match job {
            Some(WriteJob::Write(queued)) => {
                writing.push(write(written, &written.store, queued, counters))
            }
            Some(WriteJob::Promote(queued)) => {
                let store = written.l1.as_ref().unwrap_or(&written.store);
                writing.push(write(written, store, queued, counters));
            }
            Some(WriteJob::Remove(key)) => {
                while writing.next().await.is_some() {}
                let original = written.store.delete(key).await;
                written.generations.removed();
                // Copies made from it in between are removed too.
                if original.and(written.store.delete(key).await).is_err() {
                    counters.writes_dropped.one();
                }
            }
            Some(WriteJob::Clear(selection, sender)) => {
                while writing.next().await.is_some() {}
                // The caller may have left.
                let _ = sender.send(clear(&*written.store, selection).await);
            }
            Some(WriteJob::End) | None => {
                while writing.next().await.is_some() {}
                return;
            }
        }
    }
}

async fn write(
    written: &WriterTarget,
    store: &Arc<dyn Store>,
    queued: QueuedFill,
    counters: &CacheCounters,
) {
    let QueuedFill {
        fill,
        _permit,
        _guard,
    } = queued;
    if !written.generations.is_present(fill.generation) {
        return;
    }
    if store.set(fill).await.is_err() {
        counters.writes_dropped.one();
    }
}

async fn clear(store: &dyn Store, selection: CacheSelection) -> Result<u64, StoreFault> {
    timeout(LONGEST_CLEAR, store.clear(selection))
        .await
        .unwrap_or_else(|_| {
            let reason =
                format!("not everything was removed within {LONGEST_CLEAR:?}: clear again");
            Err(StoreFault {
                store: "cache",
                outage: false,
                reason,
            })
        })
}
