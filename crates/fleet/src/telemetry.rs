//! The fleet's metrics, read from the worker table at each scrape: nothing is counted twice and
//! nothing can drift.

mod series;

use std::{collections::BTreeMap, fmt, sync::Arc};

use event_sources::{SourceCounters, StreamState};
use kv_blocks::Moment;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use self::series::SeriesWriter;
use crate::{
    CacheSource, WorkerState, streams::RankSelection, worker_record::WorkerRecord,
    worker_table::WorkerTable,
};

/// Workers with a label of their own; the counters of the rest are summed as `other`.
const MOST_WORKERS: usize = 1024;
/// Label of the workers beyond [`MOST_WORKERS`].
const OTHER: &str = "other";

/// Collector that reads the worker table at each scrape.
pub(crate) struct FleetCollector(Arc<WorkerTable>);

impl FleetCollector {
    pub(crate) fn new(worker_table: Arc<WorkerTable>) -> Self {
        Self(worker_table)
    }
}

impl fmt::Debug for FleetCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetCollector")
    }
}

impl Collector for FleetCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        // Read first, written afterwards: the table is not locked while text is made.
        let mut reading = TelemetryReading::default();
        let now = self.0.clock.now();
        self.0.each(|entry| reading.read(entry, now));
        reading.write(encoder)
    }
}

#[derive(Default)]
struct TelemetryReading {
    states: BTreeMap<&'static str, i64>,
    counters: BTreeMap<Arc<str>, SourceCounters>,
    ignored: BTreeMap<&'static str, u64>,
    workers: Vec<WorkerReading>,
}

struct WorkerReading {
    name: Arc<str>,
    cache: CacheSource,
    /// The worst of its ranks' streams; `None` when it has none.
    stream: Option<StreamState>,
    lag_s: Option<f64>,
    last_event_age_s: Option<f64>,
}

impl TelemetryReading {
    fn read(&mut self, entry: &WorkerRecord, now: Moment) {
        *self
            .states
            .entry(entry.view.health.state.as_str())
            .or_default() += 1;
        let named = self.workers.len() < MOST_WORKERS;
        let label = if named {
            Arc::clone(&entry.view.name)
        } else {
            OTHER.into()
        };
        let sum = self.counters.entry(label).or_default();
        let mut worker = WorkerReading {
            name: Arc::clone(&entry.view.name),
            cache: entry.view.cache_source(),
            stream: None,
            lag_s: None,
            last_event_age_s: None,
        };
        for stream in &entry.streams {
            let counters = stream.source.counters();
            sum.stored += counters.stored;
            sum.removed += counters.removed;
            sum.cleared += counters.cleared;
            sum.decode_errors += counters.decode_errors;
            sum.gaps += counters.gaps;
            sum.resets += counters.resets;
            sum.unlisted_media += counters.unlisted_media;
            for (reason, times) in counters.ignored {
                *self.ignored.entry(reason).or_default() += times;
            }
            if stream.ranks == RankSelection::Beside {
                continue;
            }
            let state = stream.source.state();
            worker.stream = Some(worker.stream.map_or(state, |worst| worst.worse(state)));
            let lag = stream.source.report().lag_ms.map(|ms| ms / 1e3);
            worker.lag_s = worker.lag_s.into_iter().chain(lag).reduce(f64::max);
            let age = stream
                .source
                .last_event_at()
                .map(|at| now.since(at).as_secs_f64());
            worker.last_event_age_s = worker
                .last_event_age_s
                .into_iter()
                .chain(age)
                .reduce(f64::max);
        }
        if named {
            self.workers.push(worker);
        }
    }

    fn write(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut out = SeriesWriter(encoder);
        let states = WorkerState::ALL.map(|state| {
            let count = self.states.get(state.as_str()).copied().unwrap_or(0);
            ([("state", state.as_str())], count)
        });
        out.gauges("warmroute_workers", "Workers by state", states)?;
        self.write_events(&mut out)?;
        self.write_streams(&mut out)
    }

    fn write_events(&self, out: &mut SeriesWriter<'_>) -> Result<(), fmt::Error> {
        out.counters(
            "warmroute_kv_events",
            "KV events applied to the index",
            self.counters.iter().flat_map(|(worker, of)| {
                [
                    ("stored", of.stored),
                    ("removed", of.removed),
                    ("cleared", of.cleared),
                ]
                .map(|(kind, times)| ([("worker", &**worker), ("kind", kind)], times))
            }),
        )?;
        out.counters(
            "warmroute_kv_events_ignored",
            "KV events without meaning for the index",
            self.ignored
                .iter()
                .map(|(reason, times)| ([("reason", *reason)], *times)),
        )?;
        out.counters(
            "warmroute_kv_decode_errors",
            "Unusable batches and events",
            self.counters
                .iter()
                .map(|(worker, of)| ([("worker", &**worker)], of.decode_errors)),
        )?;
        out.counters(
            "warmroute_kv_unlisted_media",
            "KV events of blocks on a medium with an unknown name, which counts as disk",
            self.counters
                .iter()
                .map(|(worker, of)| ([("worker", &**worker)], of.unlisted_media)),
        )?;
        out.counters(
            "warmroute_kv_gaps",
            "Times that events were missing",
            self.counters
                .iter()
                .map(|(worker, of)| ([("worker", &**worker)], of.gaps)),
        )?;
        out.counters(
            "warmroute_kv_resets",
            "Times that a worker's publisher restarted and its blocks were forgotten",
            self.counters
                .iter()
                .map(|(worker, of)| ([("worker", &**worker)], of.resets)),
        )
    }

    fn write_streams(&self, out: &mut SeriesWriter<'_>) -> Result<(), fmt::Error> {
        out.gauges(
            "warmroute_kv_stream_state",
            "State of a worker's event stream, the worst of its ranks (1: in this state)",
            self.workers
                .iter()
                .filter_map(|worker| Some((worker, worker.stream?)))
                .flat_map(|(worker, stream)| {
                    StreamState::ALL.map(|state| {
                        (
                            [("worker", &*worker.name), ("state", state.as_str())],
                            i64::from(state == stream),
                        )
                    })
                }),
        )?;
        out.gauges(
            "warmroute_kv_lag_seconds",
            "Age of a worker's last batch of events when it was applied",
            self.workers
                .iter()
                .filter_map(|worker| Some(([("worker", &*worker.name)], worker.lag_s?))),
        )?;
        out.gauges(
            "warmroute_kv_last_event_age_seconds",
            "Time since a worker's last batch of events",
            self.workers
                .iter()
                .filter_map(|worker| Some(([("worker", &*worker.name)], worker.last_event_age_s?))),
        )?;
        out.gauges(
            "warmroute_cache_source",
            "Where knowledge of a worker's cache comes from (1: from there)",
            self.workers.iter().flat_map(|worker| {
                [CacheSource::Events, CacheSource::Predicted].map(|source| {
                    (
                        [("worker", &*worker.name), ("source", source.as_str())],
                        i64::from(source == worker.cache),
                    )
                })
            }),
        )
    }
}
