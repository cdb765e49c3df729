//! A wrapper of a remote store: no request waits longer than its budget, and few wait for an
//! unhealthy store.
//!
//! A lookup is a separate task: a request waits for it for the lookup budget, and a late answer is
//! passed on for later requests. [`StoreHealth`] decides whether requests wait for a lookup at all.
//!
//! **Invariant**: if a store stops answering, at most as many requests wait for an answer as it has
//! connections for lookups, each of them once; any other request waits at most [`PERMIT_WAIT`].

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use net::Clock;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, timeout, timeout_at},
};

use super::{
    Store, StoreCapabilities, StoreFill, StoreFuture, StoreLookup, StoreStats,
    health::{BreakerConfig, LookupAdmission, StoreHealth},
};
use crate::{
    CacheGeneration, CacheKey, CacheSelection, StoreFault, counters::CacheCounters,
    engine::CurrentSettings, entry::FoundEntry, tasks::Tasks,
};

/// Maximum wait for a permit while all connections are in use: bursts happen now and then.
const PERMIT_WAIT: Duration = Duration::from_millis(5);

/// Takes an entry that was found too late for its request.
pub(crate) type LateEntryFn = Arc<dyn Fn(CacheKey, &FoundEntry, CacheGeneration) + Send + Sync>;

/// Reports, on each change, whether requests wait for a store.
pub(crate) type OnChange = Arc<dyn Fn(bool) + Send + Sync>;

/// The parts of a budgeted store.
pub(crate) struct BudgetedStoreParts {
    /// Its name in faults and log lines.
    pub(crate) name: &'static str,
    /// Concurrent lookups.
    pub(crate) lookups: usize,
    pub(crate) breaker: BreakerConfig,
    pub(crate) late: Option<LateEntryFn>,
    pub(crate) on_change: Option<OnChange>,
    pub(crate) current: Arc<CurrentSettings>,
    pub(crate) counters: Arc<CacheCounters>,
    pub(crate) clock: Clock,
}

/// The wrapper of every store outside this process.
#[derive(Debug)]
pub(crate) struct BudgetedStore {
    inner: Arc<BudgetedStoreInner>,
    tasks: Tasks,
}

struct BudgetedStoreInner {
    store: Arc<dyn Store>,
    with: BudgetedStoreParts,
    health: Mutex<StoreHealth>,
    permits: Arc<Semaphore>,
    /// Requests that wait for an answer or for a permit.
    waiting: AtomicUsize,
}

impl BudgetedStore {
    pub(crate) fn new(store: Arc<dyn Store>, with: BudgetedStoreParts) -> Self {
        let health = Mutex::new(StoreHealth::new(with.breaker));
        // Bound: concurrent lookups; further ones wait briefly for a permit.
        let permits = Arc::new(Semaphore::new(with.lookups.max(1)));
        Self {
            inner: Arc::new(BudgetedStoreInner {
                store,
                with,
                health,
                permits,
                waiting: AtomicUsize::new(0),
            }),
            tasks: Tasks::default(),
        }
    }

    /// Returns whether requests wait for it: otherwise a fallback must answer.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.inner.health.lock().is_prompt()
    }

    async fn find(&self, lookup: StoreLookup) -> Result<Option<FoundEntry>, StoreFault> {
        let inner = &self.inner;
        if !inner.store.is_available() {
            return Err(inner.fault("it is away"));
        }
        let admission = inner.health.lock().admit(inner.with.clock.now());
        match admission {
            LookupAdmission::Refuse => Err(inner.fault("it is left alone for a while")),
            LookupAdmission::Background => {
                let background = BackgroundLookup(Arc::clone(inner));
                if let Ok(permit) = Arc::clone(&inner.permits).try_acquire_owned() {
                    self.tasks.start(Arc::clone(inner).run_lookup(
                        lookup,
                        permit,
                        None,
                        Some(background),
                    ));
                }
                Err(inner.fault("it is too slow to be waited for"))
            }
            LookupAdmission::Wait => {
                let _waiting = LookupWaiter::begin(&inner.waiting);
                let free = Arc::clone(&inner.permits).try_acquire_owned().ok();
                let has_whole_budget = free.is_some();
                let permit = match free {
                    Some(permit) => permit,
                    None => inner.acquire_permit(lookup.until).await?,
                };
                let (sender, receiver) = oneshot::channel();
                self.tasks
                    .start(Arc::clone(inner).run_lookup(lookup, permit, Some(sender), None));
                match timeout_at(lookup.until, receiver).await {
                    Ok(Ok(answer)) => answer,
                    _ => {
                        inner.with.counters.lookups_abandoned.one();
                        // The task of the lookup records the same, but perhaps a moment later: the
                        // request's next lookup would wait once more.
                        if has_whole_budget {
                            inner.record_slow();
                        }
                        Err(inner.fault("no answer within the lookup budget"))
                    }
                }
            }
        }
    }
}

