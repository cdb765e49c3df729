//! Why a router does not start.

use net::ListenError;

use super::redis;
use crate::{encryption::EncryptionError, takeover::TakeoverError};

/// Reason why nothing was started.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) enum StartError {
    /// A port could not be bound.
    Listen(#[from] ListenError),
    /// Connections to Redis cannot be set up.
    Redis(#[from] redis::PoolError),
    /// The fleet could not be started.
    Fleet(#[from] fleet::FleetStartError),
    /// The store of the response cache cannot be opened.
    Cache(#[from] response_cache::CacheStartError),
    /// The exchange with other routers cannot be started.
    Replicas(#[from] ::replicas::ReplicaStartError),
    /// Traces cannot be exported.
    Traces(#[from] otlp::ExporterError),
    /// The file of the audit cannot be used.
    Audit(#[from] admin::AuditFileError),
    /// The certificate of a listener cannot be used.
    Identity(#[from] EncryptionError),
    /// The store of shared token ids cannot be opened.
    Tokens(#[from] tokenization::SharedTokensError),
    /// The probe listener cannot be started.
    Probes(#[from] gateway::ProbeListenerError),
    /// The routers' bus cannot be used.
    #[cfg(feature = "nats")]
    Bus(#[from] super::bus::BusError),
    /// A running process did not hand over its listening sockets.
    Takeover(#[from] TakeoverError),
}
