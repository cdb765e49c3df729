//! The pool for requests' computations: how many run at once, for how long, and each model's share.
//!
//! A model's template and tokenizer are untrusted data, run by libraries that cannot be interrupted
//! inside a step. So they never run on a runtime thread, a request waits for them for a limited
//! time, and an abandoned computation returns the permit of the shared pool. It keeps its model's
//! permit until it ends: a model whose computations are stuck uses no more threads than its share,
//! and its prompts are identified by their text meanwhile. Steps do end: a library gives up a match
//! after some millions of its own steps, and the budget bounds the text.
//!
//! **Invariant**: no model holds more than its share of the permits, nor a shared permit for longer
//! than a request waits.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
    },
    time::Duration,
};

use kv_blocks::Moment;
use net::Clock;
use parking_lot::Mutex;
use prompt::{CancelFlag, PromptModel};
use resilience::{Backoff, CircuitBreaker};
use tokio::sync::Semaphore;

/// Longest computation of the router itself on a runtime thread: a longer one moves to the blocking
/// pool, so that it delays no stream.
pub(crate) const ON_RUNTIME: Duration = Duration::from_micros(500);

/// Late computations in a row after which a model is paused: a busy machine is late now and then.
const STRIKES: u32 = 3;
/// Length of a model's first pause; doubled each further time, up to the longest.
const REST: Duration = Duration::from_millis(250);
const LONGEST_REST: Duration = Duration::from_secs(60);

/// A pool with a limit on concurrent computations.
#[derive(Clone, Debug)]
pub struct ComputePool {
    all: Arc<Semaphore>,
    /// Most computations of one model.
    share: usize,
    /// By the model's address; an entry ends when another model takes its place.
    models: Arc<Mutex<HashMap<usize, Arc<ModelUsage>>>>,
}

/// The reason why a model's computation has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeError {
    /// It did not start or did not end in time.
    Late,
    /// The model was late too often, or late computations hold all its permits.
    Paused,
    /// It panicked.
    Failed,
}

impl ComputeError {
    /// Returns the label in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Paused => "resting",
            Self::Failed => "failed",
        }
    }
}

impl ComputePool {
    pub(crate) fn new(permits: usize) -> Self {
        let share = permits.saturating_sub(1).max(1);
        Self {
            all: Arc::new(Semaphore::new(permits)),
            share,
            models: Arc::default(),
        }
    }

    /// Runs work of the router itself, such as parsing a body, on the thread that its predicted
    /// `cost` calls for. `None` if it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        cost: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if cost <= ON_RUNTIME {
            return Some(work());
        }
        let permit = Arc::clone(&self.all).acquire_owned().await;
        let work_with_permit = move || {
            // The work itself holds the permit: it continues when the client has left, and ends
            // soon.
            let _permit = permit;
            work()
        };
        runtime::spawn_blocking(work_with_permit).await.ok()
    }

    /// Renders or tokenizes with a model's files, within `limit`, including the wait for a permit.
    /// Dropping the future cancels the computation.
    pub async fn compute<T: Send + 'static>(
        &self,
        model: &Arc<PromptModel>,
        limit: Duration,
        clock: Clock,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComputeError> {
        let own = self.of(model);
        if own.is_paused(clock.now()) {
            return Err(ComputeError::Paused);
        }
        let (flag, progress) = (CancelFlag::default(), Arc::default());
        let _cancel = flag.cancel_on_drop();
        let computed = tokio::time::timeout(
            limit,
            self.run_with_permits(&own, (flag.clone(), &progress), work),
        )
        .await;
        match computed {
            Ok(Some(result)) => {
                own.breaker.lock().record_success();
                Ok(result)
            }
            Ok(None) => Err(ComputeError::Failed),
            Err(_) => {
                if let Some(rest) = own
                    .mark_late(&progress)
                    .then(|| own.breaker.lock().record_failure(clock.now()))
                    .flatten()
                {
                    tracing::warn!(
                        digest = model.tokenizer_digest(),
                        ?limit,
                        ?rest,
                        "a model's tokenizer or template is too slow: its prompts are compared as text for a while"
                    );
                }
                Err(ComputeError::Late)
            }
        }
    }

    /// Waits for both permits and runs the work. The shared permit returns when this future is
    /// dropped, the model's own when the work ends.
    async fn run_with_permits<T: Send + 'static>(
        &self,
        own: &Arc<ModelUsage>,
        (flag, progress): (CancelFlag, &Arc<ComputeProgress>),
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let own_permit = Arc::clone(&own.permits).acquire_owned().await.ok()?;
        let _permit = self.all.acquire().await.ok()?;
        let (progress, own) = (Arc::clone(progress), Arc::clone(own));
        let work_with_permit = move || {
            let _own_permit = own_permit;
            if flag.is_cancelled() {
                return None;
            }
            progress.started.store(true, Relaxed);
            let _end = EndGuard { progress, own };
            Some(flag.run(work))
        };
        runtime::spawn_blocking(work_with_permit)
            .await
            .ok()
            .flatten()
    }

    fn of(&self, model: &Arc<PromptModel>) -> Arc<ModelUsage> {
        let mut models = self.models.lock();
        let address = Arc::as_ptr(model) as usize;
        if let Some(known) = models
            .get(&address)
            .filter(|known| known.model.strong_count() > 0)
        {
            return Arc::clone(known);
        }
        models.retain(|_, known| known.model.strong_count() > 0);
        let new = Arc::new(ModelUsage {
            model: Arc::downgrade(model),
            permits: Arc::new(Semaphore::new(self.share)),
            share: self.share,
            stuck: AtomicUsize::new(0),
            breaker: Mutex::new(late_breaker()),
        });
        models.insert(address, Arc::clone(&new));
        new
    }
}

