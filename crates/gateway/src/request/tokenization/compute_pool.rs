//! Where requests compute: how many at once, for how long, and what one model may take of that.
//!
//! A model's template and tokenizer are data of strangers, run by libraries that cannot be interrupted inside a step. So
//! they never run on a runtime thread, a request waits for them for a limited time, and a computation that nobody waits
//! for any more gives back the seat that all models share. It keeps its model's own seat until it ends: a model whose
//! computations are stuck has no more threads than its share, and its prompts go by their text meanwhile. Steps end: a
//! library gives up a match after some millions of steps of its own, and the budget bounds the text.
//!
//! **Invariant**: no model holds more than its share of the seats, nor any seat of all for longer than a request waits.

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
use tokio::sync::Semaphore;

/// Longest computation of our own on a runtime thread: beyond it the work moves to the blocking pool, so that no other
/// stream waits.
pub(super) const ON_RUNTIME: Duration = Duration::from_micros(500);

/// So many computations in a row must be late before a model rests: a busy machine is late now and then.
const STRIKES: u32 = 3;
/// How long a model rests that was late so often; twice as long each further time, up to the longest.
const REST: Duration = Duration::from_millis(250);
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Computations at once.
#[derive(Clone, Debug)]
pub(in crate::request) struct ComputePool {
    all: Arc<Semaphore>,
    /// Of one model.
    share: usize,
    /// By the address of the model; gone with the model when another one comes.
    models: Arc<Mutex<HashMap<usize, Arc<ModelUsage>>>>,
}

/// Why a model's computation gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::request) enum ComputeError {
    /// It did not end in time, or did not begin.
    Late,
    /// The model was late too often, or all its seats are held by late computations.
    Resting,
    /// It panicked.
    Failed,
}

impl ComputeError {
    /// The word of metrics and logs.
    pub(in crate::request) fn as_str(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Resting => "resting",
            Self::Failed => "failed",
        }
    }
}

impl ComputePool {
    pub(super) fn new(seats: usize) -> Self {
        let share = seats.saturating_sub(1).max(1);
        Self {
            all: Arc::new(Semaphore::new(seats)),
            share,
            models: Arc::default(),
        }
    }

    /// Does work of our own, such as reading a body, where its `cost`, as predicted, belongs. `None` if it panicked.
    pub(in crate::request) async fn run<T: Send + 'static>(
        &self,
        cost: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if cost <= ON_RUNTIME {
            return Some(work());
        }
        let seat = Arc::clone(&self.all).acquire_owned().await;
        let seated = move || {
            // Held by the work itself: it goes on when the client has left, and ends soon.
            let _seat = seat;
            work()
        };
        tokio::task::spawn_blocking(seated).await.ok()
    }

    /// Renders or tokenises by a model's files, within `limit`, the wait for a seat included. Dropping the future cancels
    /// the computation.
    pub(in crate::request) async fn compute<T: Send + 'static>(
        &self,
        model: &Arc<PromptModel>,
        limit: Duration,
        clock: Clock,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComputeError> {
        let own = self.of(model);
        if own.is_resting(clock.now()) {
            return Err(ComputeError::Resting);
        }
        let (flag, progress) = (CancelFlag::default(), Arc::default());
        let _cancel = flag.cancel_on_drop();
        let computed =
            tokio::time::timeout(limit, self.seated(&own, (flag.clone(), &progress), work)).await;
        match computed {
            Ok(Some(result)) => {
                own.lateness.lock().in_time();
                Ok(result)
            }
            Ok(None) => Err(ComputeError::Failed),
            Err(_) => {
                if let Some(rest) = own
                    .mark_late(&progress)
                    .then(|| own.lateness.lock().late(clock.now()))
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

    /// Waits for both seats and works. The seat of all models is given back when this is dropped, the model's own when the
    /// work ends.
    async fn seated<T: Send + 'static>(
        &self,
        own: &Arc<ModelUsage>,
        (flag, progress): (CancelFlag, &Arc<ComputeProgress>),
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let own_seat = Arc::clone(&own.permits).acquire_owned().await.ok()?;
        let _seat = self.all.acquire().await.ok()?;
        let (progress, own) = (Arc::clone(progress), Arc::clone(own));
        let seated = move || {
            let _own_seat = own_seat;
            if flag.is_cancelled() {
                return None;
            }
            progress.started.store(true, Relaxed);
            let _end = EndGuard { progress, own };
            Some(flag.run(work))
        };
        tokio::task::spawn_blocking(seated).await.ok().flatten()
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
            lateness: Mutex::default(),
        });
        models.insert(address, Arc::clone(&new));
        new
    }
}

/// What one model has of the seats, and how it did lately.
#[derive(Debug)]
struct ModelUsage {
    model: Weak<PromptModel>,
    permits: Arc<Semaphore>,
    share: usize,
    /// Computations that run though nobody waits for them any more, as they are late.
    stuck: AtomicUsize,
    lateness: Mutex<LateStreak>,
}

