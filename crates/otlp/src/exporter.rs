//! The task that sends queued spans to the collector.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use config::TracingSection;
use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use kv_blocks::Moment;
use net::{Clock, WorkerUrl, fetch};
use prometheus_client::registry::Registry;
use supervision::supervise;
use tokio::{sync::watch, time::sleep};

use crate::{
    ExporterError, LostReason, Span, SpanQueue,
    protobuf::{Encoder, rejected},
};

/// The path of traces below the collector's base URL.
const PATH: &str = "/v1/traces";
/// Interval between exports; shorter if many spans wait.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most spans of one export.
const BATCH: usize = 1024;
/// Time limit of one export.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of a reply.
const REPLY_BYTES: usize = 64 * 1024;

/// Sends queued spans to a collector.
#[derive(Debug)]
pub struct SpanExporter {
    queue: Arc<SpanQueue>,
    collector: WorkerUrl,
    encoder: Encoder,
    clock: Clock,
}

/// Whether the last export failed: an outage is logged once.
#[derive(Debug, Default)]
struct Outage(bool);

impl SpanExporter {
    /// Creates the exporter with an empty queue, and registers its metrics; `None` without an
    /// endpoint. Nothing is exported before [`SpanExporter::run`] runs.
    ///
    /// # Errors
    /// The endpoint is no URL.
    pub fn new(
        section: &TracingSection,
        clock: Clock,
        registry: &mut Registry,
    ) -> Result<Option<Self>, ExporterError> {
        let Some(endpoint) = &section.otlp_endpoint else {
            return Ok(None);
        };
        // A URL with the path of traces is common, too.
        let endpoint = endpoint.trim_end_matches('/');
        let collector = endpoint.strip_suffix(PATH).unwrap_or(endpoint).parse()?;
        Ok(Some(Self {
            queue: Arc::new(SpanQueue::registered(registry)),
            collector,
            encoder: Encoder::new(runtime::random()),
            clock,
        }))
    }

    /// Returns the queue that it exports.
    pub fn queue(&self) -> Arc<SpanQueue> {
        Arc::clone(&self.queue)
    }

    /// Exports queued spans until `stop` is set, and then the rest.
    pub async fn run(self, stop: watch::Receiver<bool>) {
        // Queued spans survive a panic; those of the export that panicked are lost.
        supervise("span_exporter", || self.export_until(stop.clone())).await;
    }

    async fn export_until(&self, mut stop: watch::Receiver<bool>) {
        let mut outage = Outage::default();
        loop {
            // Spans that are submitted later are those of requests that outlast the drain.
            let is_last = *stop.borrow();
            for batch in self.queue.take().chunks(BATCH) {
                self.export(batch, &mut outage).await;
            }
            if is_last {
                return;
            }
            tokio::select! {
                () = sleep(INTERVAL) => {}
                () = self.queue.half_full() => {}
                // A dropped sender means the end.
                stopped = stop.wait_for(|stopping| *stopping) => if stopped.is_err() { return },
            }
        }
    }

    /// Exports some spans. They are not kept for another try: the queue has room for new ones
    /// instead.
    async fn export(&self, spans: &[Span], outage: &mut Outage) {
        let origin = self.clock.wall_at(Moment::START).unix_timestamp_nanos();
        let body = self
            .encoder
            .encode(spans, u64::try_from(origin).unwrap_or(0));
        let result = self.send(body).await;
        outage.record(result.as_ref().err(), &self.collector);
        let lost = match result {
            Ok(reply) => rejected(reply).min(spans.len()),
            Err(_) => spans.len(),
        };
        self.queue.count_lost(LostReason::ExportFailed, lost);
        self.queue.count_exported(spans.len() - lost);
    }

