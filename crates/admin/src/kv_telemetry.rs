//! Metrics of the event streams, of the index changes they cause, and of their use for requests,
//! under the names that existing dashboards use (contract CK70, CK71). Read at each scrape.
//!
//! Block streams (ZMQ and similar) and prefix streams are counted in the same families.
//!
//! **Invariant**: labels are configured backend names and enum words, each combination from the
//! start. A backend without any stream has no consumer: it counts 0, and has no connection series.

use std::{fmt, sync::Arc};

use event_sources::{StreamState, TierMoves};
use fleet::{BackendFeed, Fleet};
use kv_index::KvIndex;
use prefix_view::{BackendStats, EventKind, ViewStats};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use routing::KvDecisionCounters;

use crate::{AdminParts, family_encoder::FamilyEncoder};

/// Collector that reads the parts at each scrape.
pub(crate) struct KvCollector {
    fleet: Arc<Fleet>,
    index: Arc<KvIndex>,
    counters: Arc<KvDecisionCounters>,
}

impl KvCollector {
    pub(crate) fn of(parts: &AdminParts) -> Self {
        Self {
            fleet: Arc::clone(&parts.fleet),
            index: Arc::clone(&parts.kv_index.index),
            counters: Arc::clone(&parts.kv_index.counters),
        }
    }
}

impl fmt::Debug for KvCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KvCollector")
    }
}

impl Collector for KvCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let feeds = self.fleet.feeds();
        let view = self
            .fleet
            .prefixes()
            .map(|prefixes| prefixes.view().stats())
            .unwrap_or_default();
        let mut out = FamilyEncoder(encoder);
        streams(&mut out, &feeds)?;
        changes(&mut out, &feeds, &view)?;
        out.gauge(
            "continuum_kv_index_entries",
            "Pairs of prefix and backend in the view of prefixes, and of block and backend in the block index",
            view.entries.saturating_add(self.index.stats().memberships),
        )?;
        out.counters(
            "continuum_kv_index_routing_decisions",
            "Decisions of policies that go by caches, by whether they were made by what is known of caches",
            self.counters.counts().by_decision().map(|(decision, count)| ([("decision", decision)], count)),
        )?;
        let help = "Time that an index took to say who holds a prompt";
        out.histogram(
            "continuum_kv_index_query_latency_seconds",
            help,
            &self.counters.queries(),
        )?;
        let help =
            "Share of the prompt that is cached where it went, of the decisions made by caches";
        out.histogram(
            "continuum_kv_index_overlap_score",
            help,
            &self.counters.overlaps(),
        )
    }
}

/// Encodes received events and connections.
fn streams(out: &mut FamilyEncoder<'_>, feeds: &[BackendFeed]) -> fmt::Result {
    let mut count = |name: &str, help: &str, of: fn(&BackendFeed) -> u64| {
        out.counters(
            name,
            help,
            feeds
                .iter()
                .map(|feed| ([("backend", &*feed.backend)], of(feed))),
        )
    };
    count(
        "continuum_kv_event_received",
        "KV events that came, those let go included",
        |feed| feed.received,
    )?;
    count(
        "continuum_kv_event_processed",
        "KV events that an index took",
        |feed| feed.processed,
    )?;
    count(
        "continuum_kv_event_dropped",
        "KV events let go because a buffer was full",
        |feed| feed.dropped,
    )?;
    count(
        "continuum_kv_consumer_reconnects",
        "Connections to event streams after the first",
        |feed| feed.reconnects,
    )?;
    let consumers = || feeds.iter().filter_map(|feed| Some((feed, feed.state?)));
    out.gauges(
        "continuum_kv_consumer_connected",
        "1 while every event stream of the backend is connected",
        consumers().map(|(feed, _)| ([("backend", &*feed.backend)], i64::from(feed.connected))),
    )?;
    out.gauges(
        "continuum_kv_index_event_source_status",
        "State of a backend's event stream, the worst of several (1: in this state)",
        consumers().flat_map(|(feed, state)| {
            let labels =
                |status: StreamState| [("backend", &*feed.backend), ("status", status.as_str())];
            StreamState::ALL.map(|status| (labels(status), i64::from(status == state)))
        }),
    )
}

/// Encodes the resulting index changes.
fn changes(out: &mut FamilyEncoder<'_>, feeds: &[BackendFeed], view: &ViewStats) -> fmt::Result {
    let of_blocks = |feed: &BackendFeed, kind: EventKind| match kind {
        // Each store event has one type, as the events of prefixes do.
        EventKind::Created => {
            let TierMoves {
                offloaded,
                reloaded,
            } = feed.blocks.moves;
            feed.blocks
                .stored
                .saturating_sub(offloaded.saturating_add(reloaded))
        }
        EventKind::Evicted => feed.blocks.removed,
        EventKind::Purged => feed.blocks.cleared,
        EventKind::Offloaded => feed.blocks.moves.offloaded,
        EventKind::Reloaded => feed.blocks.moves.reloaded,
    };
    let of_prefixes = |feed: &BackendFeed, kind: EventKind| {
        let own = view.backends.iter().find(|own| own.backend == feed.backend);
        own.map_or(0, |own: &BackendStats| own.events[kind.index()])
    };
    out.counters(
        "continuum_kv_index_events",
        "Events by their effect; of blocks: stored is created, offloaded below the device or reloaded to it, removed is evicted, cleared is purged",
        feeds.iter().flat_map(|feed| {
            EventKind::ALL.map(|kind| {
                let labels = [("backend", &*feed.backend), ("type", kind.as_str())];
                (
                    labels,
                    of_blocks(feed, kind).saturating_add(of_prefixes(feed, kind)),
                )
            })
        }),
    )
}