impl BudgetedStoreInner {
    fn fault(&self, reason: &str) -> StoreFault {
        StoreFault {
            store: self.with.name,
            outage: true,
            reason: reason.to_owned(),
        }
    }

    async fn acquire_permit(&self, until: Instant) -> Result<OwnedSemaphorePermit, StoreFault> {
        let permits = Arc::clone(&self.permits);
        // As many requests as are running may wait for the duration of a lookup: together the
        // store's share of connections serves them at once.
        let deadline = match self.waiting.load(Ordering::Relaxed) <= 2 * self.with.lookups {
            true => until,
            false => until.min(Instant::now() + PERMIT_WAIT),
        };
        match timeout_at(deadline, permits.acquire_owned()).await {
            // The semaphore is never closed.
            Ok(permit) => permit.map_err(|_| self.fault("it is being stopped")),
            Err(_) => {
                if deadline == until {
                    self.with.counters.lookups_abandoned.one();
                    // No more requests wait so than lookups run: one of these took the whole budget.
                    self.record_slow();
                }
                Err(self.fault("every connection is in use"))
            }
        }
    }

    async fn run_lookup(
        self: Arc<Self>,
        lookup: StoreLookup,
        _permit: OwnedSemaphorePermit,
        sender: Option<oneshot::Sender<Result<Option<FoundEntry>, StoreFault>>>,
        _background: Option<BackgroundLookup>,
    ) {
        let budget = self.with.current.load().lookup_budget;
        let mut answer = self.store.get(lookup);
        let answered = timeout(budget, &mut answer).await;
        let (answer, in_time) = match answered {
            Ok(answer) => (answer, true),
            Err(_) => {
                self.record_slow();
                (answer.await, false)
            }
        };
        match &answer {
            Ok(_) if in_time => self.record(StoreHealth::quick, "is quick again"),
            Ok(_) => self.health.lock().late(self.with.clock.now()),
            Err(fault) => self.failed(fault),
        }
        let unsent = match sender {
            Some(sender) if in_time => sender.send(answer).err(),
            _ => Some(answer),
        };
        if let (Some(Ok(Some(found))), Some(late)) = (unsent, &self.with.late) {
            late(lookup.key, &found, lookup.generation);
        }
    }

    fn record_slow(&self) {
        self.record(
            |health, now| health.slow(now, runtime::chance()),
            "answers too slowly",
        );
    }

    fn failed(&self, fault: &StoreFault) {
        if fault.outage {
            self.record(
                |health, now| health.failed(now, runtime::chance()),
                &fault.reason,
            );
        }
    }

    /// Records a result and reports a change once.
    fn record(&self, change: impl FnOnce(&mut StoreHealth, kv_blocks::Moment) -> bool, what: &str) {
        let (news, is_prompt) = {
            let mut health = self.health.lock();
            (
                change(&mut health, self.with.clock.now()),
                health.is_prompt(),
            )
        };
        if !news {
            return;
        }
        if is_prompt {
            tracing::info!(
                store = self.with.name,
                "the store of replies {what}: waiting for it again"
            );
        } else {
            tracing::warn!(
                store = self.with.name,
                reason = what,
                "not waiting for the store of replies for now"
            );
        }
        if let Some(notify) = &self.with.on_change {
            notify(is_prompt);
        }
    }
}

