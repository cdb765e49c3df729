//! What is written behind the requests' backs.
//!
//! **Invariant**: what waits is bounded in number and in bytes, and a clear has nothing under way beside it: what was begun
//! before it is not written after it.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use supervision::Task;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    CacheKey, StoreFault,
    counters::CacheCounters,
    generation::Generations,
    store::{Store, StoreFill},
};

/// Entries that wait. When it is full, or their bytes are too many, further ones are let go and counted.
const QUEUE: usize = 1_024;
/// Bytes of the entries that wait or are being written.
const QUEUE_BYTES: usize = 64 << 20;
/// How long the end of the process waits for what is still to be written.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a clear may take.
const LONGEST_CLEAR: Duration = Duration::from_secs(60);

/// The way to the one task that writes.
#[derive(Debug)]
pub(crate) struct StoreWriter {
    lane: FillSender,
    /// Taken by the first [`Self::stop`].
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The way for entries alone.
#[derive(Clone, Debug)]
pub(crate) struct FillSender {
    queue: mpsc::Sender<WriteJob>,
    bytes: Arc<AtomicUsize>,
    tally: Arc<CacheCounters>,
}

#[derive(Debug)]
enum WriteJob {
    /// To where everything is written.
    Keep(StoreFill, WritePermit),
    /// To the first tier alone.
    Promote(StoreFill, WritePermit),
    Remove(CacheKey),
    Clear(oneshot::Sender<Result<u64, StoreFault>>),
    End,
}

/// Bytes that an entry has of the queue, until it is written or let go.
#[derive(Debug)]
struct WritePermit {
    bytes: usize,
    of: Arc<AtomicUsize>,
    /// Whoever brought it sees it dropped then.
    _held: Option<WriteGuard>,
}

/// Something that is dropped when an entry was written, or let go.
pub(crate) type WriteGuard = Box<dyn Any + Send + Sync>;

impl Drop for WritePermit {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What is written to.
#[derive(Debug)]
pub(crate) struct WriterTarget {
    pub(crate) store: Arc<dyn Store>,
    /// Where copies go, if not into memory at once.
    pub(crate) l1: Option<Arc<dyn Store>>,
    /// Entries at a time.
    pub(crate) at_once: usize,
    pub(crate) generations: Arc<Generations>,
}

/// The queue before there is a task behind it: the store to be written to may need the way to it.
#[derive(Debug)]
pub(crate) struct WriterQueue {
    pub(crate) lane: FillSender,
    jobs: mpsc::Receiver<WriteJob>,
}

impl WriterQueue {
    pub(crate) fn new(tally: Arc<CacheCounters>) -> Self {
        let (queue, jobs) = mpsc::channel(QUEUE);
        Self {
            lane: FillSender {
                queue,
                bytes: Arc::default(),
                tally,
            },
            jobs,
        }
    }

    /// Call inside a tokio runtime.
    pub(crate) fn start(self, written: WriterTarget) -> StoreWriter {
        let tally = Arc::clone(&self.lane.tally);
        let task = tokio::spawn(run(written, self.jobs, tally));
        StoreWriter {
            lane: self.lane,
            task: Mutex::new(Some(task)),
        }
    }
}

impl FillSender {
    /// Never waits.
    pub(crate) fn keep(&self, fill: StoreFill, held: Option<WriteGuard>) {
        self.enqueue(fill, held, WriteJob::Keep);
    }

    /// The same for the first tier alone.
    pub(crate) fn promote(&self, fill: StoreFill) {
        self.enqueue(fill, None, WriteJob::Promote);
    }

    fn enqueue(
        &self,
        fill: StoreFill,
        held: Option<WriteGuard>,
        job: impl FnOnce(StoreFill, WritePermit) -> WriteJob,
    ) {
        let bytes = fill.entry.cost();
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let room = WritePermit {
            bytes,
            of: Arc::clone(&self.bytes),
            _held: held,
        };
        if before + bytes > QUEUE_BYTES || self.queue.try_send(job(fill, room)).is_err() {
            self.tally.writes_dropped.one();
        }
    }
}

impl StoreWriter {
    pub(crate) fn keep(&self, fill: StoreFill, held: Option<WriteGuard>) {
        self.lane.keep(fill, held);
    }

    /// After everything that waits or is being written.
    pub(crate) fn remove(&self, key: CacheKey) {
        if self.lane.queue.try_send(WriteJob::Remove(key)).is_err() {
            self.lane.tally.writes_dropped.one();
        }
    }

    /// After everything that is being written. The caller has raised the generation.
    pub(crate) async fn clear(&self) -> Result<u64, StoreFault> {
        let over = || StoreFault {
            store: "cache",
            outage: true,
            reason: "it is being stopped".to_owned(),
        };
        let (told, tells) = oneshot::channel();
        self.lane
            .queue
            .send(WriteJob::Clear(told))
            .await
            .map_err(|_| over())?;
        tells.await.unwrap_or_else(|_| Err(over()))
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

/// Jobs that wait outlive a panic. Those that are under way are lost: entries are let go and counted, a clear fails for
/// whoever asked for it.
async fn run(written: WriterTarget, mut jobs: mpsc::Receiver<WriteJob>, tally: Arc<CacheCounters>) {
    let mut task = Task::new("response_cache_writer");
    while task
        .attempt(write_all(&written, &mut jobs, &tally))
        .await
        .is_none()
    {
        tally.writes_dropped.one();
    }
}

async fn write_all(
    written: &WriterTarget,
    jobs: &mut mpsc::Receiver<WriteJob>,
    tally: &CacheCounters,
) {
    let mut writing = FuturesUnordered::new();
    loop {
        let job = tokio::select! {
            Some(()) = writing.next() => continue,
            job = jobs.recv(), if writing.len() < written.at_once => job,
        };
        match job {
            Some(WriteJob::Keep(fill, room)) => {
                writing.push(write(written, &written.store, fill, room, tally))
            }
            Some(WriteJob::Promote(fill, room)) => {
                let store = written.l1.as_ref().unwrap_or(&written.store);
                writing.push(write(written, store, fill, room, tally));
            }
            Some(WriteJob::Remove(key)) => {
                while writing.next().await.is_some() {}
                let original = written.store.delete(key).await;
                written.generations.removed();
                // What was copied from it in between goes too.
                if original.and(written.store.delete(key).await).is_err() {
                    tally.writes_dropped.one();
                }
            }
            Some(WriteJob::Clear(told)) => {
                while writing.next().await.is_some() {}
                // Whoever asked may have gone.
                let _ = told.send(clear(&*written.store).await);
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
    fill: StoreFill,
    _room: WritePermit,
    tally: &CacheCounters,
) {
    if !written.generations.is_present(fill.generation) {
        return;
    }
    if store.set(fill).await.is_err() {
        tally.writes_dropped.one();
    }
}

async fn clear(store: &dyn Store) -> Result<u64, StoreFault> {
    timeout(LONGEST_CLEAR, store.clear())
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
