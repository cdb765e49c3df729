//! Connects the replicas with the rest of the router.

use std::{collections::HashMap, io, sync::Arc};

#[cfg(feature = "nats")]
use api::SharedSnapshot;
use config::{ListenSetting, Settings};
use fleet::{Fleet, Snapshot};
use gateway::CurrentGateway;
use kv_blocks::WorkerId;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use replicas::{
    LoadSink, NoteQueue, ReplicaIdentity, ReplicaParts, ReplicaStartError, Replicas, SharedEvents,
    SharedNote, WorkerDirectory, settings_digest,
};
use routing::ReleasedRequest;
use tenants::Tenants;
use xxhash_rust::xxh3::xxh3_64;

use super::ListenAddresses;
#[cfg(feature = "nats")]
use super::bus::SharedBus;
use crate::{index_snapshot::LastingState, settings::admin_token};

/// The parts that replicas are connected with.
pub(super) struct ReplicaNeighbours {
    pub(super) fleet: Arc<Fleet>,
    pub(super) state: LastingState,
    pub(super) gateway: Arc<CurrentGateway>,
    pub(super) tenants: Arc<Tenants>,
    pub(super) notes: NoteQueue,
    #[cfg(feature = "nats")]
    pub(super) bus: Option<SharedBus>,
    /// Id of this process among its replicas.
    pub(super) replica: u64,
}

/// Starts the exchange with the other replicas, if there is one.
pub(super) fn start(
    settings: &Settings,
    addresses: &ListenAddresses,
    neighbours: ReplicaNeighbours,
    registry: &mut Registry,
) -> Result<Arc<Replicas>, ReplicaStartError> {
    let ReplicaNeighbours {
        fleet,
        state,
        gateway,
        tenants,
        notes,
        #[cfg(feature = "nats")]
        bus,
        replica,
    } = neighbours;
    let directory = FleetDirectory::new(fleet);
    let parts = ReplicaParts {
        settings: settings.replicas.clone(),
        identity: ReplicaIdentity {
            id: replica,
            address: address(settings, addresses).unwrap_or_default(),
            program: env!("CARGO_PKG_VERSION"),
            settings: settings_digest(settings),
        },
        router: Arc::clone(&state.router),
        workers: Arc::clone(&directory) as Arc<dyn WorkerDirectory>,
        sink: Arc::new(RouterSink {
            directory,
            gateway,
            tenants,
            state: state.clone(),
            #[cfg(feature = "nats")]
            log: bus.as_ref().map(|bus| Arc::clone(&bus.log)),
        }),
        notes,
        #[cfg(feature = "nats")]
        bus: bus.as_ref().map(|bus| Arc::clone(&bus.connection)),
        // The peers' listeners take the same one.
        token: admin_token(settings),
        clock: state.clock,
    };
    Replicas::start(parts, registry).map(Arc::new)
}

/// Returns the queue of notes for the peers, which takes none where nothing is shared.
pub(super) fn notes(settings: &Settings) -> NoteQueue {
    if Replicas::shares_load(&settings.replicas) {
        NoteQueue::open()
    } else {
        NoteQueue::default()
    }
}

/// Returns where other machines reach the admin listener, as well as this process can know; `None`:
/// there is no such listener.
fn address(settings: &Settings, addresses: &ListenAddresses) -> Option<String> {
    let scheme = match settings.admin.tls {
        Some(_) => "https",
        None => "http",
    };
    let bound = addresses.admin.as_ref()?.to_string();
    Some(match (&settings.admin.listen, bound.rsplit_once(':')) {
        (ListenSetting::Tcp(listen), Some((_, port))) if listen.ip().is_unspecified() => {
            let system = rustix::system::uname();
            let name = system.nodename().to_string_lossy();
            format!("{scheme}://{name}:{port}")
        }
        _ => format!("{scheme}://{bound}"),
    })
}

/// The names of the fleet's workers.
#[derive(Debug)]
struct FleetDirectory {
    fleet: Arc<Fleet>,
    /// The workers of one snapshot by name.
    named: Mutex<NamedWorkers>,
}

