//! The gateway as it is configured now.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::{Gateway, Limits, Rules};

/// The gateway that new requests get. One that runs keeps the gateway it began with.
#[derive(Debug)]
pub struct InForce(ArcSwap<Gateway>);

impl InForce {
    /// Begins with this one.
    pub fn new(gateway: Gateway) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(gateway)))
    }

    /// The gateway for a request that begins now.
    pub fn now(&self) -> Arc<Gateway> {
        self.0.load_full()
    }

    /// Resolves when clients cannot connect any more, though no drain asked for that.
    pub async fn failed(&self) {
        let mut failed = self.now().failed.subscribe();
        // The sender lives as long as any gateway does.
        let _ = failed.wait_for(|failed| *failed).await;
    }

    /// Requests that begin from now on go by other limits and rules.
    pub fn reconfigure(&self, limits: Limits, rules: Rules) {
        self.0
            .store(Arc::new(self.now().reconfigured(limits, rules)));
    }
}
