//! Running one task.

use std::{any::Any, future::Future, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use resilience::Backoff;
use tokio::time::{Instant, sleep};

use crate::{injection, metrics};

/// Pause after a first panic: short, because other code waits for the task.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause of a task that panics in every attempt.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A task that runs this long without a panic counts as healthy again.
const WELL: Duration = Duration::from_secs(10);

/// A long-lived task, over all of its attempts.
#[derive(Debug)]
pub struct Task {
    name: &'static str,
    backoff: Backoff,
    pause: Duration,
    in_a_row: u32,
}

/// An attempt ended with a panic, which is counted and logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskPanic {
    /// Panics without ten quiet seconds between them, this one included.
    pub in_a_row: u32,
}

impl Task {
    /// Creates a task with this name, which logs and metrics show.
    pub fn new(name: &'static str) -> Self {
        metrics::announce(name);
        let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE).reset_after(WELL);
        Self {
            name,
            backoff,
            pause: Duration::ZERO,
            in_a_row: 0,
        }
    }

    /// Runs an attempt to its end.
    pub async fn run<T>(&mut self, attempt: impl Future<Output = T>) -> Result<T, TaskPanic> {
        let begun = Instant::now();
        let panic = match caught(self.name, attempt).await {
            Ok(done) => return Ok(done),
            Err(panic) => panic,
        };
        let lasted = begun.elapsed();
        self.in_a_row = if lasted >= WELL {
            1
        } else {
            self.in_a_row.saturating_add(1)
        };
        self.pause = self.backoff.after(lasted);
        let (task, in_a_row, pause_ms) = (self.name, self.in_a_row, self.pause.as_secs_f64() * 1e3);
        tracing::error!(task, panic = %message(&*panic), in_a_row, pause_ms, "task panicked, restarting it");
        Err(TaskPanic { in_a_row })
    }

    /// Waits for the pause that the latest panic requires.
    pub async fn pause(&self) {
        sleep(self.pause).await;
    }

    /// Runs an attempt to its end; after a panic waits and returns `None` when the next attempt is
    /// due.
    pub async fn attempt<T>(&mut self, attempt: impl Future<Output = T>) -> Option<T> {
        let done = self.run(attempt).await.ok();
        if done.is_none() {
            self.pause().await;
        }
        done
    }
}

/// Runs the future that `start` returns, again after each panic, until it ends.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let mut attempts = 0;
/// let attempts = supervision::supervise("example", || {
///     attempts += 1;
///     async move { if attempts < 3 { panic!("attempt {attempts}") } else { attempts } }
/// })
/// .await;
/// assert_eq!(attempts, 3);
/// # });
/// ```
pub async fn supervise<T, F: Future<Output = T>>(
    name: &'static str,
    mut start: impl FnMut() -> F,
) -> T {
    let mut task = Task::new(name);
    loop {
        // `start` itself may panic as well.
        if let Some(done) = task.attempt(async { start().await }).await {
            return done;
        }
    }
}

/// Runs a task once. `None`: it panicked, which is counted and logged; its owner notices the end
/// and starts another.
pub async fn contain<T>(name: &'static str, task: impl Future<Output = T>) -> Option<T> {
    metrics::announce(name);
    let panic = match caught(name, task).await {
        Ok(done) => return Some(done),
        Err(panic) => panic,
    };
    tracing::error!(task = name, panic = %message(&*panic), "task panicked");
    None
}

async fn caught<T>(
    name: &'static str,
    attempt: impl Future<Output = T>,
) -> Result<T, Box<dyn Any + Send>> {
    let attempt = async {
        tokio::select! {
            biased;
            done = attempt => done,
            never = injection::strikes(name) => match never {},
        }
    };
    // The code that starts a task explains why the state that an attempt leaves behind is
    // consistent.
    AssertUnwindSafe(attempt)
        .catch_unwind()
        .await
        .inspect_err(|_| metrics::count(name))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use contract_id::contract;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    #[contract("F96")]
    async fn a_task_that_panics_is_counted_and_started_again_after_a_pause_that_doubles() {
        let starts = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let begun = Instant::now();
        let seen = Arc::clone(&starts);
        let task = tokio::spawn(supervise("doubling", move || {
            let seen = Arc::clone(&seen);
            async move {
                seen.lock().push(begun.elapsed());
                panic!("at every start")
            }
        }));
        sleep(Duration::from_secs(60)).await;
        task.abort();
        let _: Result<(), _> = task.await;
        let starts = starts.lock().clone();
        let pauses: Vec<u128> = starts
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).as_millis())
            .collect();
        // The timer's resolution is one millisecond.
        let expected = [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000];
        for (pause, expected) in pauses.iter().zip(expected) {
            assert!(pause.abs_diff(expected) <= 2, "{pauses:?}");
        }
        assert!(pauses.len() >= expected.len(), "{pauses:?}");
        assert_eq!(metrics::counted("doubling"), starts.len() as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ran_well_in_between_is_started_again_at_once() {
        let mut task = Task::new("well");
        for in_a_row in 1..=4 {
            let panicked: Result<(), _> = task.run(async { panic!("soon") }).await;
            assert_eq!(panicked, Err(TaskPanic { in_a_row }));
        }
        let late = async {
            sleep(WELL).await;
            panic!("late")
        };
        let panicked: Result<(), _> = task.run(late).await;
        assert_eq!(panicked, Err(TaskPanic { in_a_row: 1 }));
        let before = Instant::now();
        task.pause().await;
        assert!(before.elapsed() <= FIRST_PAUSE + Duration::from_millis(2));
    }

    #[tokio::test(start_paused = true)]
    async fn state_borrowed_by_an_attempt_is_available_to_the_next_one() {
        async fn count_to_five(count: &mut u32) {
            *count += 1;
            tokio::task::yield_now().await;
            assert!(*count >= 5, "not yet");
        }
        let (mut task, mut count) = (Task::new("state"), 0);
        while task.attempt(count_to_five(&mut count)).await.is_none() {}
        assert_eq!((count, metrics::counted("state")), (5, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_supervised_task_ends_when_its_owner_aborts_it_also_while_it_waits_to_be_restarted() {
        let attempts = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&attempts);
        let task = tokio::spawn(supervise("aborted", move || {
            seen.fetch_add(1, Ordering::Relaxed);
            async { panic!("at every start") }
        }));
        sleep(Duration::from_secs(20)).await;
        task.abort();
        let ended: Result<Result<(), _>, _> = timeout(Duration::from_secs(1), task).await;
        assert!(ended.expect("it ends").is_err_and(|end| end.is_cancelled()));
        let before = attempts.load(Ordering::Relaxed);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(attempts.load(Ordering::Relaxed), before);
    }

    #[tokio::test]
    async fn a_contained_task_ends_with_its_panic_and_what_it_owned_is_dropped() {
        let (sender, mut receiver) = tokio::sync::mpsc::channel::<()>(1);
        let ended: Option<()> = contain("contained", async move {
            let _sender = sender;
            tokio::task::yield_now().await;
            panic!("{} words", 3)
        })
        .await;
        assert_eq!(
            (ended, receiver.recv().await, metrics::counted("contained")),
            (None, None, 1)
        );
        assert_eq!(contain("contained", async { 7 }).await, Some(7));
    }
}
