//! The metrics of access: requests with a wrong or missing key that had to wait, by listener, and
//! the lines of the audit.

use std::{fmt, sync::Arc};

use net::server::KeyThrottle;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};

use crate::{AdminListeners, AuditFile, family_encoder::FamilyEncoder};

/// Reads the counts of all listeners that ask for a key.
#[derive(Debug)]
struct AccessCollector {
    /// Each throttle with the name of its listener.
    throttles: Vec<(&'static str, Arc<KeyThrottle>)>,
    audit: Option<Arc<AuditFile>>,
}

impl AdminListeners {
    /// Registers the metrics of access to these listeners and to the data listener.
    pub fn register_access(&self, data: Arc<KeyThrottle>, registry: &mut Registry) {
        let admin = self.admin.iter().map(|admin| ("admin", admin));
        let metrics = self.metrics.iter().map(|metrics| ("metrics", metrics));
        let own = admin
            .chain(metrics)
            .map(|(name, it)| (name, Arc::clone(&it.access.wrong_tokens)));
        registry.register_collector(Box::new(AccessCollector {
            throttles: [("data", data)].into_iter().chain(own).collect(),
            audit: (self.admin.as_ref()).and_then(|admin| admin.access.audit.file.clone()),
        }));
    }
}

impl Collector for AccessCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut out = FamilyEncoder(encoder);
        let throttles = self.throttles.iter();
        out.counters(
            "warmroute_throttled_keys",
            "Requests with a wrong or missing key whose address had sent too many wrong ones",
            throttles.map(|(name, it)| ([("listener", *name)], it.throttled())),
        )?;
        let audit = self.audit.as_ref();
        let counts = audit.map(|file| file.counts());
        let results = [
            ("written", counts.map_or(0, |it| it.written)),
            ("failed", counts.map_or(0, |it| it.failed)),
            ("dropped", counts.map_or(0, |it| it.dropped)),
        ];
        out.counters(
            "warmroute_audit_lines",
            "Lines of the audit file (admin.audit_log), by what became of them",
            results.map(|(result, lines)| ([("result", result)], lines)),
        )
    }
}
