//! The queue between the request path and the exporter.

use parking_lot::Mutex;
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tokio::sync::Notify;

use crate::Span;

/// Most spans that wait to be exported; further ones are lost. A traced request has about ten.
const MOST_SPANS: usize = 8192;

/// The reason why spans are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// The queue was full.
    QueueFull,
    /// The collector could not be reached, or refused them.
    ExportFailed,
}

impl LostReason {
    fn label(self) -> [(&'static str, &'static str); 1] {
        let reason = match self {
            Self::QueueFull => "queue_full",
            Self::ExportFailed => "export_failed",
        };
        [("reason", reason)]
    }
}

/// Finished spans that wait for their export, and the counters of exported and lost ones.
#[derive(Debug, Default)]
pub struct SpanQueue {
    waiting: Mutex<Vec<Span>>,
    half: Notify,
    exported: Counter,
    lost: Family<[(&'static str, &'static str); 1], Counter>,
}

impl SpanQueue {
    /// Creates a queue, and registers its counters.
    pub fn registered(registry: &mut Registry) -> Self {
        let queue = Self::default();
        for reason in [LostReason::QueueFull, LostReason::ExportFailed] {
            drop(queue.lost.get_or_create(&reason.label()));
        }
        registry.register(
            "warmroute_spans_exported",
            "Spans that the collector of traces accepted",
            queue.exported.clone(),
        );
        registry.register(
            "warmroute_spans_lost",
            "Spans that did not get there",
            queue.lost.clone(),
        );
        queue
    }

    /// Queues the spans of a finished request: all of them, or none if the queue is too full.
    pub fn submit(&self, spans: Vec<Span>) {
        let mut waiting = self.waiting.lock();
        if waiting.len() + spans.len() > MOST_SPANS {
            drop(waiting);
            return self.count_lost(LostReason::QueueFull, spans.len());
        }
        waiting.extend(spans);
        let half_full = waiting.len() >= MOST_SPANS / 2;
        drop(waiting);
        if half_full {
            self.half.notify_one();
        }
    }

    /// Takes all spans, in order.
    pub fn take(&self) -> Vec<Span> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// Resolves when the queue is half full, or was since the last wait.
    pub async fn half_full(&self) {
        self.half.notified().await;
    }

    /// Counts exported spans.
    pub fn count_exported(&self, spans: usize) {
        self.exported.inc_by(spans as u64);
    }

    /// Counts lost spans.
    pub fn count_lost(&self, reason: LostReason, spans: usize) {
        self.lost
            .get_or_create(&reason.label())
            .inc_by(spans as u64);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use kv_blocks::Moment;

    use super::*;
    use crate::{Attributes, SpanContext, SpanKind};

    pub(crate) fn span(random: u64) -> Span {
        Span {
            context: SpanContext::root([1, 2, random], 1.0),
            parent: None,
            name: "a".into(),
            kind: SpanKind::Internal,
            start: Moment::START,
            end: Moment::START,
            attributes: Attributes::default(),
            events: Vec::new(),
            failed: false,
        }
    }

    pub(crate) fn page(registry: &Registry) -> String {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, registry).expect("a page");
        page
    }

    #[tokio::test]
    async fn a_request_that_does_not_fit_loses_all_of_its_spans_and_they_are_counted() {
        let mut registry = Registry::default();
        let queue = SpanQueue::registered(&mut registry);
        queue.submit((0..MOST_SPANS as u64 - 1).map(span).collect());
        queue.half_full().await;
        queue.submit(vec![span(1), span(2)]);
        queue.submit(vec![span(3)]);
        queue.submit(vec![span(4)]);
        let spans = queue.take();
        assert_eq!((spans.len(), spans.last()), (MOST_SPANS, Some(&span(3))));
        assert!(queue.take().is_empty());
        let page = page(&registry);
        for line in [
            "warmroute_spans_lost_total{reason=\"queue_full\"} 3\n",
            "warmroute_spans_lost_total{reason=\"export_failed\"} 0\n",
            "warmroute_spans_exported_total 0\n",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }
}
