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

use std::{fmt, sync::Arc};

use kv_blocks::{BlockSize, PromptBlocks, SequenceHash};
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use routing::{DecisionLogSection, receipt::Receipt};
use serde::Serialize;
use supervision::supervise;
use tokio::sync::watch;

use self::{file::LogFile, queue::LogEntryQueue};

/// Bytes of lines per write.
const CHUNK: usize = 1 << 20;

/// Queues receipts and writes them.
#[derive(Debug)]
pub struct DecisionLog {
    settings: DecisionLogSection,
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
    pub fn new(settings: DecisionLogSection, registry: &mut Registry) -> Arc<Self> {
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
            .and_then(|decision| BlockSize::new(decision.winner.block_size.into()).ok());
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
            let writing = runtime::spawn_blocking(move || {
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

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf, time::Duration};

    use proxy::FakeReply;

    use super::*;
    use crate::request::{record::Recorder, test_gateway::TestGateway};

    /// A gateway that logs to a file of this folder, and the task that writes it.
    struct LoggedGateway {
        test: TestGateway,
        path: PathBuf,
        stop: watch::Sender<bool>,
        task: tokio::task::JoinHandle<()>,
        registry: Registry,
    }

    impl LoggedGateway {
        fn new(path: PathBuf, include_request_text: bool) -> Self {
            let settings = DecisionLogSection {
                path: path.clone(),
                interval: Duration::from_millis(5),
                chains: true,
                include_request_text,
            };
            let mut registry = Registry::default();
            let log = DecisionLog::new(settings, &mut registry);
            let (stop, stopping) = watch::channel(false);
            let mut test = TestGateway::new();
            let mut recorder = Recorder::clone(&test.gateway.recorder);
            recorder.receipts.log = Some(Arc::clone(&log));
            test.gateway.recorder = Arc::new(recorder);
            Self {
                test,
                path,
                stop,
                task: tokio::spawn(log.write(stopping)),
                registry,
            }
        }

        async fn send(&self, status: u16) {
            let mut guard = self.test.guard();
            let body = br#"{"model":"m","messages":[{"role":"user","content":"a secret"}]}"#;
            guard.text(&dialect::view(dialect::Dialect::Chat, body).expect("a good body"));
            self.test.script(1, FakeReply::json(status, "{}"));
            self.test.deliver_chat(guard).await;
        }

        /// Stops the task, and returns the lines and the page of its counters.
        async fn ended(self) -> (Vec<serde_json::Value>, String) {
            self.stop.send(true).expect("the task runs");
            self.task.await.expect("it ends");
            let text = fs::read_to_string(&self.path).unwrap_or_default();
            let lines = text
                .lines()
                .map(|line| serde_json::from_str(line).expect("JSON"));
            let mut page = String::new();
            prometheus_client::encoding::text::encode(&mut page, &self.registry).expect("a page");
            (lines.collect(), page)
        }
    }

    #[tokio::test]
    async fn each_request_is_one_line_that_is_complete_and_has_no_text() {
        let folder = tempfile::tempdir().expect("a folder");
        let logged = LoggedGateway::new(folder.path().join("log.jsonl"), false);
        for status in [200, 400] {
            logged.send(status).await;
        }
        let (lines, page) = logged.ended().await;
        let kinds: Vec<_> = lines
            .iter()
            .map(|line| line["outcome"]["outcome"].clone())
            .collect();
        assert_eq!(lines.len(), 2, "{kinds:?}");
        for line in &lines {
            assert_eq!(line["attempts"].as_array().map(Vec::len), Some(1), "{line}");
            assert!(!line.to_string().contains("secret"), "{line}");
        }
        assert!(
            page.contains("warmroute_decision_log_written_total 2\n"),
            "{page}"
        );
    }

    #[tokio::test]
    async fn the_text_of_a_prompt_is_logged_only_where_that_is_configured() {
        let folder = tempfile::tempdir().expect("a folder");
        let logged = LoggedGateway::new(folder.path().join("log.jsonl"), true);
        logged.send(200).await;
        let (lines, _) = logged.ended().await;
        let text = lines[0]["request_text"].as_str().expect("the text");
        assert!(text.contains("a secret"), "{text}");
        assert!(!format!("{:?}", RequestText::new("a secret".to_owned())).contains("secret"));
    }

    #[tokio::test]
    async fn lines_that_cannot_be_written_are_counted_as_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let logged = LoggedGateway::new(folder.path().join("missing").join("log.jsonl"), false);
        logged.send(200).await;
        let (lines, page) = logged.ended().await;
        assert!(lines.is_empty());
        let lost = "warmroute_decision_log_lost_total{reason=\"write_failed\"} 1\n";
        assert!(page.contains(lost), "{page}");
    }
}
