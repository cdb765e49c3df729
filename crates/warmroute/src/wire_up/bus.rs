//! What the routers of a fleet share over NATS.

use std::{path::PathBuf, sync::Arc, time::Duration};

use config::{ReplicaMode, Settings};
use event_log::{EventLog, EventLogSettings, LogNameError, LogNames, ResetError};
use nats_client::{
    NatsConnection, NatsCredentials, NatsCredentialsError, NatsDialer, NatsServer, NatsServerError,
    SharedConnection,
};
use net::{Clock, Destinations};
use prometheus_client::registry::Registry;

use self::metrics::BusCollector;

mod metrics;

/// The server that is used if none is configured.
const LOCAL: &str = "nats://127.0.0.1:4222";
/// The variable that names the server if the settings do not.
const VARIABLE: &str = "NATS_SERVER";
/// Longest wait for the server at the start, where the start needs it.
const PATIENCE: Duration = Duration::from_secs(15);

/// The parts that use the bus.
pub(super) struct Bus {
    pub(super) log: Arc<EventLog>,
    /// The connection, for all parts.
    pub(super) connection: Arc<SharedConnection>,
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
    /// engine is followed directly. Only a reset waits for it.
    pub(super) async fn start(
        settings: &Settings,
        clock: Clock,
        registry: &mut Registry,
    ) -> Result<Option<Self>, BusError> {
        let replicas = &settings.replicas;
        if replicas.mode != ReplicaMode::Nats {
            return Ok(None);
        }
        let names = LogNames::new(
            &replicas.nats.stream,
            &replicas.namespace,
            &replicas.component,
        )?;
        let dialer = dialer(settings)?;
        let replica: Arc<str> = format!("{:016x}", runtime::random()).into();
        if replicas.reset_states {
            reset(&dialer, &names, &replica, replicas.force_reset).await?;
        }
        tracing::info!(server = %dialer.server, %replica, stream = names.stream(), "events are shared over nats");
        let connection = SharedConnection::spawn(dialer, clock);
        let log = EventLog::spawn(
            EventLogSettings {
                names,
                replica,
                retention: replicas.nats.retention,
            },
            Arc::clone(&connection),
            clock,
        );
        registry.register_collector(Box::new(BusCollector::new(Arc::clone(&log))));
        Ok(Some(Self { log, connection }))
    }
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
    let opened = tokio::time::timeout(PATIENCE, dialer.open()).await;
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