    /// Sends the body of an export. An error is its reason.
    async fn send(&self, body: Bytes) -> Result<Bytes, String> {
        let protobuf = HeaderValue::from_static("application/x-protobuf");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, protobuf)]);
        let (collector, body) = (&self.collector, Some(body));
        let reply = fetch::post(collector, PATH, &headers, body, TIMEOUT, REPLY_BYTES).await;
        let reply = reply.map_err(|error| error.to_string())?;
        if reply.status.is_success() {
            Ok(reply.body)
        } else {
            Err(format!("it answered {}", reply.status))
        }
    }
}

impl Outage {
    /// Logs the begin and the end of an outage.
    fn record(&mut self, error: Option<&String>, collector: &WorkerUrl) {
        let was_out = std::mem::replace(&mut self.0, error.is_some());
        match error {
            Some(error) if !was_out => {
                tracing::warn!(%collector, %error, "traces cannot be exported: their spans are lost");
            }
            None if was_out => tracing::info!(%collector, "traces are exported again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use contract_id::contract;

    use super::*;
    use crate::queue::tests::{page, span};

    /// An exporter to `url`, its metrics, and what stops it.
    fn exporter(url: &str) -> (SpanExporter, Registry, watch::Sender<bool>) {
        let mut registry = Registry::default();
        let section = TracingSection {
            otlp_endpoint: Some(url.to_owned()),
            ..TracingSection::default()
        };
        let exporter = SpanExporter::new(&section, Clock::system(), &mut registry);
        let exporter = exporter.expect("a valid URL").expect("an endpoint");
        (exporter, registry, watch::Sender::new(false))
    }

    /// Answers one connection after the other with these statuses; returns the request lines.
    async fn collect(listener: TcpListener, statuses: &[&str]) -> Vec<String> {
        let mut lines = Vec::new();
        for status in statuses {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a head"));
            }
            let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1).expect("a length");
            let length = length.split("\r\n").next().and_then(|it| it.parse().ok());
            let mut body = vec![0; length.expect("a number")];
            stream.read_exact(&mut body).await.expect("a body");
            assert!(
                head.contains("content-type: application/x-protobuf\r\n"),
                "{head}"
            );
            lines.push(head.lines().next().unwrap_or_default().to_owned());
            let reply = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(reply.as_bytes()).await.expect("it reads");
        }
        lines
    }

    #[tokio::test]
    #[contract("V44")]
    async fn spans_are_sent_in_batches_and_a_refused_batch_is_lost_and_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!(
            "http://{}/base/v1/traces/",
            listener.local_addr().expect("one")
        );
        let (exporter, registry, stop) = exporter(&url);
        exporter
            .queue()
            .submit((0..2 * BATCH as u64 + 5).map(span).collect());
        stop.send_replace(true);
        let statuses = ["200 OK", "503 Service Unavailable", "200 OK"];
        let (lines, ()) =
            tokio::join!(collect(listener, &statuses), exporter.run(stop.subscribe()));
        assert_eq!(lines, ["post /base/v1/traces http/1.1"; 3]);
        let page = page(&registry);
        assert!(
            page.contains("warmroute_spans_exported_total 1029\n"),
            "{page}"
        );
        let lost = "warmroute_spans_lost_total{reason=\"export_failed\"} 1024\n";
        assert!(page.contains(lost), "{page}");
    }

    #[tokio::test]
    async fn the_spans_of_an_unreachable_collector_are_lost_and_counted() {
        // A port that nothing listens at.
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("one"));
        drop(listener);
        let (exporter, registry, stop) = exporter(&url);
        exporter.queue().submit(vec![span(1), span(2)]);
        stop.send_replace(true);
        exporter.run(stop.subscribe()).await;
        let lost = "warmroute_spans_lost_total{reason=\"export_failed\"} 2\n";
        assert!(page(&registry).contains(lost), "{}", page(&registry));
    }

    #[test]
    fn without_an_endpoint_there_is_no_exporter() {
        let mut registry = Registry::default();
        let section = TracingSection::default();
        let exporter = SpanExporter::new(&section, Clock::system(), &mut registry);
        assert!(exporter.is_ok_and(|exporter| exporter.is_none()));
        assert!(!page(&registry).contains("warmroute"));
    }
}