impl Store for BudgetedStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.store.capabilities()
    }

    fn is_available(&self) -> bool {
        self.inner.store.is_available() && !self.inner.health.lock().is_down()
    }

    fn absent(&self) -> Vec<&'static str> {
        if self.is_available() {
            Vec::new()
        } else {
            vec![self.inner.with.name]
        }
    }

    fn get(&self, lookup: StoreLookup) -> StoreFuture<'_, Option<FoundEntry>> {
        Box::pin(self.find(lookup))
    }

    fn set(&self, fill: StoreFill) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            if self.inner.health.lock().is_down() {
                return Err(self.inner.fault("it is left alone for a while"));
            }
            self.inner
                .store
                .set(fill)
                .await
                .inspect_err(|fault| self.inner.failed(fault))
        })
    }

    fn delete(&self, key: CacheKey) -> StoreFuture<'_, ()> {
        self.inner.store.delete(key)
    }

    /// A clear returns the error, whatever the health is.
    fn clear(&self, selection: CacheSelection) -> StoreFuture<'_, u64> {
        self.inner.store.clear(selection)
    }

    fn stats(&self) -> StoreStats {
        self.inner.store.stats()
    }

    fn count(&self) -> StoreFuture<'_, u64> {
        self.inner.store.count()
    }
}

impl fmt::Debug for BudgetedStoreInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("store", &self.store)
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

/// A guard that records the end of a background lookup, in every case.
struct BackgroundLookup(Arc<BudgetedStoreInner>);

impl Drop for BackgroundLookup {
    fn drop(&mut self) {
        self.0.health.lock().record_late_result();
    }
}

/// A guard that counts a waiting request until it is dropped.
struct LookupWaiter<'a>(&'a AtomicUsize);

impl<'a> LookupWaiter<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for LookupWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use config::ResponseCacheSection;
    use contract_id::contract;

    use super::*;
    use crate::{CacheScope, generation::Generations};

    const BUDGET: Duration = Duration::from_millis(50);

    /// A store that never answers.
    #[derive(Debug)]
    struct SilentStore;

    impl Store for SilentStore {
        fn capabilities(&self) -> StoreCapabilities {
            StoreCapabilities { counts: false }
        }

        fn get(&self, _: StoreLookup) -> StoreFuture<'_, Option<FoundEntry>> {
            Box::pin(std::future::pending())
        }

        fn set(&self, _: StoreFill) -> StoreFuture<'_, ()> {
            Box::pin(std::future::pending())
        }

        fn delete(&self, _: CacheKey) -> StoreFuture<'_, ()> {
            Box::pin(std::future::pending())
        }

        fn clear(&self, _: CacheSelection) -> StoreFuture<'_, u64> {
            Box::pin(std::future::pending())
        }

        fn stats(&self) -> StoreStats {
            StoreStats::default()
        }
    }

    fn silent_store(counters: &Arc<CacheCounters>) -> BudgetedStore {
        BudgetedStore::new(
            Arc::new(SilentStore),
            BudgetedStoreParts {
                name: "silent",
                lookups: 2,
                breaker: BreakerConfig {
                    background: 1,
                    slow: (Duration::from_secs(1), Duration::from_secs(1)),
                    outage: None,
                },
                late: None,
                on_change: None,
                current: Arc::new(CurrentSettings::from_pointee(ResponseCacheSection {
                    lookup_budget: BUDGET,
                    ..ResponseCacheSection::default()
                })),
                counters: Arc::clone(counters),
                clock: Clock::system(),
            },
        )
    }

    #[tokio::test(start_paused = true)]
    #[contract("F43")]
    async fn a_request_that_waited_in_vain_does_not_wait_for_the_same_store_again() {
        let counters = Arc::new(CacheCounters::default());
        let store = silent_store(&counters);
        let lookup = async || {
            let lookup = StoreLookup {
                key: CacheKey::new(CacheScope::of("default", "m"), [1; 32]),
                until: Instant::now() + BUDGET,
                generation: Generations::default().now(),
            };
            assert!(store.get(lookup).await.is_err());
        };
        // Two have a connection, two wait for one.
        tokio::join!(lookup(), lookup(), lookup(), lookup());
        for _ in 0..3 {
            lookup().await;
        }
        assert_eq!(counters.lookups_abandoned.get(), 4);
    }
}
