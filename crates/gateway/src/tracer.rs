//! Traces of requests: which of them are recorded, and where their spans go.
//!
//! A client's `traceparent` (W3C Trace Context) names the trace and decides whether it is recorded.
//! A request without one begins a trace, and the configured share of these is recorded.

use std::sync::Arc;

use http::HeaderMap;
use otlp::{SpanContext, SpanId, SpanQueue};
use proxy::headers::{TRACEPARENT, TRACESTATE};

use crate::ids::IdGenerator;

/// Begins the traces of requests.
#[derive(Clone, Debug)]
pub(crate) struct Tracer {
    pub(crate) queue: Arc<SpanQueue>,
    /// Share of the traces that are recorded, of those that begin here.
    pub(crate) sample_ratio: f64,
    pub(crate) ids: Arc<IdGenerator>,
}

/// The place of a request in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TracePosition {
    /// The span of the request.
    pub(crate) span: SpanContext,
    /// The client's span.
    pub(crate) parent: Option<SpanId>,
}

impl Tracer {
    /// Returns the position of a request with these headers; `None`: its trace is not recorded, and
    /// workers get the client's header. A header that names no trace is removed.
    pub(crate) fn position(&self, headers: &mut HeaderMap) -> Option<TracePosition> {
        if let Some(client) = client_span(headers) {
            return client.sampled.then(|| TracePosition {
                span: client.with_span(self.next_span()),
                parent: Some(client.span),
            });
        }
        headers.remove(TRACEPARENT);
        // It belongs to the other header.
        headers.remove(TRACESTATE);
        let random = std::array::from_fn(|_| self.ids.next_number());
        Some(TracePosition {
            span: SpanContext::root(random, self.sample_ratio),
            parent: None,
        })
    }

    /// Returns the id of another span.
    pub(crate) fn next_span(&self) -> SpanId {
        SpanId::new(self.ids.next_number())
    }
}

/// Returns the client's span; `None` if the request names none, or more than one.
fn client_span(headers: &HeaderMap) -> Option<SpanContext> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let value = values.next().filter(|_| values.next().is_none());
    SpanContext::parse(value?.to_str().ok()?)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use http::HeaderValue;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn tracer(sample_ratio: f64) -> Tracer {
        Tracer {
            queue: Arc::default(),
            sample_ratio,
            ids: Arc::new(IdGenerator::new()),
        }
    }

    fn headers(parents: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for parent in parents {
            headers.append(TRACEPARENT, HeaderValue::from_static(parent));
        }
        headers.insert(TRACESTATE, HeaderValue::from_static("vendor=1"));
        headers
    }

    #[test]
    #[contract("V44")]
    fn a_client_decides_by_its_flag_whatever_the_ratio() {
        let client = SpanContext::parse(PARENT).expect("a valid header");
        for ratio in [0.0, 1.0] {
            let mut sampled = headers(&[PARENT]);
            let position = tracer(ratio)
                .position(&mut sampled)
                .expect("it is recorded");
            assert_eq!(position.parent, Some(client.span));
            assert_eq!(
                (position.span.trace, position.span.sampled),
                (client.trace, true)
            );
            assert_ne!(position.span.span, client.span);
            let mut unsampled = headers(&[UNSAMPLED]);
            assert_eq!(tracer(ratio).position(&mut unsampled), None);
            assert_eq!(unsampled, headers(&[UNSAMPLED]), "it is forwarded");
        }
    }

    #[test]
    #[contract("V44")]
    fn a_request_that_names_no_trace_begins_one_and_its_header_goes_no_further() {
        for parents in [&[][..], &["00-1-2-01"], &[PARENT, UNSAMPLED]] {
            for (ratio, sampled) in [(0.0, false), (1.0, true)] {
                let mut fields = headers(parents);
                let position = tracer(ratio).position(&mut fields).expect("a trace begins");
                assert_eq!((position.parent, position.span.sampled), (None, sampled));
                assert!(fields.is_empty(), "{fields:?}");
            }
        }
    }
}
