//! One look at the routers that share state with this one.

use std::time::Duration;

use config::{ReplicaMode, Settings};
use replicas::PeerProbe;

use crate::Environment;

/// An observation of the other replicas.
#[derive(Debug)]
pub(crate) enum ReplicaObservation {
    /// This router shares nothing.
    Alone,
    /// The admin listeners of the others answered, or the settings cannot be used.
    Peers(Result<Vec<PeerProbe>, String>),
    /// The server answered, or the settings cannot be used.
    #[cfg(feature = "nats")]
    Bus(Result<super::BusObservation, String>),
    /// This program cannot look.
    #[cfg(not(feature = "nats"))]
    NotBuilt,
}

impl ReplicaObservation {
    /// Looks for as long as `limit`, at most.
    pub(crate) async fn of(
        settings: &Settings,
        environment: &Environment,
        limit: Duration,
    ) -> Self {
        match settings.replicas.mode {
            ReplicaMode::Alone => Self::Alone,
            ReplicaMode::Peers => {
                let token = environment.admin_token.as_ref().map(config::Secret::expose);
                let probes = replicas::probe_peers(settings, token, limit).await;
                Self::Peers(probes.map_err(|error| error.to_string()))
            }
            #[cfg(feature = "nats")]
            ReplicaMode::Nats => Self::Bus(match &environment.bus {
                Some(Ok(dialer)) => Ok(super::bus::observe(settings, dialer, limit).await),
                Some(Err(reason)) => Err(reason.clone()),
                None => Err("no nats server is known".to_owned()),
            }),
            #[cfg(not(feature = "nats"))]
            ReplicaMode::Nats => Self::NotBuilt,
        }
    }
}
