//! What the routers of a fleet share over NATS.

use std::{path::PathBuf, sync::Arc, time::Duration};

use config::{ReplicaMode, Settings};
use event_log::{
    EventLog, EventLogSettings, LogNameError, LogNames, ResetError, SnapshotSettings,
    SnapshotSource, SnapshotStore, SnapshotTask,
};
use fleet::{Fleet, NumberedWorker};
use nats_client::{
    NatsConnection, NatsCredentials, NatsCredentialsError, NatsDialer, NatsServer, NatsServerError,
    SharedConnection,
};
use net::Destinations;
use prometheus_client::registry::Registry;
use registrations::{RegistrationSync, Registrations};
use tokio::time::timeout;

use self::metrics::BusCollector;
use super::fleet_start::FleetNeighbours;
use crate::index_snapshot::LastingState;

mod metrics;

/// The server that is used if none is configured.
const LOCAL: &str = "nats://127.0.0.1:4222";
/// The variable that names the server if the settings do not.
const VARIABLE: &str = "NATS_SERVER";
/// Longest wait for the server at the start, where the start needs it.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest wait for the server where the start can go on without it.
const FIRST_CONNECTION: Duration = Duration::from_secs(3);
/// Longest time for reading a snapshot.
const RESTORE: Duration = Duration::from_secs(60);
/// Most bytes of a snapshot.
const LARGEST_SNAPSHOT: u64 = 16 << 30;

/// The parts that use the bus.
pub(super) struct Bus {
    pub(super) log: Arc<EventLog>,
    connection: Arc<SharedConnection>,
    snapshot: SnapshotSettings,
    keeping: Option<SnapshotTask>,
    registrations: RegistrationSync,
}

/// The parts of the bus that the exchange of load uses.
pub(super) struct SharedBus {
    pub(super) connection: Arc<SharedConnection>,
    pub(super) log: Arc<EventLog>,
}

/// What a snapshot of the routers contains.
#[derive(Debug)]
struct IndexSource {
    state: LastingState,
    fleet: Arc<Fleet>,
}

impl SnapshotSource for IndexSource {
    fn save(&self) -> Result<Vec<u8>, String> {
        // The workers first: targets of later ones have no name in the snapshot and are dropped.
        let workers = self.fleet.numbered_workers();
        self.state
            .to_bytes(&workers)
            .map_err(|error| error.to_string())
    }
}

