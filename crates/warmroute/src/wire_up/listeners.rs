//! Binds the sockets of a router, or takes them over from a running process, before anything else
//! is started.

use std::{sync::Arc, time::Duration};

use config::Settings;
use gateway::{CurrentGateway, ListenerPhase, ProbeListener, ProbeListenerError};
use net::{ListenAddr, ListenError, Listener, Listeners, TlsIdentity};
use tokio::sync::watch;

use super::StartError;
use crate::{
    encryption::{encrypted, identity},
    from_settings::address,
    takeover::{InheritedSockets, SocketPurpose, TakeoverError},
};

/// Longest wait for the other process to close a socket that is not handed over.
const LET_GO: Duration = Duration::from_secs(5);

/// Bound sockets, and the probe address, which the probe listener binds itself.
pub(super) struct BoundListeners {
    pub(super) data: Listeners,
    pub(super) admin: Arc<Listener>,
    pub(super) probe: Option<ListenAddr>,
    /// Whether a running process gave some of them.
    pub(super) taken: bool,
}

/// Binds the addresses in the settings.
pub(super) async fn bind(
    settings: &Settings,
    mut given: Option<&mut InheritedSockets>,
) -> Result<BoundListeners, StartError> {
    let taken = given.is_some();
    let (server, admin) = (&settings.server, &settings.admin);
    let (server_tls, admin_tls) = (
        identity(server.tls.as_ref())?,
        identity(admin.tls.as_ref())?,
    );
    let mut data = Vec::new();
    let places = server
        .also_listen
        .iter()
        .map(|place| address(place).chosen_by("server.also_listen"));
    for place in std::iter::once(address(&server.listen).chosen_by("--port")).chain(places) {
        data.push(
            open(
                SocketPurpose::Data,
                &place,
                given.as_deref_mut(),
                server_tls.as_ref(),
            )
            .await?,
        );
    }
    let place = address(&admin.listen).chosen_by("--admin-listen");
    let admin = open(SocketPurpose::Admin, &place, given, admin_tls.as_ref()).await?;
    let mut data = data.into_iter();
    // There is always a first one.
    let Some(first) = data.next() else {
        return Err(TakeoverError::new("there is no place to listen").into());
    };
    Ok(BoundListeners {
        data: Listeners::new(first, data),
        admin,
        probe: server
            .probe_listen
            .as_ref()
            .map(|place| address(place).chosen_by("server.probe_listen")),
        taken,
    })
}

async fn open(
    door: SocketPurpose,
    wanted: &ListenAddr,
    given: Option<&mut InheritedSockets>,
    tls: Option<&Arc<TlsIdentity>>,
) -> Result<Arc<Listener>, StartError> {
    let listener = match given.and_then(|given| given.listener(door, wanted)) {
        Some(Ok(listener)) => listener,
        Some(Err(error)) => {
            return Err(TakeoverError::new(format!(
                "{wanted} was given and cannot be used: {error}"
            ))
            .into());
        }
        None => net::listen(wanted).await?,
    };
    Ok(Arc::new(encrypted(listener, tls)))
}

/// Answers probes at `place`. Right after a takeover (`taken`) the other process may hold this
/// address for a moment.
pub(super) async fn probes(
    gateway: &CurrentGateway,
    place: &ListenAddr,
    phases: watch::Receiver<ListenerPhase>,
    taken: bool,
) -> Result<ProbeListener, ProbeListenerError> {
    let trying = async {
        loop {
            match ProbeListener::start(gateway.current(), place.clone(), phases.clone()).await {
                Err(ProbeListenerError::Listen(ListenError::Taken { .. })) if taken => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                started => return started,
            }
        }
    };
    match tokio::time::timeout(LET_GO, trying).await {
        Ok(started) => started,
        Err(_) => ProbeListener::start(gateway.current(), place.clone(), phases).await,
    }
}