/// One model's permits and its recent latency.
#[derive(Debug)]
struct ModelUsage {
    model: Weak<PromptModel>,
    permits: Arc<Semaphore>,
    share: usize,
    /// Abandoned computations that still run.
    stuck: AtomicUsize,
    /// Opened by late computations.
    breaker: Mutex<CircuitBreaker>,
}

impl ModelUsage {
    fn is_paused(&self, now: Moment) -> bool {
        self.stuck.load(Relaxed) >= self.share || self.breaker.lock().is_open(now)
    }

    /// Marks a computation as late. Returns whether it has begun and not ended: it is then stuck.
    fn mark_late(&self, progress: &ComputeProgress) -> bool {
        // Before the swap: the computation decrements after it.
        self.stuck.fetch_add(1, AcqRel);
        let is_running = progress.started.load(Relaxed) && !progress.over.swap(true, AcqRel);
        if !is_running {
            self.stuck.fetch_sub(1, AcqRel);
        }
        is_running
    }
}

fn late_breaker() -> CircuitBreaker {
    CircuitBreaker::new(STRIKES, Backoff::new(REST, LONGEST_REST))
}

/// The progress of a computation.
#[derive(Debug, Default)]
struct ComputeProgress {
    started: AtomicBool,
    /// Set by the computation when it ends, or by the request when it is late: the second of the
    /// two sees it set.
    over: AtomicBool,
}

/// Decrements the count of stuck computations when a late one ends.
struct EndGuard {
    progress: Arc<ComputeProgress>,
    own: Arc<ModelUsage>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if self.progress.over.swap(true, AcqRel) {
            self.own.stuck.fetch_sub(1, AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use contract_id::contract;
    use prompt::Artefacts;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    fn model() -> Arc<PromptModel> {
        let json = br#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0,"u":1},"unk_token":"u"}}"#;
        let artefacts = Artefacts {
            tokenizer_json: json,
            tokenizer_config: None,
            chat_template: None,
        };
        Arc::new(PromptModel::load(artefacts).expect("a small tokenizer"))
    }

    /// Work that runs until the sender is dropped, whatever its flag says: like a step inside a
    /// library.
    fn stuck() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            // An error: the sender was dropped.
            let _ = receiver.recv();
        };
        (sender, work)
    }

    async fn compute<T: Send + 'static>(
        pool: &ComputePool,
        model: &Arc<PromptModel>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComputeError> {
        pool.compute(model, limit, Clock::system(), work).await
    }

    #[tokio::test]
    #[contract("F82")]
    async fn a_stuck_model_costs_a_bounded_wait_and_no_permits_of_other_models() {
        let pool = ComputePool::new(2);
        let (stuck_model, other) = (model(), model());
        let (release, work) = stuck();
        assert_eq!(
            compute(&pool, &stuck_model, LIMIT, work).await,
            Err(ComputeError::Late)
        );
        // That work holds the only permit, and no request waits for it.
        assert_eq!(
            compute(&pool, &stuck_model, LONG, || 7).await,
            Err(ComputeError::Paused)
        );
        let (_releases, works): (Vec<_>, Vec<_>) = (0..2).map(|_| stuck()).unzip();
        for work in works {
            assert!(compute(&pool, &model(), LIMIT, work).await.is_err());
        }
        assert_eq!(
            pool.all.available_permits(),
            2,
            "abandoned work holds no shared permit"
        );
        assert_eq!(compute(&pool, &other, LONG, || 7).await, Ok(7));
        drop(release);
        while compute(&pool, &stuck_model, LONG, || 7).await != Ok(7) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    #[contract("F82")]
    async fn one_model_leaves_a_permit_to_the_others() {
        let pool = ComputePool::new(3);
        let (busy, other) = (model(), model());
        let (_releases, works): (Vec<_>, Vec<_>) = (0..8).map(|_| stuck()).unzip();
        let tasks: Vec<_> = works
            .into_iter()
            .map(|work| {
                let (pool, busy) = (pool.clone(), Arc::clone(&busy));
                tokio::spawn(async move { compute(&pool, &busy, LONG, work).await })
            })
            .collect();
        while pool.all.available_permits() > 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(compute(&pool, &other, LONG, || 7).await, Ok(7));
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    #[contract("F82")]
    async fn a_client_disconnect_ends_its_computation() {
        let pool = ComputePool::new(2);
        let model = model();
        let (begun, has_begun) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let text = "a ".repeat(10);
        let work = {
            let model = Arc::clone(&model);
            move || {
                begun.send(()).expect("the test waits");
                while model.text_tokens(&text, false).is_ok() {}
                ended.send(()).expect("the test waits");
            }
        };
        let task = tokio::spawn({
            let (pool, model) = (pool.clone(), Arc::clone(&model));
            async move { compute(&pool, &model, LONG, work).await }
        });
        tokio::task::spawn_blocking(move || has_begun.recv())
            .await
            .expect("no panic")
            .expect("it begins");
        task.abort();
        let ended = tokio::task::spawn_blocking(move || has_ended.recv_timeout(LONG))
            .await
            .expect("no panic");
        assert_eq!(ended, Ok(()));
    }

    #[test]
    #[contract("F82")]
    fn a_repeatedly_late_model_is_paused_for_longer_and_longer() {
        let (mut breaker, now) = (late_breaker(), Moment::default());
        let mut late = || breaker.record_failure(now);
        assert_eq!((late(), late()), (None, None));
        assert_eq!(late(), Some(REST));
        assert_eq!(late(), Some(REST * 2));
        for _ in 0..40 {
            late();
        }
        assert_eq!(late(), Some(LONGEST_REST));
        breaker.record_success();
        assert_eq!(breaker.record_failure(now), None);
    }
}
