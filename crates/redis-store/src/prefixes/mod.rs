//! The prefix view in Redis, shared by routers.
//!
//! Events that this process receives go into its own memory at once and, through a bounded queue,
//! to Redis ([`writer`]). The holders of a prefix are read from Redis ([`lookups`]), and from that
//! memory when Redis is down or slow. After an outage the content of memory is written again, since
//! Redis may have come back empty.
//!
//! One prefix is a sorted set of backends by tokens; its key is [`KEY_PREFIX`] and the prefix in
//! hex. If backends have a second tier, a hash beside it has the tier of each backend ([`keys`]).

mod keys;
mod lookups;
mod ops;
mod reply;
mod sweep;
mod writer;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kv_blocks::Moment;
use net::Clock;
use parking_lot::Mutex;
use prefix_view::{
    ClearedCounts, Holder, MemoryPrefixIndex, PrefixEvent, PrefixHash, PrefixIndex, RecordOutcome,
    Unavailable, ViewSettings, ViewStats,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::counter::ConstCounter,
    registry::Registry,
};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

pub use self::{keys::KEY_PREFIX, lookups::LOOKUP_BUDGET};

use self::{
    lookups::Lookups,
    ops::{KeyWriter, WriteOp},
    writer::{LostWrites, ViewWriter},
};
use crate::{FallbackRegistration, FaultKind, RedisPool};

/// Maximum number of queued write operations, some 100 bytes each. When the queue is full, further
/// ones are dropped and counted; once there is room, Redis is brought to the content of memory.
const QUEUE: usize = 65_536;
/// Maximum time that the end of the process waits for queued writes.
const FAREWELL: Duration = Duration::from_secs(1);

/// Parts of a shared view.
#[derive(Debug)]
pub struct SharedView {
    /// The server; other stores may use it too.
    pub pool: Arc<RedisPool>,
    /// Settings of the view in memory; `max_entries` bounds that view alone.
    pub settings: ViewSettings,
    /// Names of the backends that count; entries of any other name in Redis are ignored.
    pub backends: Vec<Arc<str>>,
    /// Connections that the view may use at a time.
    pub permits: usize,
    /// The process's clock.
    pub clock: Clock,
}

/// The view that routers share.
///
/// As a [`PrefixIndex`] it records events and answers from the events that this process received.
/// [`Self::holders`] answers from the events of all routers.
pub struct RedisPrefixIndex {
    local: Arc<MemoryPrefixIndex>,
    lookups: Lookups,
    key_writer: KeyWriter,
    queue: mpsc::Sender<WriteOp>,
    lost: Arc<LostWrites>,
    dropped: Arc<AtomicU64>,
    clock: Clock,
    pool: Arc<RedisPool>,
    _fallback: FallbackRegistration,
    /// Taken by the first [`Self::stop`].
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl RedisPrefixIndex {
    /// Starts the writer, which writes as soon as the server is up. Call inside a tokio runtime.
    pub fn start(parts: SharedView) -> Self {
        let SharedView {
            pool,
            settings,
            backends,
            permits,
            clock,
        } = parts;
        let key_writer = KeyWriter::new(&settings);
        let local = Arc::new(MemoryPrefixIndex::new(settings));
        let (queue, waiting) = mpsc::channel(QUEUE);
        let lost = Arc::new(LostWrites::default());
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = ViewWriter {
            shared: Arc::clone(&pool.shared),
            local: Arc::clone(&local),
            key_writer,
            lost: Arc::clone(&lost),
            dropped: Arc::clone(&dropped),
            clock,
        };
        // One connection belongs to the writer.
        let lookups = Lookups::new(
            Arc::clone(&pool.shared),
            backends,
            key_writer,
            permits.saturating_sub(1),
            clock,
        );
        let writer = Mutex::new(Some(runtime::spawn(writer.run(waiting))));
        let fallback = pool.register_fallback();
        Self {
            local,
            lookups,
            key_writer,
            queue,
            lost,
            dropped,
            clock,
            pool,
            _fallback: fallback,
            writer,
        }
    }

    /// Returns the holders of `prefix`, best first, as of at most 100 ms ago: from the events of
    /// all routers, or from those of this process if Redis is down or does not answer within
    /// [`LOOKUP_BUDGET`]. Concurrent requests share one query.
    pub async fn holders(&self, prefix: &PrefixHash) -> Arc<[Holder]> {
        match self.lookups.holders(prefix).await {
            Some(holders) => holders,
            None => self
                .lookups
                .prepared()
                .prepare(self.local.as_ref(), prefix, self.clock.now()),
        }
    }

    /// Returns the holders of `prefix` if an answer of at most 100 ms ago is cached; sends no
    /// query.
    pub fn cached_holders(&self, prefix: &PrefixHash) -> Option<Arc<[Holder]>> {
        self.lookups.prepared().cached(prefix, self.clock.now())
    }

    /// Returns whether Redis is up, as far as is known.
    pub fn is_shared(&self) -> bool {
        self.pool.is_up()
    }

    /// Returns the number of faults of a kind, since the start.
    pub fn faults(&self, kind: FaultKind) -> u64 {
        self.pool.faults(kind)
    }

    /// Returns the number of unwritten operations since the start: the queue was full, or the
    /// server refused them.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Registers the metric families of the view; the pool registers those of its connections.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(DropCounter(Arc::clone(&self.dropped))));
    }

