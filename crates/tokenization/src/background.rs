//! Prompts that are too long for their requests, tokenized behind them.
//!
//! A request does not wait for them: it goes by the text of its prompt. The next turn of the
//! conversation finds this one known.
//!
//! **Invariant**: one prompt of a model at a time, at most [`WAITING_BYTES`] of bodies wait or are
//! being tokenized, and none under memory pressure.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use dialect::{Dialect, MemberSpans};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use resilience::{ByteBudget, OutcomeCounters};
use tokio::task::JoinSet;

use crate::{
    compute_pool::{ComputeError, ComputePool},
    local::LocalTokenizer,
};

/// Bodies of all prompts that wait or are being tokenized; further ones are dropped.
const WAITING_BYTES: usize = 32 << 20;
/// Longest body: the memory of conversations remembers no longer one.
const LONGEST: usize = 4 << 20;
/// Longest time until a prompt is tokenized, with its wait.
const LONGEST_TIME: Duration = Duration::from_secs(10);
/// Two at a time: one of each model.
const PERMITS: usize = 2;

/// Results: computed, or one of [`ComputeError`], or dropped before it began.
const COMPUTED: &str = "computed";
const DROPPED: &str = "dropped";

/// Tokenizes long prompts in the background.
#[derive(Debug)]
pub(crate) struct BackgroundTokenizer {
    pool: ComputePool,
    waiting: ByteBudget,
    closed: AtomicBool,
    /// Each ends within [`LONGEST_TIME`]; bounded by the byte budget.
    tasks: Mutex<JoinSet<()>>,
    results: OutcomeCounters,
}

impl BackgroundTokenizer {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let help =
            "Prompts too long for their requests, by what came of tokenizing them behind those";
        let all = [
            COMPUTED,
            ComputeError::Late.as_str(),
            ComputeError::Paused.as_str(),
            ComputeError::Failed.as_str(),
            DROPPED,
        ];
        let name = "warmroute_background_computations";
        Self {
            pool: ComputePool::new(PERMITS),
            waiting: ByteBudget::new(WAITING_BYTES),
            closed: AtomicBool::new(false),
            tasks: Mutex::default(),
            results: OutcomeCounters::registered(registry, name, help, &all),
        }
    }

    /// Sets whether prompts are taken. If not, those that wait are dropped too.
    pub(crate) fn set_accepts_new(&self, accepts: bool) {
        self.closed.store(!accepts, Relaxed);
        if !accepts {
            self.tasks.lock().abort_all();
        }
    }

    /// Tokenizes the prompt of a body, unless too much waits.
    pub(crate) fn submit(
        &self,
        tokenizer: LocalTokenizer,
        (dialect, spans): (Dialect, MemberSpans),
        bytes: Bytes,
    ) {
        // A budget of zero is the choice to tokenize nothing.
        if tokenizer.budget.is_zero() || !tokenizer.model.continues_conversations() {
            return;
        }
        let permit = (bytes.len() <= LONGEST && !self.closed.load(Relaxed))
            .then(|| self.waiting.try_take(bytes.len()))
            .flatten();
        let Some(permit) = permit else {
            self.results.count(DROPPED);
            return;
        };
        let (pool, results) = (self.pool.clone(), self.results.clone());
        let unhurried = LocalTokenizer {
            budget: Duration::MAX,
            ..tokenizer
        };
        let task = async move {
            let _permit = permit;
            let (model, clock) = (unhurried.model.clone(), unhurried.clock);
            let work = move || {
                let view = spans.view(dialect, &bytes).ok()?;
                unhurried.tokenize(&view).ok().map(drop)
            };
            let done = pool.compute(&model, LONGEST_TIME, clock, work).await;
            results.count(done.map_or_else(ComputeError::as_str, |_| COMPUTED));
        };
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Returns whether no prompt waits or is being tokenized.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.is_empty()
    }
}
