//! Traces of requests, exported to an OpenTelemetry collector over OTLP/HTTP.
//!
//! A [`SpanContext`] is the place of a span in its trace, as the header `traceparent` carries it
//! (W3C Trace Context). The request path builds [`Span`]s and submits them to a [`SpanQueue`]; a
//! [`SpanExporter`] sends them in batches. Which spans a request has is the gateway's business.
//!
//! **Invariant**: no request waits for the collector. The queue has a bound, and spans that do not
//! fit or cannot be exported are lost and counted.

mod context;
#[cfg_attr(not(feature = "otel"), path = "not_built.rs")]
mod exporter;
#[cfg(feature = "otel")]
mod protobuf;
mod queue;
mod span;

pub use context::{SpanContext, SpanId, TraceId};
pub use exporter::SpanExporter;
pub use queue::{LostReason, SpanQueue};
pub use span::{AttributeValue, Attributes, Span, SpanEvent, SpanKind};

/// The reason why spans cannot be exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExporterError {
    /// The program was built without the exporter.
    #[error(
        "tracing.otlp_endpoint is set, and this program was built without OpenTelemetry: build it with the feature \
         `otel`, or leave the key out"
    )]
    NotBuilt,
    /// The endpoint is no URL.
    #[error("tracing.otlp_endpoint: {0}")]
    Endpoint(#[from] net::WorkerUrlError),
}
