//! Lookups of a prefix's holders, as written by all routers.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use net::Clock;
use parking_lot::Mutex;
use prefix_view::{Holder, PrefixHash, QueryCache, StorageTier};
use redis::{Pipeline, Value};
use tokio::{
    sync::{Semaphore, watch},
    time::timeout,
};

use super::{
    keys::{holders_key, read_tier, tiers_key},
    ops::KeyWriter,
    reply::{array, bytes, tokens},
};
use crate::{Operation, RedisFault, pool::PoolShared};

/// Maximum time that a request waits for Redis. A later answer serves later requests.
pub const LOOKUP_BUDGET: Duration = Duration::from_millis(50);
/// Maximum number of holders read per prefix, the best ones: the maximum number of backends in the
/// view in memory.
const MOST_HOLDERS: usize = 1024;
/// Maximum number of prefixes under lookup. Beyond it, requests use the events that this process
/// received.
const MOST_FLIGHTS: usize = 1024;

/// Looks up holders, at most once per prefix in 100 ms.
#[derive(Debug)]
pub(super) struct Lookups(Arc<LookupsInner>);

#[derive(Debug)]
struct LookupsInner {
    shared: Arc<PoolShared>,
    /// Backend names in the order in which their tiers are queried.
    names: Vec<Arc<str>>,
    known_backends: HashSet<Arc<str>>,
    has_tiers: bool,
    prepared: QueryCache,
    /// Prefixes under lookup. Waiters wait for the sender to be dropped.
    flights: Mutex<HashMap<PrefixHash, watch::Receiver<()>>>,
    permits: Semaphore,
    clock: Clock,
    queries: AtomicU64,
    hits: AtomicU64,
}

/// Ends a flight, however it ends.
struct FlightGuard {
    inner: Arc<LookupsInner>,
    prefix: PrefixHash,
    /// Dropped after the flight is removed from `flights`.
    _over: watch::Sender<()>,
}

impl Drop for FlightGuard {
    fn drop(&mut self) {
        self.inner.flights.lock().remove(&self.prefix);
    }
}

impl Lookups {
    /// Creates the lookups. `permits`: connections that they may use at a time, at least one.
    pub(super) fn new(
        shared: Arc<PoolShared>,
        names: Vec<Arc<str>>,
        key_writer: KeyWriter,
        permits: usize,
        clock: Clock,
    ) -> Self {
        Self(Arc::new(LookupsInner {
            shared,
            known_backends: names.iter().cloned().collect(),
            names,
            has_tiers: key_writer.has_tiers(),
            prepared: QueryCache::default(),
            flights: Mutex::default(),
            permits: Semaphore::new(permits.max(1)),
            clock,
            queries: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }))
    }

    /// Returns the cache of valid answers, from Redis or from memory.
    pub(super) fn prepared(&self) -> &QueryCache {
        &self.0.prepared
    }

    /// Returns the number of queries that Redis answered, and of those with at least one holder.
    pub(super) fn counts(&self) -> (u64, u64) {
        (
            self.0.queries.load(Ordering::Relaxed),
            self.0.hits.load(Ordering::Relaxed),
        )
    }

    /// Returns the holders of `prefix`, best first; `None` if Redis did not answer in time.
    pub(super) async fn holders(&self, prefix: &PrefixHash) -> Option<Arc<[Holder]>> {
        let inner = &self.0;
        let cached = || inner.prepared.cached(prefix, inner.clock.now());
        if let Some(holders) = cached() {
            return Some(holders);
        }
        // No wait for a server that is down.
        inner.shared.state.up()?;
        let mut flight = {
            let mut flights = inner.flights.lock();
            // Another flight may have finished since.
            if let Some(holders) = cached() {
                return Some(holders);
            }
            match flights.get(prefix) {
                Some(flight) => flight.clone(),
                None if flights.len() >= MOST_FLIGHTS => return None,
                None => {
                    let (over, flight) = watch::channel(());
                    flights.insert(*prefix, flight.clone());
                    let guard = FlightGuard {
                        inner: Arc::clone(inner),
                        prefix: *prefix,
                        _over: over,
                    };
                    // A separate task, because the answer is useful even if the first request is
                    // cancelled.
                    runtime::spawn(run_query(guard));
                    flight
                }
            }
        };
        // The sender sends no value; its drop ends the wait.
        let _ = timeout(LOOKUP_BUDGET, flight.changed()).await;
        cached()
    }
}

async fn run_query(guard: FlightGuard) {
    let inner = &guard.inner;
    // The waiters of this flight wait no longer than that, so a later start is useless.
    let Ok(Ok(_permit)) = timeout(LOOKUP_BUDGET, inner.permits.acquire()).await else {
        return;
    };
    // The pool counts a fault when it occurs.
    if let Ok(holders) = inner.query(&guard.prefix).await {
        inner.queries.fetch_add(1, Ordering::Relaxed);
        inner
            .hits
            .fetch_add(u64::from(!holders.is_empty()), Ordering::Relaxed);
        inner
            .prepared
            .keep(&guard.prefix, holders.into(), inner.clock.now());
    }
}

impl LookupsInner {
    async fn query(&self, prefix: &PrefixHash) -> Result<Vec<Holder>, RedisFault> {
        let mut pipeline = Pipeline::new();
        pipeline
            .ignore_errors()
            .cmd("ZREVRANGE")
            .arg(holders_key(prefix))
            .arg(0)
            .arg(MOST_HOLDERS - 1)
            .arg("WITHSCORES");
        if self.has_tiers {
            let tiers = pipeline.cmd("HMGET").arg(tiers_key(prefix));
            for name in &self.names {
                tiers.arg(&**name);
            }
        }
        let answers = self.shared.send(Operation::Get, &pipeline).await?;
        self.read(&answers)
            .inspect_err(|fault| self.shared.refused(fault))
    }

    fn read(&self, answers: &[Value]) -> Result<Vec<Holder>, RedisFault> {
        let (Some(scored), tiers) = (answers.first(), answers.get(1)) else {
            return Err(RedisFault::unusable("list of backends"));
        };
        let tiers: HashMap<&str, StorageTier> = match tiers {
            None => HashMap::new(),
            Some(tiers) => {
                let listed = array(tiers, "list of tiers")?.iter().map(bytes);
                self.names
                    .iter()
                    .map(|name| &**name)
                    .zip(listed.map(read_tier))
                    .collect()
            }
        };
        let pairs = array(scored, "list of backends")?.chunks_exact(2);
        let mut holders: Vec<Holder> = pairs
            .filter_map(|pair| {
                let name = self
                    .known_backends
                    .get(std::str::from_utf8(bytes(&pair[0])?).ok()?)?;
                let tier = tiers.get(&**name).copied().unwrap_or(StorageTier::GpuHot);
                Some(Holder {
                    backend: Arc::clone(name),
                    tokens: tokens(&pair[1])?,
                    tier,
                })
            })
            .collect();
        // A sorted set has no duplicate members, but the server may be something else.
        let mut seen = HashSet::new();
        holders.retain(|holder| seen.insert(Arc::clone(&holder.backend)));
        holders.sort_unstable_by(Holder::rank);
        Ok(holders)
    }
}
