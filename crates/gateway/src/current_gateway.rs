//! The gateway as it is configured now.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::{Gateway, ListenerLimits, RequestSettings};

/// The gateway that new requests get. One that runs keeps the gateway it began with.
#[derive(Debug)]
pub struct CurrentGateway(ArcSwap<Gateway>);

impl CurrentGateway {
    /// Begins with this one.
    pub fn new(gateway: Gateway) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(gateway)))
    }

    /// The gateway for a request that begins now.
    pub fn current(&self) -> Arc<Gateway> {
        self.0.load_full()
    }

    /// Resolves when clients cannot connect any more, though no drain asked for that.
    pub async fn failed(&self) {
        let mut failed = self.current().failed.subscribe();
        // The sender lives as long as any gateway does.
        let _ = failed.wait_for(|failed| *failed).await;
    }

    /// Requests that begin from now on go by other limits and rules.
    pub fn reconfigure(&self, limits: ListenerLimits, rules: RequestSettings) {
        self.0
            .store(Arc::new(self.current().with_settings(limits, rules)));
    }
}
