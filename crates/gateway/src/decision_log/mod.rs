//! The decision log: the receipt of every forwarded request as one JSON line, written when the
//! request is over.
//!
//! A request submits its receipt and continues; one task serializes the receipts and writes them,
//! at an interval or when much is queued. A receipt has no prompt text, and a line has it only if
//! configured. The router does not rotate files: it opens the file for each write, so a moved file
//! is created again.
//!
//! **Invariant**: no request waits for the log, and its queue has a bound; a line that does not
//! fit, or cannot be written, is lost and counted.

mod file;
mod queue;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use kv_blocks::{BlockSize, PromptBlocks, SequenceHash};
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use routing::receipt::Receipt;
use serde::Serialize;
use supervision::supervise;
use tokio::sync::watch;

use self::{file::LogFile, queue::LogEntryQueue};

/// Settings of the decision log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionLogSettings {
    /// The file to append to.
    pub path: PathBuf,
    /// Time between writes.
    pub interval: Duration,
    /// Whether a line has the hashes of the prompt's blocks, which show what it has in common with
    /// others.
    pub chains: bool,
    /// Whether it has the prompt's text.
    pub include_request_text: bool,
}

/// Bytes of lines per write.
const CHUNK: usize = 1 << 20;

/// Queues receipts and writes them.
#[derive(Debug)]
pub struct DecisionLog {
    settings: DecisionLogSettings,
    queue: LogEntryQueue,
    written: Counter,
    lost: Family<[(&'static str, &'static str); 1], Counter>,
    errors: Family<[(&'static str, &'static str); 1], Counter>,
}

/// A client's text; hidden from `Debug` output.
pub(crate) struct RequestText(Box<str>);

impl RequestText {
    pub(crate) fn new(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for RequestText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// One line.
#[derive(Debug)]
struct LogEntry {
    receipt: Receipt,
    chain: Option<Arc<[SequenceHash]>>,
    text: Option<RequestText>,
}

#[derive(Serialize)]
struct LogLine<'a> {
    #[serde(flatten)]
    receipt: &'a Receipt,
    #[serde(skip_serializing_if = "Option::is_none")]
    chain: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_text: Option<&'a str>,
}

const QUEUE_FULL: [(&str, &str); 1] = [("reason", "queue_full")];
const NOT_WRITTEN: [(&str, &str); 1] = [("reason", "write_failed")];
const SINK: [(&str, &str); 1] = [("sink", "decision_log")];

/// Lines taken from the queue; counted as lost if a panic drops them unwritten.
struct UnwrittenLines<'a> {
    log: &'a DecisionLog,
    lines: u64,
}

impl Drop for UnwrittenLines<'_> {
    fn drop(&mut self) {
        self.log.lost.get_or_create(&NOT_WRITTEN).inc_by(self.lines);
    }
}

impl DecisionLog {
    /// Registers the metric families; nothing is written before [`DecisionLog::write`] runs.
    pub fn new(settings: DecisionLogSettings, registry: &mut Registry) -> Arc<Self> {
        let log = Self {
            settings,
            queue: LogEntryQueue::default(),
            written: Counter::default(),
            lost: Family::default(),
            errors: Family::default(),
        };
        for reason in [QUEUE_FULL, NOT_WRITTEN] {
            drop(log.lost.get_or_create(&reason));
        }
        drop(log.errors.get_or_create(&SINK));
        registry.register(
            "warmroute_decision_log_written",
            "Lines of the decision log",
            log.written.clone(),
        );
        registry.register(
            "warmroute_decision_log_lost",
            "Receipts that did not get into it",
            log.lost.clone(),
        );
        registry.register(
            "warmroute_sink_errors",
            "Writes that failed",
            log.errors.clone(),
        );
        Arc::new(log)
    }

    /// Returns whether lines have the hashes of the prompt's blocks.
    pub(crate) fn wants_chains(&self) -> bool {
        self.settings.chains
    }

    /// Returns whether lines have the prompt's text.
    pub(crate) fn wants_text(&self) -> bool {
        self.settings.include_request_text
    }

    /// Queues the receipt of a finished request, with the prompt of its decision.
    pub(crate) fn submit(
        &self,
        receipt: Receipt,
        prompt: Option<&PromptBlocks>,
        text: Option<RequestText>,
    ) {
        let size = receipt
            .decision()
            .and_then(|decision| BlockSize::new(decision.block_size.into()).ok());
        // The decision has hashed it already.
        let chain = prompt.zip(size).map(|(prompt, size)| prompt.chain(size));
        if !self.queue.push(LogEntry {
            receipt,
            chain,
            text,
        }) {
            self.lost.get_or_create(&QUEUE_FULL).inc();
        }
    }

    /// Writes submitted receipts until `stop` is set, and then the rest.
    pub async fn write(self: Arc<Self>, stop: watch::Receiver<bool>) {
        // Queued lines survive a panic; those that were just being written are lost, and counted.
        supervise("decision_log", || {
            Arc::clone(&self).write_until(stop.clone())
        })
        .await;
    }

    async fn write_until(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let mut file = LogFile::new(self.settings.path.clone());
        // An unwritable path is reported at the start, and not with the first request.
        let mut entries = Vec::new();
        loop {
            let unwritten = UnwrittenLines {
                log: &self,
                lines: u64::try_from(entries.len()).unwrap_or(u64::MAX),
            };
            let log = Arc::clone(&self);
            let writing = tokio::task::spawn_blocking(move || {
                log.append(&mut file, &entries);
                file
            });
            file = match writing.await {
                Ok(file) => {
                    // Written, or counted as lost.
                    std::mem::forget(unwritten);
                    file
                }
                Err(_) => LogFile::new(self.settings.path.clone()),
            };
            if *stop.borrow() && self.queue.is_empty() {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(self.settings.interval) => {}
                () = self.queue.half_full() => {}
                // A dropped sender means the end.
                _ = stop.wait_for(|stopping| *stopping) => {}
            }
            entries = self.queue.take();
            if entries.is_empty() && stop.has_changed().is_err() {
                break;
            }
        }
    }

    fn append(&self, file: &mut LogFile, entries: &[LogEntry]) {
        let mut lines = Vec::new();
        let mut count = 0;
        for entry in entries {
            let chain = entry
                .chain
                .as_ref()
                .map(|chain| chain.iter().map(ToString::to_string).collect());
            // The router's own types have string keys, and writing to a `Vec` cannot fail.
            let request_text = entry.text.as_ref().map(|text| &*text.0);
            if serde_json::to_writer(
                &mut lines,
                &LogLine {
                    receipt: &entry.receipt,
                    chain,
                    request_text,
                },
            )
            .is_ok()
            {
                lines.push(b'\n');
                count += 1;
            }
            if lines.len() >= CHUNK {
                self.append_lines(file, &lines, count);
                lines.clear();
                count = 0;
            }
        }
        self.append_lines(file, &lines, count);
    }

    fn append_lines(&self, file: &mut LogFile, lines: &[u8], count: u64) {
        if file.append(lines) {
            self.written.inc_by(count);
        } else {
            self.errors.get_or_create(&SINK).inc();
            self.lost.get_or_create(&NOT_WRITTEN).inc_by(count);
        }
    }
}
