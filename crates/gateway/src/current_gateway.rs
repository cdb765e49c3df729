//! The gateway by the current configuration.

use std::sync::Arc;

use arc_swap::ArcSwap;
use config::Settings;

use crate::{Gateway, process_limits::ProcessLimits};

/// The gateway for new requests. A running request keeps the one that it began with.
#[derive(Debug)]
pub struct CurrentGateway(ArcSwap<Gateway>);

impl CurrentGateway {
    /// Creates it with this gateway.
    pub fn new(gateway: Gateway) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(gateway)))
    }

    /// Returns the gateway for a request that begins now.
    pub fn current(&self) -> Arc<Gateway> {
        self.0.load_full()
    }

    /// Resolves when clients can no longer connect although no drain was requested.
    pub async fn failed(&self) {
        let mut failed = self.current().lifecycle.failed.subscribe();
        // The sender lives as long as any gateway does.
        let _ = failed.wait_for(|failed| *failed).await;
    }

    /// Sets the settings of requests that begin from now on.
    pub fn reconfigure(&self, settings: &Settings, process: ProcessLimits) {
        self.0
            .store(Arc::new(self.current().with_settings(settings, process)));
    }
}
