//! Binds the sockets of a router, or takes them over from a running process, before anything else
//! is started.

use std::{sync::Arc, time::Duration};

use config::{ServerSection, Settings};
use gateway::{CurrentGateway, ListenerPhase, ProbeListener, ProbeListenerError};
use net::{HttpProtocols, ListenAddr, ListenError, Listener, Listeners, TlsIdentity};
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
    pub(super) is_takeover: bool,
}

/// Returns what the data listener offers in a TLS handshake.
fn protocols(server: &ServerSection) -> HttpProtocols {
    if server.http2 {
        HttpProtocols::Http2
    } else {
        HttpProtocols::Http1
    }
}

/// Binds the addresses in the settings.
pub(super) async fn bind(
    settings: &Settings,
    mut inherited: Option<&mut InheritedSockets>,
) -> Result<BoundListeners, StartError> {
    let is_takeover = inherited.is_some();
    let (server, admin) = (&settings.server, &settings.admin);
    let (server_tls, admin_tls) = (
        identity(server.tls.as_ref(), protocols(server))?,
        identity(admin.tls.as_ref(), HttpProtocols::Http1)?,
    );
    let mut data = Vec::new();
    let more_addresses = server
        .also_listen
        .iter()
        .map(|listen| address(listen).chosen_by("server.also_listen"));
    for listen in std::iter::once(address(&server.listen).chosen_by("--port")).chain(more_addresses)
    {
        data.push(
            open(
                SocketPurpose::Data,
                &listen,
                inherited.as_deref_mut(),
                server_tls.as_ref(),
            )
            .await?,
        );
    }
    let listen = address(&admin.listen).chosen_by("--admin-listen");
    let admin = open(SocketPurpose::Admin, &listen, inherited, admin_tls.as_ref()).await?;
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
            .map(|listen| address(listen).chosen_by("server.probe_listen")),
        is_takeover,
    })
}

async fn open(
    purpose: SocketPurpose,
    wanted: &ListenAddr,
    inherited: Option<&mut InheritedSockets>,
    tls: Option<&Arc<TlsIdentity>>,
) -> Result<Arc<Listener>, StartError> {
    let listener = match inherited.and_then(|inherited| inherited.listener(purpose, wanted)) {
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

/// Answers probes at `listen`. Right after a takeover (`is_takeover`) the other process may hold this
/// address for a moment.
pub(super) async fn probes(
    gateway: &CurrentGateway,
    listen: &ListenAddr,
    phases: watch::Receiver<ListenerPhase>,
    is_takeover: bool,
) -> Result<ProbeListener, ProbeListenerError> {
    let trying = async {
        loop {
            match ProbeListener::start(gateway.current(), listen.clone(), phases.clone()).await {
                Err(ProbeListenerError::Listen(ListenError::Taken { .. })) if is_takeover => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                started => return started,
            }
        }
    };
    match tokio::time::timeout(LET_GO, trying).await {
        Ok(started) => started,
        Err(_) => ProbeListener::start(gateway.current(), listen.clone(), phases).await,
    }
}
