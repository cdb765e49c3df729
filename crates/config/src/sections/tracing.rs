//! Section `tracing`: traces of requests.

use settings::{ValueKind, kinds::RATIO};

settings::section! {
    /// Section `tracing`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TracingSection {
        /// Base URL of an OpenTelemetry collector, which gets traces over OTLP/HTTP at
        /// `/v1/traces`: `http://localhost:4318`. Unset: no traces.
        otlp_endpoint: Option<String> = "~" in ValueKind::WorkerUrl, restart;
        /// Share of the requests without a `traceparent` header whose traces are exported. With
        /// one, its flag decides.
        sample_ratio: f64 = "0.01" in RATIO, live;
    }
}
