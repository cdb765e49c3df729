//! Binds the sockets of a router, or takes them over from a running process, before anything else
//! is started. A router inside another program has those that its settings name.

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

use super::{ProcessOwner, StartError};
use crate::{
    encryption::{encrypted, identity},
    from_settings::address,
    takeover::{InheritedSockets, SocketPurpose, TakeoverError},
};

/// Longest wait for the other process to close a socket that is not handed over.
const LET_GO: Duration = Duration::from_secs(5);

/// Bound sockets, and the probe address, which the probe listener binds itself.
pub(super) struct BoundListeners {
    pub(super) data: Option<Listeners>,
    pub(super) operators: AdminListeners,
    pub(super) probe: Option<ListenAddr>,
    /// Whether a running process gave some of them.
    pub(super) is_takeover: bool,
}

/// Where a router listens.
pub(crate) struct ListenAddresses {
    /// Data listener, if there is one.
    pub(crate) data: Option<ListenAddr>,
    /// Further data listeners.
    pub(crate) also: Vec<ListenAddr>,
    /// Admin listener, if there is one.
    pub(crate) admin: Option<ListenAddr>,
    /// Metrics listener, if there is one.
    pub(crate) metrics: Option<ListenAddr>,
}

impl BoundListeners {
    /// Returns the addresses, with the ports that the system chose.
    pub(super) fn addresses(&self) -> ListenAddresses {
        let data = self.data.as_ref().map(Listeners::addresses);
        let mut data = data.into_iter().flatten();
        let operators = &self.operators;
        ListenAddresses {
            data: data.next(),
            also: data.collect(),
            admin: (operators.admin.as_ref()).map(|it| it.listener.address()),
            metrics: (operators.metrics.as_ref()).map(|it| it.listener.address()),
        }
    }

    /// Returns the sockets that another process may take over.
    pub(super) fn sockets(&self) -> Vec<(SocketPurpose, Weak<Listener>)> {
        let data = self.data.iter().flat_map(Listeners::all);
        let (admin, metrics) = (self.operators.admin.iter(), self.operators.metrics.iter());
        let all = data
            .map(|it| (SocketPurpose::Data, it))
            .chain(admin.map(|it| (SocketPurpose::Admin, &it.listener)))
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

/// Binds the addresses in the settings, without their defaults where the process is another
/// program's. Operators must send one of `tokens`.
pub(super) async fn bind(
    settings: &Settings,
    owner: ProcessOwner,
    tokens: &Tokens,
    mut inherited: Option<&mut InheritedSockets>,
) -> Result<BoundListeners, StartError> {
    let is_takeover = inherited.is_some();
    let server = &settings.server;
    // Both before any socket: no client gets a port that closes at once.
    let data_tls = identity(server.tls.as_ref(), protocols(server))?;
    let operator_tls = identity(settings.admin.tls.as_ref(), HttpProtocols::Http1)?;
    let data = bind_data(settings, owner, inherited.as_deref_mut(), data_tls).await?;
    let operators = bind_operators(settings, owner, tokens, inherited, operator_tls);
    Ok(BoundListeners {
        data,
        operators: operators.await?,
        probe: server
            .probe_listen
            .as_ref()
            .map(|listen| address(listen).chosen_by("server.probe_listen")),
        is_takeover,
    })
}

/// Returns whether the address with this key is listened at.
fn is_wanted(settings: &Settings, owner: ProcessOwner, key: &str) -> bool {
    owner == ProcessOwner::Router || settings.is_set(key)
}

/// Returns what the operator sets an address with: another program has the key, but no flags.
fn chooser(owner: ProcessOwner, flag: &'static str, key: &'static str) -> &'static str {
    match owner {
        ProcessOwner::Router => flag,
        ProcessOwner::Program => key,
    }
}

/// Binds the data listeners: the first one where it is wanted, and the further ones.
async fn bind_data(
    settings: &Settings,
    owner: ProcessOwner,
    mut inherited: Option<&mut InheritedSockets>,
    tls: Option<Arc<TlsIdentity>>,
) -> Result<Option<Listeners>, StartError> {
    let server = &settings.server;
    let more_addresses = server
        .also_listen
        .iter()
        .map(|listen| address(listen).chosen_by("server.also_listen"));
    let first = is_wanted(settings, owner, "server.listen").then(|| {
        let chooser = chooser(owner, "--port", "server.listen");
        address(&server.listen).chosen_by(chooser)
    });
    let mut data = Vec::new();
    for listen in first.into_iter().chain(more_addresses) {
        let inherited = inherited.as_deref_mut();
        data.push(open(SocketPurpose::Data, &listen, inherited, tls.as_ref()).await?);
    }
    let mut data = data.into_iter();
    Ok(data.next().map(|first| Listeners::new(first, data)))
}

/// Binds the admin listener, where it is wanted, and that of the metrics, which has its tokens and
/// its certificate.
async fn bind_operators(
    settings: &Settings,
    owner: ProcessOwner,
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
    let operators = if is_wanted(settings, owner, "admin.listen") {
        let chooser = chooser(owner, "--admin-listen", "admin.listen");
        let place = address(&admin.listen).chosen_by(chooser);
        let reused = inherited.as_deref_mut();
        Some(ProtectedListener {
            listener: open(SocketPurpose::Admin, &place, reused, tls.as_ref()).await?,
            access: access(&admin.listen),
        })
    } else {
        None
    };
    let scrapers = match metrics.listen.as_ref().filter(|_| metrics.enabled) {
        Some(listen) => {
            let chooser = chooser(owner, "--metrics-listen", "metrics.listen");
            let place = address(listen).chosen_by(chooser);
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