impl ModelUsage {
    fn is_resting(&self, now: Moment) -> bool {
        self.stuck.load(Relaxed) >= self.share
            || self.lateness.lock().until.is_some_and(|until| until > now)
    }

    /// Whether a computation that is late had begun and has not ended: it is stuck from now on.
    fn mark_late(&self, progress: &ComputeProgress) -> bool {
        // Before the swap: the computation counts itself out behind it.
        self.stuck.fetch_add(1, AcqRel);
        let is_running = progress.started.load(Relaxed) && !progress.over.swap(true, AcqRel);
        if !is_running {
            self.stuck.fetch_sub(1, AcqRel);
        }
        is_running
    }
}

/// How often a model was late in a row.
#[derive(Debug, Default)]
struct LateStreak {
    strikes: u32,
    /// The last rest; nothing since a computation that was in time.
    rest: Duration,
    until: Option<Moment>,
}

impl LateStreak {
    fn in_time(&mut self) {
        *self = Self::default();
    }

    /// Says for how long the model rests, if it does from now on. After a rest one more late computation is enough.
    fn late(&mut self, now: Moment) -> Option<Duration> {
        self.strikes = self.strikes.saturating_add(1);
        if self.strikes < STRIKES {
            return None;
        }
        self.rest = self.rest.saturating_mul(2).clamp(REST, LONGEST_REST);
        self.until = Some(now + self.rest);
        Some(self.rest)
    }
}

/// How far a computation is.
#[derive(Debug, Default)]
struct ComputeProgress {
    started: AtomicBool,
    /// Set by the computation when it ends, or by the request when it is late: the second one to come sees that.
    over: AtomicBool,
}

/// Counts a late computation out when it ends.
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

    /// Work that goes on until the sender is dropped, whatever its flag says: a step inside a library.
    fn stuck() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            // An error: the sender was dropped.
            let _ = receiver.recv();
        };
        (sender, work)
    }

    async fn compute<T: Send + 'static>(
        seats: &ComputePool,
        model: &Arc<PromptModel>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComputeError> {
        seats.compute(model, limit, Clock::system(), work).await
    }

    #[tokio::test]
    #[contract("F82")]
    async fn a_stuck_model_costs_a_limited_wait_and_no_other_model_its_seats() {
        let seats = ComputePool::new(2);
        let (stuck_model, other) = (model(), model());
        let (release, work) = stuck();
        assert_eq!(
            compute(&seats, &stuck_model, LIMIT, work).await,
            Err(ComputeError::Late)
        );
        // Its one seat is taken as long as that goes on, and nobody waits for it.
        assert_eq!(
            compute(&seats, &stuck_model, LONG, || 7).await,
            Err(ComputeError::Resting)
        );
        let (_releases, works): (Vec<_>, Vec<_>) = (0..2).map(|_| stuck()).unzip();
        for work in works {
            assert!(compute(&seats, &model(), LIMIT, work).await.is_err());
        }
        assert_eq!(
            seats.all.available_permits(),
            2,
            "what nobody waits for holds no seat of all"
        );
        assert_eq!(compute(&seats, &other, LONG, || 7).await, Ok(7));
        drop(release);
        while compute(&seats, &stuck_model, LONG, || 7).await != Ok(7) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    #[contract("F82")]
    async fn one_model_leaves_a_seat_to_the_others() {
        let seats = ComputePool::new(3);
        let (busy, other) = (model(), model());
        let (_releases, works): (Vec<_>, Vec<_>) = (0..8).map(|_| stuck()).unzip();
        let tasks: Vec<_> = works
            .into_iter()
            .map(|work| {
                let (seats, busy) = (seats.clone(), Arc::clone(&busy));
                tokio::spawn(async move { compute(&seats, &busy, LONG, work).await })
            })
            .collect();
        while seats.all.available_permits() > 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(compute(&seats, &other, LONG, || 7).await, Ok(7));
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    #[contract("F82")]
    async fn a_client_that_hangs_up_ends_its_computation() {
        let seats = ComputePool::new(2);
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
            let (seats, model) = (seats.clone(), Arc::clone(&model));
            async move { compute(&seats, &model, LONG, work).await }
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
    fn a_model_that_is_late_again_and_again_rests_for_longer_and_longer() {
        let (mut lateness, now) = (LateStreak::default(), Moment::default());
        assert_eq!((lateness.late(now), lateness.late(now)), (None, None));
        assert_eq!(lateness.late(now), Some(REST));
        assert_eq!(lateness.late(now), Some(REST * 2));
        for _ in 0..40 {
            lateness.late(now);
        }
        assert_eq!(lateness.late(now), Some(LONGEST_REST));
        lateness.in_time();
        assert_eq!(lateness.late(now), None);
    }
}
