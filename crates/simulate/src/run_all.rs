//! Runs several experiments on several cores.

use std::{
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use crate::{Cell, CellReport, Trace, search::play};

/// Runs every cell on up to `threads` threads, which end before this function does; a cell with a
/// goal ([`SessionPlan::ttft_goal`](crate::SessionPlan)) several times. The reports are in the order
/// of the cells, whichever finishes first. Calls `progress` with the number of finished cells, from 0
/// on. Once `stop` is true no further cell begins, and its report is missing.
pub fn run_all(
    trace: &Trace,
    cells: &[Cell],
    threads: usize,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(usize),
) -> Vec<CellReport> {
    run_each(cells, threads, stop, progress, |cell| play(trace, cell))
}

/// Like [`run_all`], for any kind of experiment and result.
pub(crate) fn run_each<T: Sync, R: Send>(
    experiments: &[T],
    threads: usize,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(usize),
    play: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<Option<R>> = Vec::new();
    results.resize_with(experiments.len(), || None);
    progress(0);
    thread::scope(|scope| {
        // Room for all results, so that no thread waits to send.
        let (done, inbox) = mpsc::sync_channel(experiments.len());
        for _ in 0..threads.clamp(1, experiments.len().max(1)) {
            let (done, next, play) = (done.clone(), &next, &play);
            scope.spawn(move || {
                while let Some((index, experiment)) = take(next, experiments)
                    && !stop.load(Ordering::Relaxed)
                {
                    if done.send((index, play(experiment))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(done);
        for (count, (index, result)) in inbox.iter().enumerate() {
            results[index] = Some(result);
            progress(count + 1);
        }
    });
    results.into_iter().flatten().collect()
}

/// Returns the next experiment that no thread has taken.
fn take<'a, T>(next: &AtomicUsize, experiments: &'a [T]) -> Option<(usize, &'a T)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    experiments.get(index).map(|experiment| (index, experiment))
}
