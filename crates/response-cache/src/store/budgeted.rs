//! A store elsewhere, so that no request waits for it longer than it may, and few wait for one that is ill.
//!
//! A look is a task of its own: a request waits for it as long as the lookup budget says, and an answer that comes later is
//! handed on, for those that come after. What [`Health`] says decides whether a look is waited for at all.
//!
//! **Invariant**: of a store that stops answering, no more requests wait for an answer than it has connections for this, each
//! of them once; whoever came on top of them waited for no more than [`TURN`].

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
    CacheGeneration, CacheKey, StoreFault, chance::chance, counters::CacheCounters,
    engine::CurrentSettings, entry::FoundEntry, tasks::Tasks,
};

/// How long a request waits for its turn where all connections are in use: many come together now and then.
const TURN: Duration = Duration::from_millis(5);

/// What becomes of an entry that was found too late for who looked for it.
pub(crate) type LateEntryFn = Arc<dyn Fn(CacheKey, &FoundEntry, CacheGeneration) + Send + Sync>;

/// Told whether requests wait for a store, whenever that changes.
pub(crate) type OnChange = Arc<dyn Fn(bool) + Send + Sync>;

/// What a patient store is made of.
pub(crate) struct BudgetedStoreParts {
    /// Its name in faults and log lines.
    pub(crate) name: &'static str,
    /// Looks at a time.
    pub(crate) lookups: usize,
    pub(crate) breaker: BreakerConfig,
    pub(crate) late: Option<LateEntryFn>,
    pub(crate) on_change: Option<OnChange>,
    pub(crate) current: Arc<CurrentSettings>,
    pub(crate) tally: Arc<CacheCounters>,
    pub(crate) clock: Clock,
}

/// The wrapper of every store that is not in this process.
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
    /// Requests that wait for an answer or for their turn.
    waiting: AtomicUsize,
}

impl BudgetedStore {
    pub(crate) fn new(store: Arc<dyn Store>, with: BudgetedStoreParts) -> Self {
        let health = Mutex::new(StoreHealth::new(with.breaker));
        // Bound: looks at a time; whoever comes on top of them waits for its turn, but not for long.
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

    /// Whether requests wait for it: else something else has to answer.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.inner.health.lock().is_prompt()
    }

    async fn look(&self, ask: StoreLookup) -> Result<Option<FoundEntry>, StoreFault> {
        let inner = &self.inner;
        if !inner.store.is_there() {
            return Err(inner.not_asked("it is away"));
        }
        let admission = inner.health.lock().admit(inner.with.clock.now());
        match admission {
            LookupAdmission::Refuse => Err(inner.not_asked("it is left alone for a while")),
            LookupAdmission::Behind => {
                let behind = BackgroundLookup(Arc::clone(inner));
                if let Ok(permit) = Arc::clone(&inner.permits).try_acquire_owned() {
                    self.tasks
                        .start(Arc::clone(inner).fly(ask, permit, None, Some(behind)));
                }
                Err(inner.not_asked("it is too slow to be waited for"))
            }
            LookupAdmission::Wait => {
                let _waiting = LookupWaiter::begin(&inner.waiting);
                let permit = inner.turn(ask.until).await?;
                let (told, tells) = oneshot::channel();
                self.tasks
                    .start(Arc::clone(inner).fly(ask, permit, Some(told), None));
                match timeout_at(ask.until, tells).await {
                    Ok(Ok(answer)) => answer,
                    _ => {
                        inner.with.tally.lookups_abandoned.one();
                        Err(inner.not_asked("no answer within the lookup budget"))
                    }
                }
            }
        }
    }
}

impl BudgetedStoreInner {
    fn not_asked(&self, reason: &str) -> StoreFault {
        StoreFault {
            store: self.with.name,
            outage: true,
            reason: reason.to_owned(),
        }
    }

    async fn turn(&self, until: Instant) -> Result<OwnedSemaphorePermit, StoreFault> {
        let permits = Arc::clone(&self.permits);
        // As many again as are at work may wait for as long as a look may take: together they are what the store's share
        // of connections serves at once.
        let turn = match self.waiting.load(Ordering::Relaxed) <= 2 * self.with.lookups {
            true => until,
            false => until.min(Instant::now() + TURN),
        };
        match timeout_at(turn, permits.acquire_owned()).await {
            // The semaphore is never closed.
            Ok(permit) => permit.map_err(|_| self.not_asked("it is being stopped")),
            Err(_) => {
                if turn == until {
                    self.with.tally.lookups_abandoned.one();
                }
                Err(self.not_asked("every connection is in use"))
            }
        }
    }

    async fn fly(
        self: Arc<Self>,
        ask: StoreLookup,
        _permit: OwnedSemaphorePermit,
        told: Option<oneshot::Sender<Result<Option<FoundEntry>, StoreFault>>>,
        _behind: Option<BackgroundLookup>,
    ) {
        let budget = self.with.current.load().lookup_budget;
        let mut answer = self.store.get(ask);
        let answered = timeout(budget, &mut answer).await;
        let (answer, in_time) = match answered {
            Ok(answer) => (answer, true),
            Err(_) => {
                self.judge(
                    |health, now| health.slow(now, chance()),
                    "answers too slowly",
                );
                (answer.await, false)
            }
        };
        match &answer {
            Ok(_) if in_time => self.judge(StoreHealth::quick, "is quick again"),
            Ok(_) => self.health.lock().late(self.with.clock.now()),
            Err(fault) => self.failed(fault),
        }
        let untold = match told {
            Some(told) if in_time => told.send(answer).err(),
            _ => Some(answer),
        };
        if let (Some(Ok(Some(found))), Some(late)) = (untold, &self.with.late) {
            late(ask.key, &found, ask.generation);
        }
    }

    fn failed(&self, fault: &StoreFault) {
        if fault.outage {
            self.judge(|health, now| health.failed(now, chance()), &fault.reason);
        }
    }

    /// Tells news once.
    fn judge(&self, verdict: impl FnOnce(&mut StoreHealth, kv_blocks::Moment) -> bool, what: &str) {
        let (news, is_prompt) = {
            let mut health = self.health.lock();
            (
                verdict(&mut health, self.with.clock.now()),
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
        if let Some(told) = &self.with.on_change {
            told(is_prompt);
        }
    }
}

impl Store for BudgetedStore {
    fn abilities(&self) -> StoreCapabilities {
        self.inner.store.abilities()
    }

    fn is_there(&self) -> bool {
        self.inner.store.is_there() && !self.inner.health.lock().is_away()
    }

    fn absent(&self) -> Vec<&'static str> {
        if self.is_there() {
            Vec::new()
        } else {
            vec![self.inner.with.name]
        }
    }

    fn get(&self, ask: StoreLookup) -> StoreFuture<'_, Option<FoundEntry>> {
        Box::pin(self.look(ask))
    }

    fn set(&self, fill: StoreFill) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            if self.inner.health.lock().is_away() {
                return Err(self.inner.not_asked("it is left alone for a while"));
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

    /// Whoever clears is told what is wrong, whatever is known about the store.
    fn clear(&self) -> StoreFuture<'_, u64> {
        self.inner.store.clear()
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

/// Ends a look that nobody waits for, however it ends.
struct BackgroundLookup(Arc<BudgetedStoreInner>);

impl Drop for BackgroundLookup {
    fn drop(&mut self) {
        self.0.health.lock().record_late_result();
    }
}

/// One of those that wait, until it is dropped.
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