#[derive(Debug)]
struct NamedWorkers {
    snapshot: Arc<Snapshot>,
    ids: HashMap<Arc<str>, WorkerId>,
}

impl NamedWorkers {
    fn of(snapshot: Arc<Snapshot>) -> Self {
        let workers = snapshot.workers.iter();
        let ids = workers
            .map(|worker| (Arc::clone(&worker.name), worker.id))
            .collect();
        Self { snapshot, ids }
    }
}

impl FleetDirectory {
    fn new(fleet: Arc<Fleet>) -> Arc<Self> {
        let named = Mutex::new(NamedWorkers::of(fleet.snapshot()));
        Arc::new(Self { fleet, named })
    }
}

impl WorkerDirectory for FleetDirectory {
    fn name(&self, worker: WorkerId) -> Option<Arc<str>> {
        let snapshot = self.fleet.snapshot();
        Some(Arc::clone(&snapshot.worker(worker)?.name))
    }

    fn id(&self, name: &str) -> Option<WorkerId> {
        let snapshot = self.fleet.snapshot();
        let mut named = self.named.lock();
        if !Arc::ptr_eq(&named.snapshot, &snapshot) {
            *named = NamedWorkers::of(snapshot);
        }
        named.ids.get(name).copied()
    }
}

/// Returns a time in milliseconds since 1970 in its written form.
#[cfg(feature = "nats")]
fn at(unix_ms: u64) -> Option<String> {
    let nanos = i128::from(unix_ms) * 1_000_000;
    let at = time::OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?;
    Some(net::rfc3339(at))
}

/// Takes what the exchange delivers.
#[derive(Debug)]
struct RouterSink {
    directory: Arc<FleetDirectory>,
    gateway: Arc<CurrentGateway>,
    tenants: Arc<Tenants>,
    state: LastingState,
    #[cfg(feature = "nats")]
    log: Option<Arc<event_log::EventLog>>,
}

impl LoadSink for RouterSink {
    fn released(&self, released: Vec<ReleasedRequest>) {
        if !released.is_empty() {
            self.gateway.current().deliver_released(released);
        }
    }

    fn note(&self, note: SharedNote) {
        self.gateway.current().record_peer_note(note);
    }

    fn routers(&self, routers: u32) {
        self.tenants.routers().set(routers);
    }

    #[cfg(feature = "nats")]
    fn shared_events(&self) -> SharedEvents {
        let Some(log) = &self.log else {
            return SharedEvents::default();
        };
        let report = log.report();
        let owned = report.roles.into_iter();
        SharedEvents {
            lag_messages: report.pending,
            owns_streams: owned
                .filter(|(_, role)| *role == event_log::StreamRole::Owner)
                .map(|(stream, _)| match stream.rsplit_once('.') {
                    Some((worker, rank)) => format!("{worker}/{rank}"),
                    None => stream,
                })
                .collect(),
            snapshot: report.snapshot.map(|snapshot| SharedSnapshot {
                at: at(snapshot.unix_ms),
                messages: snapshot.messages,
                bytes: snapshot.bytes,
            }),
        }
    }

    fn copy_index(&self) -> io::Result<Vec<u8>> {
        // The workers first: targets of later ones have no name in the copy and are dropped.
        let workers = self.directory.fleet.numbered_workers();
        self.state.to_bytes(&workers)
    }

    fn memberships(&self) -> u64 {
        self.state.index.stats().memberships
    }

    fn index_digest(&self) -> u64 {
        let rows = self.state.index.digest().into_iter();
        let hashed = rows.filter_map(|row| {
            let name = self.directory.name(row.target.worker)?;
            let (rank, tier) = (row.target.rank.0, row.tier.as_str());
            let text = format!("{name}\n{rank}\n{tier}\n{}\n{}", row.blocks, row.digest);
            Some(xxh3_64(text.as_bytes()))
        });
        hashed.fold(0, u64::wrapping_add)
    }
}
