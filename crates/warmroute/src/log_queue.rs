//! Queue of log lines for stderr: bounded, with one writer thread.
//!
//! The reader of the log may be slow or stuck (a full pipe of a container's log driver, a paused
//! terminal). No logging thread waits for it: lines beyond the bound are dropped and counted.
//!
//! **Invariant**: lines are written whole and in the order in which they were pushed.

use std::{
    collections::VecDeque,
    io::Write,
    sync::{LazyLock, OnceLock},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// Most bytes of queued lines; further lines are dropped.
const MOST_BYTES: usize = 1 << 20;
/// Overhead counted per line besides its text, in bytes.
const LINE_OVERHEAD: usize = 32;
/// Bytes written at a time, besides the queued ones.
const CHUNK: usize = 64 * 1024;
/// Longest wait for the remaining lines at the end of the process.
const FAREWELL: Duration = Duration::from_secs(1);

const SINK: [(&str, &str); 1] = [("sink", "log")];

static DROPPED: LazyLock<Family<[(&'static str, &'static str); 1], Counter>> =
    LazyLock::new(Family::default);

/// The log of this process, once it was started.
static LOG: OnceLock<&'static LogQueue> = OnceLock::new();

#[derive(Debug, Default)]
struct LogQueue {
    waiting: Mutex<PendingLines>,
    /// Signals queued lines.
    filled: Condvar,
    /// Signals that everything is written.
    drained: Condvar,
}

#[derive(Debug, Default)]
struct PendingLines {
    lines: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// Whether a chunk was taken and is not written yet.
    writing: bool,
}

/// Starts the writer thread. Before that, and if no thread can be started, the logging thread
/// writes.
pub(crate) fn start() {
    if LOG.get().is_some() {
        return;
    }
    // Lives as long as the process, of which it is the only one.
    let log: &'static LogQueue = Box::leak(Box::default());
    if runtime::spawn_thread("log", || log.write_all_to(&mut std::io::stderr())).is_ok() {
        let _ = LOG.set(log);
    }
}

/// Queues lines, each with its end.
pub(crate) fn push(lines: &[u8]) {
    match LOG.get() {
        Some(log) => log.push(lines),
        None => drop(std::io::stderr().lock().write_all(lines)),
    }
}

/// Waits, for a bounded time, until all queued lines are written.
pub(crate) fn finish() {
    if let Some(log) = LOG.get() {
        log.wait_until_drained(FAREWELL);
    }
}

/// Registers `warmroute_telemetry_dropped_total{sink="log"}`.
pub(crate) fn register(registry: &mut Registry) {
    drop(DROPPED.get_or_create(&SINK));
    let help = "Lines that were not written because whoever reads them was too slow";
    registry.register("warmroute_telemetry_dropped", help, DROPPED.clone());
}

impl LogQueue {
    fn push(&self, lines: &[u8]) {
        let cost = lines.len() + LINE_OVERHEAD;
        let mut waiting = self.waiting.lock();
        if waiting.bytes + cost > MOST_BYTES {
            drop(waiting);
            DROPPED.get_or_create(&SINK).inc();
            return;
        }
        waiting.bytes += cost;
        waiting.lines.push_back(lines.into());
        drop(waiting);
        self.filled.notify_one();
    }

    /// Writes queued lines; never returns. A closed output is no error.
    fn write_all_to(&self, out: &mut impl Write) -> ! {
        let mut reported = 0;
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            self.take(&mut chunk);
            let _ = out.write_all(&chunk).and_then(|()| out.flush());
            let dropped = DROPPED.get_or_create(&SINK).get();
            if dropped > reported {
                tracing::warn!(
                    lines = dropped - reported,
                    "log lines were dropped: whoever reads the log was too slow"
                );
                reported = dropped;
            }
        }
    }

    /// Waits for lines, and moves a chunk of them into `chunk`; a longer line goes alone.
    fn take(&self, chunk: &mut Vec<u8>) {
        chunk.clear();
        let mut waiting = self.waiting.lock();
        waiting.writing = false;
        while waiting.lines.is_empty() {
            self.drained.notify_all();
            self.filled.wait(&mut waiting);
        }
        while let Some(lines) = waiting
            .lines
            .pop_front_if(|lines| chunk.is_empty() || chunk.len() + lines.len() <= CHUNK)
        {
            waiting.bytes -= lines.len() + LINE_OVERHEAD;
            chunk.extend_from_slice(&lines);
        }
        waiting.writing = true;
    }

    fn wait_until_drained(&self, longest: Duration) {
        let mut waiting = self.waiting.lock();
        let is_busy = |waiting: &mut PendingLines| waiting.writing || !waiting.lines.is_empty();
        self.drained.wait_while_for(&mut waiting, is_busy, longest);
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::mpsc, thread};

    use super::*;

    /// A reader that takes one write per permit.
    struct SlowReader {
        permits: mpsc::Receiver<()>,
        written: mpsc::Sender<Vec<u8>>,
    }

    impl Write for SlowReader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.permits.recv();
            let _ = self.written.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn queue() -> (&'static LogQueue, mpsc::Sender<()>, mpsc::Receiver<Vec<u8>>) {
        let log: &'static LogQueue = Box::leak(Box::default());
        let ((permit, permits), (written, read)) = (mpsc::channel(), mpsc::channel());
        // The thread ends with the test's process, as in a program.
        thread::spawn(move || log.write_all_to(&mut SlowReader { permits, written }));
        (log, permit, read)
    }

    #[test]
    fn a_reader_that_takes_nothing_costs_lines_beyond_the_bound_and_nobody_any_time() {
        let (log, permit, read) = queue();
        let line = [b'x'; 1000];
        let before = DROPPED.get_or_create(&SINK).get();
        for _ in 0..5_000 {
            log.push(&line);
        }
        let dropped = DROPPED.get_or_create(&SINK).get() - before;
        assert!((3_500..5_000).contains(&dropped), "{dropped}");
        assert!(log.waiting.lock().bytes <= MOST_BYTES);
        log.wait_until_drained(Duration::from_millis(50));
        assert!(
            !log.waiting.lock().lines.is_empty(),
            "the wait for the rest is bounded"
        );
        drop(permit);
        let mut bytes = 0;
        while bytes < (5_000 - dropped) * 1000 {
            bytes += read.recv().unwrap().len() as u64;
        }
        log.wait_until_drained(Duration::from_secs(20));
        assert!(log.waiting.lock().lines.is_empty());
    }

    #[test]
    fn lines_are_written_in_their_order_and_a_long_one_alone() {
        let (log, permit, read) = queue();
        log.push(b"first\n");
        log.push(&[b'l'; CHUNK + 1]);
        log.push(b"second\n");
        log.push(b"third\n");
        drop(permit);
        log.wait_until_drained(Duration::from_secs(20));
        let written: Vec<u8> = read.try_iter().flatten().collect();
        let long = [b'l'; CHUNK + 1];
        assert_eq!(
            written,
            [b"first\n".as_slice(), long.as_slice(), b"second\nthird\n"].concat()
        );
    }
}
