//! Runs experiments on all cores, with their progress on a terminal.

use std::{
    io::{IsTerminal, Write},
    num::NonZeroUsize,
    sync::atomic::AtomicBool,
    thread,
};

use simulate::{Cell, CellReport, Trace};

/// Runs every cell; the reports are in the order of the cells, whichever finishes first.
pub(super) fn run(trace: &Trace, cells: &[Cell]) -> Vec<CellReport> {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let progress = ProgressLine::new(cells.len());
    let never = AtomicBool::new(false);
    let reports = simulate::run_all(trace, cells, threads, &never, &mut |done| {
        progress.show(done);
    });
    progress.clear();
    reports
}

/// Width of the bar, in characters.
const BAR: usize = 30;

/// One line on a terminal, overwritten.
pub(crate) struct ProgressLine {
    cells: usize,
    shown: bool,
}

impl ProgressLine {
    /// Creates the line of so many experiments.
    pub(crate) fn new(cells: usize) -> Self {
        Self {
            cells,
            shown: std::io::stderr().is_terminal(),
        }
    }

    pub(crate) fn show(&self, done: usize) {
        let filled = BAR * done / self.cells.max(1);
        self.write(&format!(
            "\r[{:<BAR$}] {done} of {} experiments",
            "#".repeat(filled),
            self.cells
        ));
    }

    pub(crate) fn clear(&self) {
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
