//! Metrics of the routers' bus.

use std::{fmt, sync::Arc};

use event_log::{EventLog, StreamRole};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
};
use registrations::Registrations;

/// Reads the state of the log and of the shared workers at each scrape.
#[derive(Debug)]
pub(super) struct BusCollector {
    log: Arc<EventLog>,
    registrations: Arc<Registrations>,
}

/// The value of a label, and that of the series.
type Sample = (&'static str, u64);

impl BusCollector {
    pub(super) fn new(log: Arc<EventLog>, registrations: Arc<Registrations>) -> Self {
        Self { log, registrations }
    }
}

impl Collector for BusCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let report = self.log.report();
        let mut families = FamilyWriter(encoder);
        families.number(
            "warmroute_bus_connected",
            "Whether the routers' NATS bus is in use",
            (MetricType::Gauge, u64::from(report.connected)),
        )?;
        families.number(
            "warmroute_bus_replicas",
            "Routers of the fleet that are present on the bus",
            (MetricType::Gauge, report.replicas.len() as u64),
        )?;
        let streams = |role| {
            let with_role = report.roles.values().filter(|found| **found == role);
            with_role.count() as u64
        };
        families.labelled(
            "warmroute_event_log_streams",
            "Workers' event streams by this router's role",
            (MetricType::Gauge, "role"),
            &[
                ("alone", streams(StreamRole::Alone)),
                ("follower", streams(StreamRole::Follower)),
                ("owner", streams(StreamRole::Owner)),
            ],
        )?;
        let counts = report.counts;
        families.labelled(
            "warmroute_event_log_messages",
            "Messages of the routers' event log by outcome",
            (MetricType::Counter, "outcome"),
            &[
                ("dropped", counts.dropped),
                ("duplicate", counts.duplicates),
                ("overflowed", counts.overflowed),
                ("published", counts.published),
                ("received", counts.received),
                ("repeated", counts.repeated),
                ("unreadable", counts.unreadable),
            ],
        )?;
        families.number(
            "warmroute_event_log_repairs",
            "Repairs of streams from the engine's replay, because the event log proved nothing",
            (MetricType::Counter, counts.repairs),
        )?;
        let workers = self.registrations.report();
        let count = |workers: usize| workers as u64;
        families.labelled(
            "warmroute_shared_workers",
            "Workers that the routers share by state: registered, drained, with a change that the bus does not have yet, refused by this router",
            (MetricType::Gauge, "state"),
            &[
                ("drained", count(workers.drained)),
                ("pending", count(workers.pending)),
                ("refused", count(workers.refused)),
                ("registered", count(workers.registered)),
            ],
        )?;
        families.labelled(
            "warmroute_shared_workers_refused",
            "Registrations of other routers that this router refused by reason",
            (MetricType::Counter, "reason"),
            &workers.refusals,
        )
    }
}

struct FamilyWriter<'a>(DescriptorEncoder<'a>);

impl FamilyWriter<'_> {
    fn number(
        &mut self,
        name: &str,
        help: &str,
        (kind, value): (MetricType, u64),
    ) -> Result<(), fmt::Error> {
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        match kind {
            MetricType::Counter => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
            _ => metric.encode_gauge(&value),
        }
    }

    fn labelled(
        &mut self,
        name: &str,
        help: &str,
        (kind, label): (MetricType, &str),
        samples: &[Sample],
    ) -> Result<(), fmt::Error> {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (value, count) in samples {
            let labels = [(label, *value)];
            let mut metric = family.encode_family(&labels)?;
            match kind {
                MetricType::Counter => metric.encode_counter::<NoLabelSet, _, u64>(count, None)?,
                _ => metric.encode_gauge(count)?,
            }
        }
        Ok(())
    }
}
