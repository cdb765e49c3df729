//! Restart without a gap in service: a new process gets the listening sockets of the running one,
//! which then drains and ends.
//!
//! The new process sends the request over the running one's admin listener, and names a unix socket
//! in a directory of its own; the running one connects to it and sends the sockets. It continues
//! unchanged until the new one reports that it serves.

use std::{
    fs::DirBuilder,
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::DirBuilderExt, net::UnixListener, net::UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use config::Settings;
use http::{HeaderMap, HeaderValue, StatusCode, header::AUTHORIZATION};
use net::{
    Address, ListenAddr, Listener, ListenerOwner, SharedListener, TrustRoots, WorkerUrl, fetch,
    handover,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{
    drain::{DrainProgress, NewConnections},
    from_settings,
    settings::admin_token,
};

const SCHEMA: &str = "warmroute.takeover/1";
/// Time limit for one step between the two processes.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a request that was refused with 409 is repeated.
const CONFLICT_PAUSE: Duration = Duration::from_millis(50);
/// Time limit for the new process to report that it serves; it probes its workers first.
const LONGEST_START: Duration = Duration::from_secs(60);
/// Longest answer of the running process, in bytes.
const LONGEST_ANSWER: usize = 64 * 1024;

/// Reason why a running process did not hand over its sockets.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TakeoverError(String);

impl TakeoverError {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// Purpose of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SocketPurpose {
    /// Data listener.
    Data,
    /// Admin listener.
    Admin,
    /// Metrics listener.
    Metrics,
}

/// Text sent with the sockets, in their order.
#[derive(Serialize, Deserialize)]
struct SocketManifest {
    schema: String,
    sockets: Vec<NamedSocket>,
}

#[derive(Serialize, Deserialize)]
struct NamedSocket {
    #[serde(rename = "door")]
    purpose: SocketPurpose,
    address: String,
}

/// The running process's side of a takeover.
#[derive(Debug)]
pub(crate) struct SocketHandover {
    listeners: Vec<(SocketPurpose, Weak<Listener>)>,
    draining: Arc<DrainProgress>,
    /// Whether another process has taken over.
    done: watch::Sender<bool>,
    requested: AtomicBool,
}

impl SocketHandover {
    /// Returns the handover of a process with these listeners.
    pub(crate) fn new(
        listeners: Vec<(SocketPurpose, Weak<Listener>)>,
        draining: Arc<DrainProgress>,
    ) -> Arc<Self> {
        Arc::new(Self {
            listeners,
            draining,
            done: watch::Sender::new(false),
            requested: AtomicBool::new(false),
        })
    }

    /// Resolves when another process has taken over.
    pub(crate) fn done(&self) -> watch::Receiver<bool> {
        self.done.subscribe()
    }

    /// Sends the sockets to the process that listens at `socket`. Blocks for a moment; a separate
    /// thread waits for the result.
    pub(crate) fn to(self: &Arc<Self>, socket: &Path) -> Result<(), String> {
        if self.requested.swap(true, Ordering::AcqRel) {
            return Err(
                "another process is taking over already: wait until it has, or has ended"
                    .to_owned(),
            );
        }
        let sent = self
            .send_sockets(socket)
            .inspect_err(|_| self.requested.store(false, Ordering::Release));
        let (stream, shared) =
            sent.map_err(|error| format!("the listening sockets could not be given: {error}"))?;
        let this = Arc::clone(self);
        // A detached thread: this process may be stopped meanwhile.
        runtime::spawn_thread("takeover", move || this.wait(&stream, &shared))
            .map_err(|error| error.to_string())?;
        Ok(())
    }

    fn send_sockets(&self, socket: &Path) -> io::Result<(UnixStream, Vec<SharedListener>)> {
        let mut note = SocketManifest {
            schema: SCHEMA.to_owned(),
            sockets: Vec::new(),
        };
        let mut shared = Vec::new();
        for (purpose, listener) in &self.listeners {
            let Some(listener) = listener.upgrade() else {
                return Err(io::Error::other("this process is ending"));
            };
            let share = listener.share()?;
            note.sockets.push(NamedSocket {
                purpose: *purpose,
                address: share.address.to_string(),
            });
            shared.push(share);
        }
        let stream = handover::connect(socket)?;
        stream.set_read_timeout(Some(LONGEST_START))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let sockets: Vec<_> = shared.iter().map(|share| share.socket.as_fd()).collect();
        handover::give(
            &stream,
            &sockets,
            &serde_json::to_vec(&note).map_err(io::Error::other)?,
        )?;
        Ok((stream, shared))
    }

    fn wait(&self, stream: &UnixStream, shared: &[SharedListener]) {
        if matches!(handover::wait_for_byte(stream), Ok(true)) {
            tracing::info!("another process has taken over: ending with what runs");
            shared.iter().for_each(SharedListener::keep_socket_file);
            self.draining.begin(NewConnections::HandedOver, None);
            self.done.send_replace(true);
        } else {
            tracing::warn!(
                "the process that asked for the listening sockets has not taken over: going on"
            );
            self.requested.store(false, Ordering::Release);
        }
    }
}

/// Sockets received from a running process.
#[derive(Debug)]
pub(crate) struct InheritedSockets {
    sockets: Vec<(SocketPurpose, ListenAddr, OwnedFd)>,
    stream: UnixStream,
}

impl InheritedSockets {
    /// Returns the socket for this purpose, if the running process had one at `wanted`, or at a
    /// port chosen by the system if `wanted` leaves it open.
    pub(crate) fn listener(
        &mut self,
        purpose: SocketPurpose,
        wanted: &ListenAddr,
    ) -> Option<io::Result<Listener>> {
        let any_port = wanted.port() == Some(0);
        let fits = |(own, address, _): &(SocketPurpose, ListenAddr, OwnedFd)| {
            let same_host = any_port && address.clone().with_port(0).address() == wanted.address();
            *own == purpose && (same_host || address.address() == wanted.address())
        };
        let at = self.sockets.iter().position(fits)?;
        let (_, address, socket) = self.sockets.remove(at);
        Some(Listener::taken(socket, &address))
    }

    /// Reports that this process serves, so that the other one may end.
    pub(crate) fn taken_over(mut self) -> io::Result<()> {
        self.stream.write_all(b"1")
    }
}

/// Requests the sockets of the process that runs with these settings; `None`: there is none.
///
/// # Errors
///
/// It runs, and does not hand them over.
pub(crate) async fn inherit_sockets(
    settings: &Settings,
) -> Result<Option<InheritedSockets>, TakeoverError> {
    let listen = from_settings::address(&settings.admin.listen);
    if listen.port() == Some(0) {
        // No process can be reached at an address that is not known yet.
        return Ok(None);
    }
    if settings
        .admin
        .tls
        .as_ref()
        .is_some_and(|tls| tls.client_ca.is_some())
    {
        let why = "--takeover cannot show a certificate to an admin listener with admin.tls.client_ca: stop the running process, \
                   then start this one";
        return Err(TakeoverError::new(why));
    }
    let mut url = admin_url(&listen, settings.admin.tls.is_some())?;
    if settings.admin.tls.is_some() {
        // The request stays on this machine, under an address that certificates seldom name.
        url =
            url.with_trust(TrustRoots::blind().map_err(|error| TakeoverError(error.to_string()))?);
    }
    let meeting = HandoverPoint::new().map_err(|error| {
        TakeoverError(format!("no socket for a take-over could be made: {error}"))
    })?;
    let mut headers = HeaderMap::new();
    // The running process reports an error if it expects another token.
    let token = admin_token(settings);
    if let Some(value) =
        token.and_then(|token| HeaderValue::try_from(format!("Bearer {}", token.expose())).ok())
    {
        headers.insert(AUTHORIZATION, value);
    }
    let body = serde_json::json!(api::TakeoverRequest {
        socket: meeting.path.clone(),
    });
    if !request_sockets(&url, &headers, &Bytes::from(body.to_string())).await? {
        return Ok(None);
    }
    let received = runtime::spawn_blocking(move || meeting.take()).await;
    received
        .map_err(io::Error::other)
        .and_then(|received| received)
        .map(Some)
        .map_err(|error| {
            TakeoverError(format!(
                "the running process gave no listening sockets: {error}"
            ))
        })
}

/// Sends the request for the sockets; `false`: no process answers at `url`.
///
/// A process that has just handed its sockets over may still take connections for a moment, and
/// refuses with 409: the request is repeated then, and reaches its successor.
async fn request_sockets(
    url: &WorkerUrl,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<bool, TakeoverError> {
    let started = tokio::time::Instant::now();
    loop {
        if headers.contains_key(AUTHORIZATION) && !is_listener_ours(url).await? {
            return Ok(false);
        }
        let sent = fetch::post(
            url,
            "/admin/takeover",
            headers,
            Some(body.clone()),
            TIMEOUT,
            LONGEST_ANSWER,
        );
        let reply = match sent.await {
            Ok(reply) if reply.status.is_success() => return Ok(true),
            Ok(reply) => reply,
            Err(fetch::FetchError::Connect { .. }) => return Ok(false),
            Err(error) => {
                return Err(TakeoverError(format!(
                    "the running process did not answer a take-over: {error}"
                )));
            }
        };
        if reply.status == StatusCode::CONFLICT && started.elapsed() < TIMEOUT {
            tokio::time::sleep(CONFLICT_PAUSE).await;
            continue;
        }
        let why = String::from_utf8_lossy(&reply.body)
            .chars()
            .take(500)
            .collect::<String>();
        let status = reply.status.as_u16();
        return Err(TakeoverError(format!(
            "the running process refused a take-over with status {status}: {why}"
        )));
    }
}

/// Returns whether a process of this user listens at `url`; `false`: nobody does.
///
/// # Errors
///
/// It is another user's, or that is unknown: the admin token is not for it.
async fn is_listener_ours(url: &WorkerUrl) -> Result<bool, TakeoverError> {
    let address = url.address();
    let owner = runtime::spawn_blocking(move || net::listener_owner(&address)).await;
    let place = url.display_name();
    match owner.map_err(io::Error::other).and_then(|owner| owner) {
        Ok(ListenerOwner::ThisUser) => Ok(true),
        Ok(ListenerOwner::Nobody) => Ok(false),
        Ok(ListenerOwner::Other(user)) => Err(TakeoverError(format!(
            "a process of user {user} listens at {place}: it does not get the admin token, stop it or start this one as that user"
        ))),
        Err(error) => Err(TakeoverError(format!(
            "whose process listens at {place} is unknown ({error}), and the admin token is not for everyone: stop the running \
             process, then start this one"
        ))),
    }
}

fn admin_url(listen: &ListenAddr, encrypted: bool) -> Result<WorkerUrl, TakeoverError> {
    let text = match listen.address() {
        Address::Tcp { .. } if encrypted => format!("https://{listen}"),
        Address::Tcp { .. } => format!("http://{listen}"),
        Address::Unix(path) => format!("unix://{}", path.display()),
    };
    text.parse().map_err(|error| {
        TakeoverError(format!(
            "admin.listen cannot be asked for a take-over: {error}"
        ))
    })
}

/// Unix socket at which the running process delivers the sockets.
struct HandoverPoint {
    folder: PathBuf,
    path: PathBuf,
    listener: UnixListener,
}

impl HandoverPoint {
    fn new() -> io::Result<Self> {
        let random = runtime::random();
        let folder = std::env::temp_dir().join(format!("warmroute-takeover-{random:016x}"));
        // Fails if the path exists: another user's directory is never used.
        DirBuilder::new().mode(0o700).create(&folder)?;
        let path = folder.join("sockets");
        let listener = handover::listen(&path);
        let listener = listener.inspect_err(|_| drop(std::fs::remove_dir(&folder)))?;
        Ok(Self {
            folder,
            path,
            listener,
        })
    }

    /// Accepts the sockets; the running process connects before it answers.
    fn take(self) -> io::Result<InheritedSockets> {
        self.listener.set_nonblocking(true)?;
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let (sockets, note) = handover::take(&stream)?;
        let note: SocketManifest = serde_json::from_slice(&note).map_err(io::Error::other)?;
        if note.schema != SCHEMA || note.sockets.len() != sockets.len() {
            return Err(io::Error::other(format!(
                "it speaks {:?}, expected {SCHEMA}",
                note.schema
            )));
        }
        let mut named = Vec::new();
        for (NamedSocket { purpose, address }, socket) in note.sockets.into_iter().zip(sockets) {
            named.push((
                purpose,
                address.parse::<ListenAddr>().map_err(io::Error::other)?,
                socket,
            ));
        }
        Ok(InheritedSockets {
            sockets: named,
            stream,
        })
    }
}

impl Drop for HandoverPoint {
    fn drop(&mut self) {
        // A left-over in the directory for temporary files is harmless.
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_dir(&self.folder);
    }
}
