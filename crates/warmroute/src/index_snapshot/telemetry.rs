//! The metrics of the index's snapshots.

use std::fmt;

use net::Clock;
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::Counter, family::Family},
    registry::Registry,
};
use resilience::OutcomeCounters;

use super::file::RejectedSnapshot;

/// Results of a save.
const RESULTS: [&str; 2] = ["ok", "failed"];

/// Counters, and the figures of the last snapshot.
#[derive(Debug)]
pub(super) struct SnapshotTelemetry {
    clock: Clock,
    saves: OutcomeCounters,
    rejected: Family<[(&'static str, &'static str); 1], Counter>,
    last: Mutex<LastSnapshot>,
}

/// Figures of the last snapshot; zeros without one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastSnapshot {
    /// When it was saved, Unix milliseconds.
    pub(super) saved_at_ms: u64,
    pub(super) bytes: u64,
    pub(super) save_s: f64,
}

impl SnapshotTelemetry {
    pub(super) fn new(clock: Clock, registry: &mut Registry) -> Self {
        let rejected = Family::default();
        registry.register(
            "warmroute_snapshot_rejected",
            "Snapshots of the block index that were not loaded at the start",
            Family::clone(&rejected),
        );
        for reason in RejectedSnapshot::REASONS {
            drop(rejected.get_or_create(&[("reason", reason)]));
        }
        Self {
            clock,
            saves: OutcomeCounters::registered(
                registry,
                "warmroute_snapshot_saves",
                "Attempts to save the block index",
                &RESULTS,
            ),
            rejected,
            last: Mutex::default(),
        }
    }

    pub(super) fn record_rejection(&self, reason: &'static str) {
        self.rejected.get_or_create(&[("reason", reason)]).inc();
    }

    /// Records a saved snapshot.
    pub(super) fn record_save(&self, last: LastSnapshot) {
        self.saves.count("ok");
        *self.last.lock() = last;
    }

    /// Records a loaded snapshot: it is the last one until the next save.
    pub(super) fn record_load(&self, last: LastSnapshot) {
        *self.last.lock() = last;
    }

    pub(super) fn record_failure(&self) {
        self.saves.count("failed");
    }

    fn last(&self) -> LastSnapshot {
        *self.last.lock()
    }
}

/// Reads the figures of the last snapshot.
#[derive(Debug)]
pub(super) struct SnapshotCollector(pub(super) std::sync::Arc<SnapshotTelemetry>);

impl Collector for SnapshotCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let last = self.0.last();
        let age_ms = match last.saved_at_ms {
            0 => 0,
            saved_at => self.0.clock.unix_ms().saturating_sub(saved_at),
        };
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let figures = [
            (
                "warmroute_snapshot_age_seconds",
                "Time since the block index was last saved; 0 without a snapshot",
                age_ms as f64 / 1e3,
            ),
            (
                "warmroute_snapshot_bytes",
                "Size of the last snapshot of the block index; 0 without one",
                last.bytes as f64,
            ),
            (
                "warmroute_snapshot_save_seconds",
                "Time that the last save of the block index took",
                last.save_s,
            ),
        ];
        for (name, help, value) in figures {
            let gauge = prometheus_client::metrics::gauge::ConstGauge::new(value);
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}
