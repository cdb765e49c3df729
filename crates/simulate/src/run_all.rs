//! Runs several experiments on several cores.

use std::{
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use crate::{Cell, CellReport, Trace, run};

/// Runs every cell on up to `threads` threads, which end before this function does. The reports are
/// in the order of the cells, whichever finishes first. Calls `progress` with the number of finished
/// cells, from 0 on. Once `stop` is true no further cell begins, and its report is missing.
pub fn run_all(
    trace: &Trace,
    cells: &[Cell],
    threads: usize,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(usize),
) -> Vec<CellReport> {
    let next = AtomicUsize::new(0);
    let mut reports: Vec<Option<CellReport>> = vec![None; cells.len()];
    progress(0);
    thread::scope(|scope| {
        // Room for all reports, so that no thread waits to send.
        let (done, inbox) = mpsc::sync_channel(cells.len());
        for _ in 0..threads.clamp(1, cells.len().max(1)) {
            let (done, next) = (done.clone(), &next);
            scope.spawn(move || {
                while let Some((index, cell)) = take(next, cells)
                    && !stop.load(Ordering::Relaxed)
                {
                    if done.send((index, run(trace, cell))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(done);
        for (count, (index, report)) in inbox.iter().enumerate() {
            reports[index] = Some(report);
            progress(count + 1);
        }
    });
    reports.into_iter().flatten().collect()
}

/// Returns the next cell that no thread has taken.
fn take<'a>(next: &AtomicUsize, cells: &'a [Cell]) -> Option<(usize, &'a Cell)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    cells.get(index).map(|cell| (index, cell))
}
