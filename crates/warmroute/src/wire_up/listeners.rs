//! Binds the sockets of a router, or takes them over from a running process, before anything else
//! is started.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use admin::{
    Access, AdminListeners, AuditFile, AuditFileError, AuditSinks, ProtectedListener, Tokens,
};
use config::{AdminSection, ListenSetting, ServerSection, Settings};
use gateway::{CurrentGateway, ListenerPhase, ProbeListener, ProbeListenerError};
use net::{Clock, HttpProtocols, ListenAddr, ListenError, Listener, Listeners, TlsIdentity};
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
    pub(super) operators: AdminListeners,
    pub(super) probe: Option<ListenAddr>,
    /// Whether a running process gave some of them.
    pub(super) is_takeover: bool,
}

/// Where a router listens.
pub(crate) struct ListenAddresses {
    /// Data listener.
    pub(crate) data: ListenAddr,
    /// Further data listeners.
    pub(crate) also: Vec<ListenAddr>,
    /// Admin listener.
    pub(crate) admin: ListenAddr,
    /// Metrics listener, if there is one.
    pub(crate) metrics: Option<ListenAddr>,
}

impl BoundListeners {
    /// Returns the addresses, with the ports that the system chose.
    pub(super) fn addresses(&self) -> ListenAddresses {
        let mut data = self.data.addresses().into_iter();
        ListenAddresses {
            // There is always a first one.
            data: data.next().unwrap_or_else(|| ListenAddr::tcp("0.0.0.0", 0)),
            also: data.collect(),
            admin: self.operators.admin.listener.address(),
            metrics: (self.operators.metrics.as_ref()).map(|it| it.listener.address()),
        }
    }

    /// Returns the sockets that another process may take over.
    pub(super) fn sockets(&self) -> Vec<(SocketPurpose, Weak<Listener>)> {
        let data = self.data.all().iter().map(|it| (SocketPurpose::Data, it));
        let metrics = self.operators.metrics.iter();
        let all = data
            .chain([(SocketPurpose::Admin, &self.operators.admin.listener)])
            .chain(metrics.map(|it| (SocketPurpose::Metrics, &it.listener)));
        all.map(|(purpose, it)| (purpose, Arc::downgrade(it)))
            .collect()
    }
}

/// Returns what the data listener offers in a TLS handshake.
fn protocols(server: &ServerSection) -> HttpProtocols {
    if server.http2 {
        HttpProtocols::Http2
    } else {
        HttpProtocols::Http1
    }
}

/// Binds the addresses in the settings. Operators must send one of `tokens`.
pub(super) async fn bind(
    settings: &Settings,
    tokens: &Tokens,
    mut inherited: Option<&mut InheritedSockets>,
) -> Result<BoundListeners, StartError> {
    let is_takeover = inherited.is_some();
    let server = &settings.server;
    // Both before any socket: no client gets a port that closes at once.
    let data_tls = identity(server.tls.as_ref(), protocols(server))?;
    let operator_tls = identity(settings.admin.tls.as_ref(), HttpProtocols::Http1)?;
    let data = bind_data(server, inherited.as_deref_mut(), data_tls).await?;
    Ok(BoundListeners {
        data,
        operators: bind_operators(settings, tokens, inherited, operator_tls).await?,
        probe: server
            .probe_listen
            .as_ref()
            .map(|listen| address(listen).chosen_by("server.probe_listen")),
        is_takeover,
    })
}

async fn bind_data(
    server: &ServerSection,
    mut inherited: Option<&mut InheritedSockets>,
    tls: Option<Arc<TlsIdentity>>,
) -> Result<Listeners, StartError> {
    let more_addresses = server
        .also_listen
        .iter()
        .map(|listen| address(listen).chosen_by("server.also_listen"));
    let mut data = Vec::new();
    for listen in std::iter::once(address(&server.listen).chosen_by("--port")).chain(more_addresses)
    {
        let inherited = inherited.as_deref_mut();
        data.push(open(SocketPurpose::Data, &listen, inherited, tls.as_ref()).await?);
    }
    let mut data = data.into_iter();
    // There is always a first one.
    let Some(first) = data.next() else {
        return Err(TakeoverError::new("there is no place to listen").into());
    };
    Ok(Listeners::new(first, data))
}

/// Binds the admin listener and that of the metrics, which has its tokens and its certificate.
async fn bind_operators(
    settings: &Settings,
    tokens: &Tokens,
    mut inherited: Option<&mut InheritedSockets>,
    tls: Option<Arc<TlsIdentity>>,
) -> Result<AdminListeners, StartError> {
    let (admin, metrics) = (&settings.admin, &settings.metrics);
    let audit = audit_sinks(admin)?;
    let access = |listen: &ListenSetting| Access {
        tokens: tokens.clone(),
        loopback: listen.is_local(),
        wrong_tokens: Arc::default(),
        clock: Clock::system(),
        audit: audit.clone(),
    };
    let place = address(&admin.listen).chosen_by("--admin-listen");
    let reused = inherited.as_deref_mut();
    let operators = ProtectedListener {
        listener: open(SocketPurpose::Admin, &place, reused, tls.as_ref()).await?,
        access: access(&admin.listen),
    };
    let scrapers = match metrics.listen.as_ref().filter(|_| metrics.enabled) {
        Some(listen) => {
            let place = address(listen).chosen_by("--metrics-listen");
            Some(ProtectedListener {
                listener: open(SocketPurpose::Metrics, &place, inherited, tls.as_ref()).await?,
                access: access(listen),
            })
        }
        None => None,
    };
    Ok(AdminListeners {
        admin: operators,
        metrics: scrapers,
    })
}

/// Opens the file of the audit, if one is configured.
pub(crate) fn audit_sinks(admin: &AdminSection) -> Result<AuditSinks, AuditFileError> {
    let path = admin.audit_log.clone();
    path.map(AuditFile::open).transpose().map(AuditSinks::of)
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
