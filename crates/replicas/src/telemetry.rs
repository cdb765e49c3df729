//! Metrics of replicas.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::peers::IgnoredMessage;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabel {
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

const SENT: DirectionLabel = DirectionLabel { direction: "sent" };
const RECEIVED: DirectionLabel = DirectionLabel {
    direction: "received",
};

/// The metric families; every series exists from the start.
#[derive(Debug, Default)]
pub(crate) struct ReplicaTelemetry {
    messages: Family<DirectionLabel, Counter>,
    bytes: Family<DirectionLabel, Counter>,
    ignored: Family<ReasonLabel, Counter>,
    pub(crate) repairs: Counter,
    pub(crate) lost_changes: Counter,
    pub(crate) unknown_changes: Counter,
    pub(crate) peers: Gauge,
    pub(crate) connected: Gauge,
}

impl ReplicaTelemetry {
    pub(crate) fn registered(registry: &mut Registry) -> Self {
        let telemetry = Self::default();
        for label in [SENT, RECEIVED] {
            drop(telemetry.messages.get_or_create(&label));
            drop(telemetry.bytes.get_or_create(&label));
        }
        for reason in IgnoredMessage::ALL {
            let reason = reason.as_str();
            drop(telemetry.ignored.get_or_create(&ReasonLabel { reason }));
        }
        let Self {
            messages,
            bytes,
            ignored,
            repairs,
            lost_changes,
            unknown_changes,
            peers,
            connected,
        } = &telemetry;
        let name = |name: &str| format!("warmroute_replica_{name}");
        let help = "Messages between replicas";
        registry.register(name("messages"), help, messages.clone());
        let help = "Bytes of messages between replicas";
        registry.register(name("bytes"), help, bytes.clone());
        let help = "Messages of other replicas that were not used";
        registry.register(name("ignored_messages"), help, ignored.clone());
        let help = "Loads of replicas that were fetched anew because they differed";
        registry.register(name("repairs"), help, repairs.clone());
        let help = "Times that own changes were lost because they were not sent in time";
        registry.register(name("lost_changes"), help, lost_changes.clone());
        let help = "Changes of a kind that this version does not know";
        registry.register(name("unknown_changes"), help, unknown_changes.clone());
        let help = "Other replicas that are there";
        registry.register(name("peers"), help, peers.clone());
        let help = "Whether messages can be sent and received";
        registry.register(name("connected"), help, connected.clone());
        telemetry
    }

    pub(crate) fn record_sent(&self, bytes: usize) {
        self.record(&SENT, bytes);
    }

    pub(crate) fn record_received(&self, bytes: usize) {
        self.record(&RECEIVED, bytes);
    }

    pub(crate) fn record_ignored(&self, why: IgnoredMessage) {
        let reason = why.as_str();
        self.ignored.get_or_create(&ReasonLabel { reason }).inc();
    }

    fn record(&self, direction: &DirectionLabel, bytes: usize) {
        self.messages.get_or_create(direction).inc();
        self.bytes.get_or_create(direction).inc_by(bytes as u64);
    }
}
