//! Who holds a prefix, by what all routers wrote.

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

/// How long a request waits for Redis at most. An answer that comes later serves those after it.
pub const LOOKUP_BUDGET: Duration = Duration::from_millis(50);
/// Holders of one prefix that are read, the best: as many as the view in memory knows backends.
const MOST_HOLDERS: usize = 1024;
/// Prefixes that are being asked for. When there are more, requests go by what this process heard.
const MOST_FLIGHTS: usize = 1024;

/// Asks, once per prefix in 100 ms however many requests have it.
#[derive(Debug)]
pub(super) struct Lookups(Arc<LookupsInner>);

#[derive(Debug)]
struct LookupsInner {
    shared: Arc<PoolShared>,
    /// In the order in which their tiers are asked for.
    names: Vec<Arc<str>>,
    known_backends: HashSet<Arc<str>>,
    has_tiers: bool,
    prepared: QueryCache,
    /// Prefixes that are being asked for; what is waited for is that the sender is gone.
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
    /// Dropped after the flight is off the books.
    _over: watch::Sender<()>,
}

impl Drop for FlightGuard {
    fn drop(&mut self) {
        self.inner.flights.lock().remove(&self.prefix);
    }
}

impl Lookups {
    /// `permits`: connections that lookups may use at a time, at least one.
    pub(super) fn new(
        shared: Arc<PoolShared>,
        names: Vec<Arc<str>>,
        scribe: KeyWriter,
        permits: usize,
        clock: Clock,
    ) -> Self {
        Self(Arc::new(LookupsInner {
            shared,
            known_backends: names.iter().cloned().collect(),
            names,
            has_tiers: scribe.has_tiers(),
            prepared: QueryCache::default(),
            flights: Mutex::default(),
            permits: Semaphore::new(permits.max(1)),
            clock,
            queries: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }))
    }

    /// The answers that stand, from wherever they came.
    pub(super) fn prepared(&self) -> &QueryCache {
        &self.0.prepared
    }

    /// Queries that Redis answered, and those that found somebody.
    pub(super) fn counts(&self) -> (u64, u64) {
        (
            self.0.queries.load(Ordering::Relaxed),
            self.0.hits.load(Ordering::Relaxed),
        )
    }

    /// Who holds `prefix`, best first; `None`: Redis did not say so in time.
    pub(super) async fn holders(&self, prefix: &PrefixHash) -> Option<Arc<[Holder]>> {
        let inner = &self.0;
        let standing = || inner.prepared.standing(prefix, inner.clock.now());
        if let Some(holders) = standing() {
            return Some(holders);
        }
        // What is away is not waited for.
        inner.shared.state.up()?;
        let mut flight = {
            let mut flights = inner.flights.lock();
            // One may have landed since.
            if let Some(holders) = standing() {
                return Some(holders);
            }
            match flights.get(prefix) {
                Some(flight) => flight.clone(),
                None if flights.len() >= MOST_FLIGHTS => return None,
                None => {
                    let (over, flight) = watch::channel(());
                    flights.insert(*prefix, flight.clone());
                    let landing = FlightGuard {
                        inner: Arc::clone(inner),
                        prefix: *prefix,
                        _over: over,
                    };
                    // A task of its own: an answer is of use also when the request that asked first has gone.
                    tokio::spawn(fly(landing));
                    flight
                }
            }
        };
        // Nothing is ever sent: what ends the wait is the sender's end.
        let _ = timeout(LOOKUP_BUDGET, flight.changed()).await;
        standing()
    }
}

async fn fly(landing: FlightGuard) {
    let inner = &landing.inner;
    // Who waits for this flight waits no longer than that, so a later start is of no use.
    let Ok(Ok(_permit)) = timeout(LOOKUP_BUDGET, inner.permits.acquire()).await else {
        return;
    };
    // A fault is counted where it is found.
    if let Ok(holders) = inner.ask(&landing.prefix).await {
        inner.queries.fetch_add(1, Ordering::Relaxed);
        inner
            .hits
            .fetch_add(u64::from(!holders.is_empty()), Ordering::Relaxed);
        inner
            .prepared
            .keep(&landing.prefix, holders.into(), inner.clock.now());
    }
}

impl LookupsInner {
    async fn ask(&self, prefix: &PrefixHash) -> Result<Vec<Holder>, RedisFault> {
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
        let answers = self.shared.ask(Operation::Get, &pipeline).await?;
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
                let told = array(tiers, "list of tiers")?.iter().map(bytes);
                self.names
                    .iter()
                    .map(|name| &**name)
                    .zip(told.map(read_tier))
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
        // No sorted set has a member twice, but not everything that answers is one.
        let mut seen = HashSet::new();
        holders.retain(|holder| seen.insert(Arc::clone(&holder.backend)));
        holders.sort_unstable_by(Holder::rank);
        Ok(holders)
    }
}
