//! Runs experiments on all cores.

use std::{
    io::{IsTerminal, Write},
    num::NonZeroUsize,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use simulate::{Cell, CellReport, Trace};

/// Runs every cell; the reports are in the order of the cells, whichever finishes first.
pub(super) fn run(trace: &Trace, cells: &[Cell]) -> Vec<CellReport> {
    let threads = thread::available_parallelism()
        .map_or(1, NonZeroUsize::get)
        .min(cells.len());
    let next = AtomicUsize::new(0);
    let mut reports: Vec<Option<CellReport>> = vec![None; cells.len()];
    let progress = ProgressLine {
        cells: cells.len(),
        shown: std::io::stderr().is_terminal(),
    };
    progress.show(0);
    thread::scope(|scope| {
        // Room for all reports, so that no thread waits to send.
        let (done, inbox) = mpsc::sync_channel(cells.len());
        for _ in 0..threads {
            let (done, next) = (done.clone(), &next);
            scope.spawn(move || {
                while let Some((index, cell)) = take(next, cells) {
                    if done.send((index, simulate::run(trace, cell))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(done);
        for (count, (index, report)) in inbox.iter().enumerate() {
            reports[index] = Some(report);
            progress.show(count + 1);
        }
    });
    progress.clear();
    reports.into_iter().flatten().collect()
}

/// Returns the next cell that no thread has taken.
fn take<'a>(next: &AtomicUsize, cells: &'a [Cell]) -> Option<(usize, &'a Cell)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    cells.get(index).map(|cell| (index, cell))
}

/// Width of the bar, in characters.
const BAR: usize = 30;

/// One line on a terminal, overwritten.
struct ProgressLine {
    cells: usize,
    shown: bool,
}

impl ProgressLine {
    fn show(&self, done: usize) {
        let filled = BAR * done / self.cells.max(1);
        self.write(&format!(
            "\r[{:<BAR$}] {done} of {} experiments",
            "#".repeat(filled),
            self.cells
        ));
    }

    fn clear(&self) {
        self.write("\r\x1b[K");
    }

    fn write(&self, text: &str) {
        if self.shown {
            let mut stderr = std::io::stderr().lock();
            let _ = stderr
                .write_all(text.as_bytes())
                .and_then(|()| stderr.flush());
        }
    }
}
