//! Starts the fleet on an index that is as warm as possible: from what the routers share over their
//! bus, else from a peer, else from the snapshot file.

use std::sync::Arc;

use config::Settings;
use fleet::{Fleet, FleetConfig, FleetParts, HubCache, NumberedWorker, OnVerdict, RedisPool};
use kv_blocks::HashScheme;
use prometheus_client::registry::Registry;

#[cfg(feature = "nats")]
use super::bus::Bus;
use super::{StartError, peer_snapshot};
use crate::index_snapshot::{self, IndexSnapshots, LastingState};

/// What the fleet is started with, besides the settings.
pub(super) struct FleetNeighbours {
    pub(super) state: LastingState,
    pub(super) scheme: HashScheme,
    pub(super) redis: Option<Arc<RedisPool>>,
    pub(super) on_verdict: OnVerdict,
    /// Id of this process among its replicas.
    #[cfg_attr(
        not(feature = "nats"),
        expect(dead_code, reason = "names it on the bus")
    )]
    pub(super) replica: u64,
}

/// The fleet, and what keeps its index beyond the process.
pub(super) struct StartedFleet {
    pub(super) fleet: Arc<Fleet>,
    pub(super) snapshots: Option<Arc<IndexSnapshots>>,
    #[cfg(feature = "nats")]
    pub(super) bus: Option<Bus>,
}

/// Starts the fleet.
pub(super) async fn start(
    settings: &Settings,
    neighbours: FleetNeighbours,
    registry: &mut Registry,
) -> Result<StartedFleet, StartError> {
    let state = neighbours.state.clone();
    #[cfg(feature = "nats")]
    let (bus, restored) = Bus::start(settings, &neighbours, registry)
        .await?
        .map_or((None, None), |(bus, restored)| (Some(bus), restored));
    #[cfg(not(feature = "nats"))]
    let restored = None;
    let snapshots = IndexSnapshots::new(&settings.kv_events.snapshot, &state, registry);
    let earlier = earlier_workers(settings, restored, &state, snapshots.as_ref()).await;
    let parts = FleetParts {
        config: FleetConfig::of(settings),
        models: settings.models.clone(),
        kv_cache_index: settings.kv_cache_index.clone(),
        redis: neighbours.redis,
        max_prefix_length: settings.prefix_routing.max_prefix_length,
        hub_cache: HubCache::from_env(|name| std::env::var(name).ok()),
        index: Arc::clone(&state.index),
        scheme: neighbours.scheme,
        earlier: earlier.clone(),
        clock: state.clock,
        on_verdict: neighbours.on_verdict,
    };
    #[cfg(feature = "nats")]
    {
        let log = bus.as_ref().map(|bus| Arc::clone(&bus.log));
        let fleet = Arc::new(Fleet::start_with_event_log(parts, log, registry)?);
        expect_earlier_workers(&earlier, &fleet, &state);
        let bus = bus.map(|bus| bus.keep_snapshots(&fleet, state));
        Ok(StartedFleet {
            fleet,
            snapshots,
            bus,
        })
    }
    #[cfg(not(feature = "nats"))]
    {
        let fleet = Arc::new(Fleet::start(parts, registry)?);
        expect_earlier_workers(&earlier, &fleet, &state);
        Ok(StartedFleet { fleet, snapshots })
    }
}

/// Drops what is known of earlier workers that do not appear in time, for example by discovery.
fn expect_earlier_workers(earlier: &[NumberedWorker], fleet: &Arc<Fleet>, state: &LastingState) {
    if !earlier.is_empty() {
        let (fleet, router) = (Arc::clone(fleet), Arc::clone(&state.router));
        runtime::spawn(index_snapshot::forget_absent_workers(fleet, router));
    }
}

/// Fills the empty index with the youngest content that there is, and returns its workers. What
/// routers share is younger than a file.
async fn earlier_workers(
    settings: &Settings,
    restored: Option<Vec<NumberedWorker>>,
    state: &LastingState,
    snapshots: Option<&Arc<IndexSnapshots>>,
) -> Vec<NumberedWorker> {
    if let Some(restored) = restored {
        return restored;
    }
    if let Some(copied) = peer_snapshot::load(settings, state).await {
        return copied;
    }
    index_snapshot::load(snapshots).await
}