    /// Writes the queued operations if the server is fast enough, and ends. A second call returns
    /// at once.
    pub async fn stop(&self) {
        let Some(writer) = self.writer.lock().take() else {
            return;
        };
        let abort = writer.abort_handle();
        let ending = async {
            let _ = self.queue.send(WriteOp::End).await;
            let _ = writer.await;
        };
        if !self.pool.is_up() || timeout(FAREWELL, ending).await.is_err() {
            abort.abort();
        }
    }

    /// Enqueues an operation without waiting. The writer makes up later for one that does not fit.
    fn enqueue(&self, backend: &Arc<str>, op: WriteOp) {
        if self.queue.try_send(op).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.lost.note(backend);
        }
    }
}

impl PrefixIndex for RedisPrefixIndex {
    fn record(
        &self,
        backend: &Arc<str>,
        event: &PrefixEvent,
        now: Moment,
    ) -> Result<RecordOutcome, Unavailable> {
        let recorded = self.local.record(backend, event, now)?;
        // Also for an event without effect here: Redis may have an entry from before this process
        // started.
        self.enqueue(backend, self.key_writer.op(backend, event));
        Ok(recorded)
    }

    fn query(&self, prefix: &PrefixHash, now: Moment) -> Result<Vec<Holder>, Unavailable> {
        self.local.query(prefix, now)
    }

    fn remove_backend(&self, backend: &str) -> Result<u64, Unavailable> {
        let removed = self.local.remove_backend(backend)?;
        let backend = Arc::from(backend);
        self.enqueue(&backend, WriteOp::Forget(Arc::clone(&backend)));
        Ok(removed)
    }

    /// Returns the counts of this process's memory; Redis is cleared soon afterwards.
    fn clear(&self) -> Result<ClearedCounts, Unavailable> {
        let cleared = self.local.clear()?;
        self.queue
            .try_send(WriteOp::Clear)
            .map_err(|_| Unavailable {
                reason:
                    "memory is cleared, and redis has too much to write to be: clear again later"
                        .to_owned(),
            })?;
        Ok(cleared)
    }

    fn cleanup_expired(&self, now: Moment) -> u64 {
        self.local.cleanup_expired(now)
    }

    /// Statistics of the memory of this process; queries and hits include those answered by Redis.
    fn stats(&self) -> ViewStats {
        let (queries, hits) = self.lookups.counts();
        let local = self.local.stats();
        ViewStats {
            queries: local.queries + queries,
            hits: local.hits + hits,
            ..local
        }
    }
}

impl fmt::Debug for RedisPrefixIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisPrefixIndex")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl Drop for RedisPrefixIndex {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.lock().take() {
            writer.abort();
        }
    }
}

#[derive(Debug)]
struct DropCounter(Arc<AtomicU64>);

impl Collector for DropCounter {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counter = ConstCounter::new(self.0.load(Ordering::Relaxed));
        let help = "Writes that did not reach their sink";
        let mut family = encoder.encode_descriptor(
            "warmroute_sink_errors",
            help,
            None,
            counter.metric_type(),
        )?;
        counter.encode(family.encode_family(&[("sink", "redis")])?)
    }
}