/// Why the routers' bus cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BusError {
    #[error(transparent)]
    Names(#[from] LogNameError),
    #[error("replicas.nats.url: {0}")]
    Server(#[from] NatsServerError),
    #[error("replicas.nats.credentials_file {}: {source}", path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("replicas.nats.credentials_file: {0}")]
    Credentials(#[from] NatsCredentialsError),
    #[error("replicas.reset_states needs the nats server: {reason}")]
    Unreachable { reason: String },
    #[error(transparent)]
    Reset(#[from] ResetError),
}

impl Bus {
    /// Starts using the bus if the settings say so. The server need not be there: until it is, each
    /// engine is followed directly. Only a reset waits for it. Returns the workers of the snapshot
    /// that was loaded into the empty index, too, if there was one.
    pub(super) async fn start(
        settings: &Settings,
        neighbours: &FleetNeighbours,
        registry: &mut Registry,
    ) -> Result<Option<(Self, Option<Vec<NumberedWorker>>)>, BusError> {
        let (replicas, clock) = (&settings.replicas, neighbours.state.clock);
        if replicas.mode != ReplicaMode::Nats {
            return Ok(None);
        }
        let names = LogNames::new(
            &replicas.nats.stream,
            &replicas.namespace,
            &replicas.component,
        )?;
        let dialer = dialer(settings)?;
        let replica: Arc<str> = format!("{:016x}", neighbours.replica).into();
        if replicas.reset_states {
            reset(&dialer, &names, &replica, replicas.force_reset).await?;
        }
        tracing::info!(server = %dialer.server, %replica, stream = names.stream(), "events are shared over nats");
        let connection = SharedConnection::spawn(dialer, clock);
        let registrations = RegistrationSync {
            registrations: Registrations::new(Arc::clone(&replica), clock),
            connection: Arc::clone(&connection),
            bucket: names.bucket("workers"),
        };
        let restored = restore(&connection, &names, &replica, &neighbours.state).await;
        let log = EventLog::spawn(
            EventLogSettings {
                names,
                replica,
                retention: replicas.nats.retention,
            },
            Arc::clone(&connection),
            clock,
        );
        let restored = restored.map(|(next, workers)| {
            log.set_history_from(next);
            workers
        });
        let shared = Arc::clone(&registrations.registrations);
        registry.register_collector(Box::new(BusCollector::new(Arc::clone(&log), shared)));
        let snapshot = SnapshotSettings {
            threshold: replicas.nats.snapshot_threshold,
            retention: replicas.nats.retention,
        };
        let keeping = None;
        Ok(Some((
            Self {
                log,
                connection,
                snapshot,
                keeping,
                registrations,
            },
            restored,
        )))
    }

    /// Returns what the exchange of load uses of it.
    pub(super) fn share(&self) -> SharedBus {
        SharedBus {
            connection: Arc::clone(&self.connection),
            log: Arc::clone(&self.log),
        }
    }

    /// Returns the workers that the routers share.
    pub(super) fn registrations(&self) -> RegistrationSync {
        self.registrations.clone()
    }

    /// Starts making snapshots of the index.
    pub(super) fn keep_snapshots(mut self, fleet: &Arc<Fleet>, state: LastingState) -> Self {
        let source = IndexSource {
            state,
            fleet: Arc::clone(fleet),
        };
        let task = SnapshotTask::spawn(Arc::clone(&self.log), Arc::new(source), self.snapshot);
        self.keeping = Some(task);
        self
    }

    /// Ends the use of the bus; the other routers take over at once.
    pub(super) async fn stop(self) {
        drop(self.keeping);
        self.log.leave().await;
    }
}

/// Loads the snapshot that the routers share, if the server is there. Returns the message of the
/// log behind it, and its workers.
async fn restore(
    connection: &SharedConnection,
    names: &LogNames,
    replica: &Arc<str>,
    state: &LastingState,
) -> Option<(u64, Vec<NumberedWorker>)> {
    let mut bus = connection.watch();
    let connected = bus.wait_for(|state| state.client.is_some());
    let client = timeout(FIRST_CONNECTION, connected)
        .await
        .ok()?
        .ok()?
        .client
        .clone()?;
    let read = async {
        let store = SnapshotStore::open(&client, names, replica).await?;
        store.restore(LARGEST_SNAPSHOT).await
    };
    let restored = match timeout(RESTORE, read).await {
        Ok(Ok(restored)) => restored?,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the routers' snapshot of the index is not read: the index starts empty");
            return None;
        }
        Err(_) => {
            tracing::warn!(limit = ?RESTORE, "the routers' snapshot of the index is not read in time: the index starts empty");
            return None;
        }
    };
    let (next, pointer) = (restored.next, restored.pointer);
    let state = state.clone();
    let loaded = runtime::spawn_blocking(move || state.load_bytes(&restored.bytes));
    match loaded.await {
        Ok(Ok(workers)) => {
            tracing::info!(
                workers = workers.len(),
                next,
                made_by = pointer.replica,
                "the routers' snapshot of the index is loaded"
            );
            Some((next, workers))
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, "the routers' snapshot of the index is rejected: the index starts empty");
            None
        }
        Err(error) => {
            tracing::error!(%error, "the load of the routers' snapshot ended with a panic: the index starts empty");
            None
        }
    }
}

/// Returns how the routers' server is reached, or why that cannot be known; `None`: they use none.
pub(super) fn dialer_for_checks(settings: &Settings) -> Option<Result<NatsDialer, String>> {
    let is_used = settings.replicas.mode == ReplicaMode::Nats;
    is_used.then(|| dialer(settings).map_err(|error| error.to_string()))
}

fn dialer(settings: &Settings) -> Result<NatsDialer, BusError> {
    let nats = &settings.replicas.nats;
    let server = nats
        .url
        .clone()
        .or_else(|| std::env::var(VARIABLE).ok().filter(|url| !url.is_empty()))
        .unwrap_or_else(|| LOCAL.to_owned());
    let server: NatsServer = server.parse()?;
    let credentials = match &nats.credentials_file {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|source| BusError::File {
                path: path.clone(),
                source,
            })?;
            Some(text.parse::<NatsCredentials>()?)
        }
    };
    Ok(NatsDialer {
        server,
        credentials,
        trust: None,
        // The server comes from the operator's configuration.
        destinations: Destinations::Any,
        name: "warmroute".to_owned(),
    })
}

/// Discards what earlier runs left, or refuses.
async fn reset(
    dialer: &NatsDialer,
    names: &LogNames,
    replica: &Arc<str>,
    force: bool,
) -> Result<(), BusError> {
    let unreachable = |reason: String| BusError::Unreachable { reason };
    let opened = timeout(PATIENCE, dialer.open()).await;
    let connection: NatsConnection = opened
        .map_err(|_| unreachable(format!("{} does not answer", dialer.server)))?
        .map_err(|error| unreachable(error.to_string()))?;
    event_log::reset(&connection.client, names, replica, force).await?;
    tracing::info!(
        stream = names.stream(),
        "stream and snapshot of earlier runs discarded"
    );
    Ok(())
}
