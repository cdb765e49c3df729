//! The metric of requests with a wrong or missing key that had to wait, by listener.

use std::{fmt, sync::Arc};

use net::server::KeyThrottle;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};

use crate::{AdminListeners, family_encoder::FamilyEncoder};

/// The throttles of all listeners that ask for a key, each with the name of its listener.
#[derive(Debug)]
struct ThrottledKeys(Vec<(&'static str, Arc<KeyThrottle>)>);

impl AdminListeners {
    /// Registers the count of throttled requests of these listeners and of the data listener.
    pub fn register_throttled_keys(&self, data: Arc<KeyThrottle>, registry: &mut Registry) {
        let metrics = self.metrics.iter();
        let own = [("admin", &self.admin)]
            .into_iter()
            .chain(metrics.map(|metrics| ("metrics", metrics)))
            .map(|(name, it)| (name, Arc::clone(&it.access.wrong_tokens)));
        let all = [("data", data)].into_iter().chain(own).collect();
        registry.register_collector(Box::new(ThrottledKeys(all)));
    }
}

impl Collector for ThrottledKeys {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counts = self.0.iter();
        FamilyEncoder(encoder).counters(
            "warmroute_throttled_keys",
            "Requests with a wrong or missing key whose address had sent too many wrong ones",
            counts.map(|(name, it)| ([("listener", *name)], it.throttled())),
        )
    }
}
