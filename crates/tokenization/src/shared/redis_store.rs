//! Token ids in Redis: a bounded lookup while the request waits, a write in the background.
//!
//! **Invariant**: nothing that Redis does makes a request fail, or wait longer than
//! [`LOOKUP_BUDGET`]; at most [`LOOKUPS`] requests wait at a time, and none for a while after Redis
//! was away or slow.

use std::{sync::Arc, time::Duration};

use net::Clock;
use parking_lot::Mutex;
use redis_store::{FaultKind, RedisFault, RedisPool, RedisValues};
use resilience::{Backoff, ByteBudget, BytePermit, CircuitBreaker};
use supervision::Task;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use super::{
    SharedTokensError, SharedTokensHit, TokenScope,
    name::name,
    value::{self, MOST_BYTES, MOST_IDS},
};
use crate::token_cache::QueryDigest;

/// Prefix of every key.
const KEY_PREFIX: &str = "cr:tok:";
/// Longest wait of a request.
pub(crate) const LOOKUP_BUDGET: Duration = Duration::from_millis(50);
/// Most lookups at a time; further requests skip the lookup.
const LOOKUPS: usize = 2;
/// Pause of all lookups after a late or missing answer.
const REST: Duration = Duration::from_secs(1);
/// Answers that wait to be written; further ones are dropped.
const QUEUE: usize = 256;
/// Bytes of answers that wait or are being written; further ones are dropped.
const QUEUE_BYTES: usize = 8 << 20;

/// The store of token ids that routers share.
#[derive(Debug)]
pub struct RedisTokenStore {
    inner: Arc<RedisTokenStoreInner>,
    permits: Arc<Semaphore>,
    /// At most as many tasks as there are permits; they end with this value.
    lookups: Mutex<JoinSet<()>>,
    queue: mpsc::Sender<PendingWrite>,
    queue_bytes: ByteBudget,
    /// Ends with this value: an answer that is not written by then is lost.
    writer: JoinHandle<()>,
}

#[derive(Debug)]
struct RedisTokenStoreInner {
    values: RedisValues,
    clock: Clock,
    breaker: Mutex<CircuitBreaker>,
}

/// An answer that waits to be written.
#[derive(Debug)]
struct PendingWrite {
    name: String,
    ids: Arc<[u32]>,
    ttl: Duration,
    /// Its share of the queue's bytes.
    _permit: BytePermit,
}

impl RedisTokenStore {
    /// Starts the writer task. Call inside a tokio runtime.
    ///
    /// # Errors There is no pool.
    pub fn start(pool: Option<Arc<RedisPool>>, clock: Clock) -> Result<Self, SharedTokensError> {
        let pool = pool.ok_or(SharedTokensError::NoServer)?;
        let values = RedisValues::new(pool, KEY_PREFIX.to_owned());
        let inner = Arc::new(RedisTokenStoreInner {
            values,
            clock,
            breaker: Mutex::new(CircuitBreaker::new(1, Backoff::new(REST, REST))),
        });
        // Bounded: an answer that finds it full is dropped.
        let (queue, jobs) = mpsc::channel(QUEUE);
        Ok(Self {
            writer: runtime::spawn(start_writing(Arc::clone(&inner), jobs)),
            inner,
            permits: Arc::new(Semaphore::new(LOOKUPS)),
            lookups: Mutex::default(),
            queue,
            queue_bytes: ByteBudget::new(QUEUE_BYTES),
        })
    }

    /// Returns the ids, if they are stored and Redis answers in time.
    pub(crate) async fn find(
        &self,
        digest: &QueryDigest,
        scope: TokenScope<'_>,
    ) -> Option<SharedTokensHit> {
        if !self.inner.is_available() {
            return None;
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let (result_sender, result) = oneshot::channel();
        // A task of its own: dropping the wait for an answer would lose the connection.
        self.start_lookup(Arc::clone(&self.inner).look_up(
            name(digest, scope),
            permit,
            result_sender,
        ));
        timeout(LOOKUP_BUDGET, result).await.ok()?.ok()?
    }

    /// Queues the ids for writing. Never waits.
    pub(crate) fn store(
        &self,
        digest: &QueryDigest,
        scope: TokenScope<'_>,
        ids: &Arc<[u32]>,
        ttl: Duration,
    ) {
        if ids.len() > MOST_IDS || !self.inner.values.pool().is_up() {
            return;
        }
        let Some(permit) = self.queue_bytes.try_take(value::length(ids.len())) else {
            return;
        };
        let job = PendingWrite {
            name: name(digest, scope),
            ids: Arc::clone(ids),
            ttl,
            _permit: permit,
        };
        if self.queue.try_send(job).is_err() {
            tracing::debug!("token ids were not written to redis: too many wait for it");
        }
    }

    fn start_lookup(&self, lookup: impl Future<Output = ()> + Send + 'static) {
        let mut lookups = self.lookups.lock();
        // Reap finished lookups.
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
    fn is_available(&self) -> bool {
        self.values.pool().is_up() && !self.breaker.lock().is_open(self.clock.now())
    }

    fn rest(&self) {
        self.breaker.lock().record_failure(self.clock.now());
    }

    async fn look_up(
        self: Arc<Self>,
        name: String,
        _permit: OwnedSemaphorePermit,
        result_sender: oneshot::Sender<Option<SharedTokensHit>>,
    ) {
        let mut lookup = Box::pin(self.values.get(&name, MOST_BYTES));
        let answer = match timeout(LOOKUP_BUDGET, &mut lookup).await {
            Ok(answer) => answer,
            Err(_) => {
                self.rest();
                lookup.await
            }
        };
        let found = match answer {
            Ok(None) => return,
            Ok(Some(value)) if !value.left.is_zero() => {
                value::decode(&name, &value.bytes).map(|ids| SharedTokensHit {
                    ids,
                    // Redis counted before its answer travelled: a copy here must not outlive its
                    // value there.
                    left: value.left.saturating_sub(LOOKUP_BUDGET),
                })
            }
            // Every value that this router writes expires.
            Ok(Some(_)) => None,
            Err(fault) if is_about_the_value(&fault) => None,
            Err(_) => return self.rest(),
        };
        let is_ours = found.is_some();
        // The request may have been cancelled.
        let _ = result_sender.send(found);
        if !is_ours {
            // If the removal fails, the next lookup finds it unusable again.
            let _ = self.values.delete(&name).await;
        }
    }
}

/// Returns whether the fault is an answer of Redis about the value.
fn is_about_the_value(fault: &RedisFault) -> bool {
    !fault.outage && fault.kind == FaultKind::Other
}

/// Queued ids outlive a panic, which costs only those that are just being written.
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
            // The pool has counted the fault; the next request queries an engine.
            let _ = inner.values.set(&job.name, &bytes, job.ttl).await;
        }
    }
}
