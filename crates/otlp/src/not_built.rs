//! Replaces the exporter in a build without it.

use std::{convert::Infallible, sync::Arc};

use config::TracingSection;
use net::Clock;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::{ExporterError, SpanQueue};

/// The exporter; here a type without values.
#[derive(Debug)]
pub struct SpanExporter(Infallible);

impl SpanExporter {
    /// Returns no exporter without an endpoint.
    ///
    /// # Errors
    /// There is an endpoint.
    pub fn new(
        section: &TracingSection,
        _: Clock,
        _: &mut Registry,
    ) -> Result<Option<Self>, ExporterError> {
        match section.otlp_endpoint {
            Some(_) => Err(ExporterError::NotBuilt),
            None => Ok(None),
        }
    }

    /// Returns the queue that it exports.
    pub fn queue(&self) -> Arc<SpanQueue> {
        match self.0 {}
    }

    /// Exports queued spans until `stop` is set, and then the rest.
    #[expect(clippy::unused_async, reason = "as where spans are exported")]
    pub async fn run(self, _: watch::Receiver<bool>) {
        match self.0 {}
    }
}
