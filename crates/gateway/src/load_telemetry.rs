//! The current load, read from the router at each scrape: no counter of its own that could drift.

use std::{fmt, sync::Arc};

use fleet::{Fleet, Snapshot, WorkerView};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
};
use routing::Router;

use crate::name_labels::{MOST_NAMES, OTHER};

/// Reads leases and requests in flight.
#[derive(Debug)]
pub(crate) struct LoadCollector {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) router: Arc<Router>,
}

impl Collector for LoadCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut leases = encoder.encode_descriptor(
            "warmroute_leases",
            "Reservations of load that are not freed yet",
            None,
            MetricType::Gauge,
        )?;
        leases.encode_gauge(&i64::try_from(self.router.open_reservations()).unwrap_or(i64::MAX))?;
        let mut queued = encoder.encode_descriptor(
            "warmroute_queued",
            "Requests that wait for a worker",
            None,
            MetricType::Gauge,
        )?;
        queued.encode_gauge(&i64::try_from(self.router.queued_requests()).unwrap_or(i64::MAX))?;
        self.encode_admission(&mut encoder)?;
        self.encode_fetches(&mut encoder)?;
        let mut in_flight = encoder.encode_descriptor(
            "warmroute_in_flight",
            "Requests that a worker is busy with",
            None,
            MetricType::Gauge,
        )?;
        let load = |worker: &WorkerView| {
            let of = |target| i64::from(self.router.load(target).in_flight);
            worker.targets().map(of).sum()
        };
        for (worker, load) in sum_by_worker(&self.fleet.snapshot(), load) {
            in_flight
                .encode_family(&[("worker", worker)])?
                .encode_gauge(&load)?;
        }
        Ok(())
    }
}

impl LoadCollector {
    /// Writes the requests that wait for room in a cache, and how others ended.
    fn encode_admission(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut waiting = encoder.encode_descriptor(
            "warmroute_admission_waiting",
            "Requests that wait for room in a worker's cache",
            None,
            MetricType::Gauge,
        )?;
        let requests = self.router.requests_waiting_for_room();
        waiting.encode_gauge(&i64::try_from(requests).unwrap_or(i64::MAX))?;
        let counts = self.router.admission_counts();
        encode_counts(
            encoder,
            "warmroute_admission",
            "Requests that found no room in any cache, by how that ended",
            "outcome",
            [
                ("room", counts.room),
                ("budget", counts.budget),
                ("overdue", counts.overdue),
                ("refused", counts.refused),
            ],
        )
    }

    /// Writes the requests whose engine was told to read blocks from another one, by result.
    fn encode_fetches(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counts = self.router.fetch_counts();
        encode_counts(
            encoder,
            "warmroute_fetches",
            "Requests whose worker was told to read blocks from another one, by result",
            "result",
            [
                ("sent", counts.sent),
                ("arrived", counts.arrived),
                ("missed", counts.missed),
            ],
        )
    }
}

/// Writes a counter with one label.
fn encode_counts<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    counts: [(&str, u64); N],
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (value, count) in counts {
        family
            .encode_family(&[(label, value)])?
            .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
    }
    Ok(())
}

/// Returns the load of each worker by its name; those beyond [`MOST_NAMES`] are one sum,
/// [`OTHER`].
pub(crate) fn sum_by_worker(
    snapshot: &Snapshot,
    load: impl Fn(&WorkerView) -> i64,
) -> Vec<(&str, i64)> {
    let (named, rest) = snapshot
        .workers
        .split_at(snapshot.workers.len().min(MOST_NAMES));
    let mut loads: Vec<_> = named
        .iter()
        .map(|worker| (&*worker.name, load(worker)))
        .collect();
    if !rest.is_empty() {
        loads.push((OTHER, rest.iter().map(|worker| load(worker)).sum()));
    }
    loads
}
