//! Token ids in Redis: looked up while a request waits, a little, and written behind its back.
//!
//! **Invariant**: nothing that Redis does makes a request fail, or wait longer than [`LOOKUP_BUDGET`]; no more than
//! [`LOOKUPS`] requests wait at a time, and none where Redis was away or slow a moment ago.

use std::{sync::Arc, time::Duration};

use kv_blocks::Moment;
use net::Clock;
use parking_lot::Mutex;
use redis_store::{FaultKind, RedisFault, RedisPool, RedisValues};
use supervision::Task;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use super::{
    super::token_cache::QueryDigest,
    SharedTokensError, SharedTokensHit, TokenScope,
    name::name,
    value::{self, MOST_BYTES, MOST_IDS},
};

/// What every key begins with.
const KEY_PREFIX: &str = "cr:tok:";
/// Longest that a request waits.
pub(super) const LOOKUP_BUDGET: Duration = Duration::from_millis(50);
/// Lookups at a time; whoever comes on top of them does not look.
const LOOKUPS: usize = 2;
/// How long nobody looks after an answer that was late, or did not come.
const REST: Duration = Duration::from_secs(1);
/// Answers that wait to be written; further ones are let go.
const QUEUE: usize = 256;
/// Bytes of those that wait or are being written; what does not fit is let go.
const QUEUE_BYTES: usize = 8 << 20;

/// Token ids that routers share.
#[derive(Debug)]
pub struct RedisTokenStore {
    inner: Arc<RedisTokenStoreInner>,
    permits: Arc<Semaphore>,
    /// As many as there are permits; they end with this.
    lookups: Mutex<JoinSet<()>>,
    queue: mpsc::Sender<PendingWrite>,
    write_permits: Arc<Semaphore>,
    /// Ends with this: what is not written then is asked for again.
    writer: JoinHandle<()>,
}

#[derive(Debug)]
struct RedisTokenStoreInner {
    values: RedisValues,
    clock: Clock,
    rests_until: Mutex<Moment>,
}

/// An answer to be written.
#[derive(Debug)]
struct PendingWrite {
    name: String,
    ids: Arc<[u32]>,
    ttl: Duration,
    /// What it has of the queue's bytes.
    _room: OwnedSemaphorePermit,
}

impl RedisTokenStore {
    /// Starts what writes. Call inside a tokio runtime.
    ///
    /// # Errors
    /// There is no pool.
    pub fn start(pool: Option<Arc<RedisPool>>, clock: Clock) -> Result<Self, SharedTokensError> {
        let pool = pool.ok_or(SharedTokensError::NoServer)?;
        let values = RedisValues::new(pool, KEY_PREFIX.to_owned());
        let inner = Arc::new(RedisTokenStoreInner {
            values,
            clock,
            rests_until: Mutex::default(),
        });
        // Bound: what comes on top is let go.
        let (queue, jobs) = mpsc::channel(QUEUE);
        Ok(Self {
            writer: tokio::spawn(start_writing(Arc::clone(&inner), jobs)),
            inner,
            permits: Arc::new(Semaphore::new(LOOKUPS)),
            lookups: Mutex::default(),
            queue,
            write_permits: Arc::new(Semaphore::new(QUEUE_BYTES)),
        })
    }

    /// The ids, where they are there and can be had at once.
    pub(in super::super) async fn find(
        &self,
        question: &QueryDigest,
        whose: TokenScope<'_>,
    ) -> Option<SharedTokensHit> {
        if !self.inner.may_be_asked() {
            return None;
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let (told, tells) = oneshot::channel();
        // A task of its own: a connection whose answer is not waited for is lost.
        self.start_lookup(Arc::clone(&self.inner).look(name(question, whose), permit, told));
        timeout(LOOKUP_BUDGET, tells).await.ok()?.ok()?
    }

    /// Has the ids written. Never waits.
    pub(in super::super) fn store(
        &self,
        question: &QueryDigest,
        whose: TokenScope<'_>,
        ids: &Arc<[u32]>,
        ttl: Duration,
    ) {
        if ids.len() > MOST_IDS || !self.inner.values.pool().is_up() {
            return;
        }
        let room = u32::try_from(value::length(ids.len())).ok();
        let room = room.and_then(|bytes| {
            Arc::clone(&self.write_permits)
                .try_acquire_many_owned(bytes)
                .ok()
        });
        let Some(room) = room else { return };
        let job = PendingWrite {
            name: name(question, whose),
            ids: Arc::clone(ids),
            ttl,
            _room: room,
        };
        if self.queue.try_send(job).is_err() {
            tracing::debug!("token ids were not written to redis: too many wait for it");
        }
    }

    fn start_lookup(&self, lookup: impl Future<Output = ()> + Send + 'static) {
        let mut lookups = self.lookups.lock();
        // Those that are over.
        while lookups.try_join_next().is_some() {}
        lookups.spawn(lookup);
    }
}

impl Drop for RedisTokenStore {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

impl RedisTokenStoreInner {
    fn may_be_asked(&self) -> bool {
        self.values.pool().is_up() && *self.rests_until.lock() <= self.clock.now()
    }

    fn rest(&self) {
        *self.rests_until.lock() = self.clock.now() + REST;
    }

    async fn look(
        self: Arc<Self>,
        name: String,
        _permit: OwnedSemaphorePermit,
        told: oneshot::Sender<Option<SharedTokensHit>>,
    ) {
        let mut asked = Box::pin(self.values.get(&name, MOST_BYTES));
        let answer = match timeout(LOOKUP_BUDGET, &mut asked).await {
            Ok(answer) => answer,
            Err(_) => {
                self.rest();
                asked.await
            }
        };
        let found = match answer {
            Ok(None) => return,
            Ok(Some(value)) if !value.left.is_zero() => {
                value::decode(&name, &value.bytes).map(|ids| SharedTokensHit {
                    ids,
                    left: value.left,
                })
            }
            // Ours have an end.
            Ok(Some(_)) => None,
            Err(fault) if is_about_the_value(&fault) => None,
            Err(_) => return self.rest(),
        };
        let is_ours = found.is_some();
        // Whoever asked may have gone.
        let _ = told.send(found);
        if !is_ours {
            // Where it cannot be removed it is found unusable again.
            let _ = self.values.delete(&name).await;
        }
    }
}

/// Whether Redis answered, if not with a value of ours.
fn is_about_the_value(fault: &RedisFault) -> bool {
    !fault.outage && fault.kind == FaultKind::Other
}

/// Ids that wait outlive a panic, which costs those that are just being written.
async fn start_writing(inner: Arc<RedisTokenStoreInner>, mut jobs: mpsc::Receiver<PendingWrite>) {
    let mut task = Task::new("token_writer");
    while task
        .attempt(Box::pin(write(&inner, &mut jobs)))
        .await
        .is_none()
    {}
}

async fn write(inner: &RedisTokenStoreInner, jobs: &mut mpsc::Receiver<PendingWrite>) {
    while let Some(job) = jobs.recv().await {
        if let Some(bytes) = value::encode(&job.name, &job.ids) {
            // The pool has counted it; whoever asks next asks an engine.
            let _ = inner.values.set(&job.name, &bytes, job.ttl).await;
        }
    }
}
