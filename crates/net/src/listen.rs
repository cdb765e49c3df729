//! Listening sockets.
//!
//! A unix socket's file outlives a crashed process: a file that no process serves is replaced, one
//! that a process serves is in use. A listener removes its own file when it is dropped.

use std::{
    fs::Permissions,
    future::poll_fn,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::net::{TcpListener, UnixListener, UnixStream};

use crate::{
    Address, ListenAddr, Stream, TlsIdentity, memory::MemoryListener, tls::ReloadingIdentity,
};

/// The reason why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error(
        "{address} is already in use: stop the other process or choose another port with {flag}"
    )]
    Taken {
        /// The address.
        address: ListenAddr,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// A port below 1024, or a directory that may not be written.
    #[error(
        "{address} may not be listened on by this user: choose a port from 1024 up, or a directory of your own, with {flag}"
    )]
    Forbidden {
        /// The address.
        address: ListenAddr,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// The address is not one of this machine's, the path is unusable, and the like.
    #[error(
        "{address} cannot be listened on ({source}): use an address of this machine, for example 127.0.0.1, with {flag}"
    )]
    Unusable {
        /// The address.
        address: ListenAddr,
        /// The flag that sets it.
        flag: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// A bound listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: ListeningSocket,
    flag: &'static str,
    /// The TLS identity of an encrypted listener.
    identity: Option<ReloadingIdentity>,
}

#[derive(Debug)]
enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
    /// Of a simulation.
    Memory(MemoryListener),
}

/// Binds `address`. The system chooses for port 0: see [`Listener::address`].
pub async fn listen(address: &ListenAddr) -> Result<Listener, ListenError> {
    let flag = address.flag();
    let socket = match address.address() {
        address if runtime::is_simulated() => {
            MemoryListener::bind(address).map(ListeningSocket::Memory)
        }
        Address::Tcp { host, port } => TcpListener::bind((host.as_str(), *port))
            .await
            .map(ListeningSocket::Tcp),
        Address::Unix(path) => bind_unix(path).await,
    };
    match socket {
        Ok(socket) => Ok(Listener {
            socket,
            flag,
            identity: None,
        }),
        Err(source) => {
            let address = address.clone();
            Err(match source.kind() {
                io::ErrorKind::AddrInUse => ListenError::Taken { address, flag },
                io::ErrorKind::PermissionDenied => ListenError::Forbidden { address, flag },
                _ => ListenError::Unusable {
                    address,
                    flag,
                    source,
                },
            })
        }
    }
}

impl Listener {
    /// Takes over a socket that another process bound at `address` and handed to this one.
    ///
    /// # Errors
    ///
    /// It is no listening socket of that kind.
    pub fn taken(socket: OwnedFd, address: &ListenAddr) -> io::Result<Self> {
        let socket = match address.address() {
            Address::Tcp { .. } => {
                let listener = std::net::TcpListener::from(socket);
                listener.set_nonblocking(true)?;
                ListeningSocket::Tcp(TcpListener::from_std(listener)?)
            }
            Address::Unix(path) => {
                let listener = std::os::unix::net::UnixListener::from(socket);
                listener.set_nonblocking(true)?;
                ListeningSocket::Unix(UnixListener::from_std(listener)?, SocketFile::new(path))
            }
        };
        Ok(Self {
            socket,
            flag: address.flag(),
            identity: None,
        })
    }

    /// Duplicates the socket, to hand it to another process. The file of a unix socket is the other
    /// process's to remove once it confirms the takeover.
    ///
    /// # Errors
    ///
    /// There are no more file descriptors, or the listener is of a simulation.
    pub fn share(&self) -> io::Result<SharedListener> {
        let (socket, file) = match &self.socket {
            ListeningSocket::Tcp(listener) => (listener.as_fd().try_clone_to_owned()?, None),
            ListeningSocket::Unix(listener, file) => {
                (listener.as_fd().try_clone_to_owned()?, Some(file.clone()))
            }
            ListeningSocket::Memory(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(SharedListener {
            socket,
            address: self.address(),
            file,
        })
    }

    /// Encrypts the listener with this identity, whose files are checked every other second while
    /// connections are accepted. A unix socket, which does not leave the machine, stays as it is.
    #[must_use]
    pub fn encrypted(self, identity: Arc<TlsIdentity>) -> Self {
        match self.socket {
            ListeningSocket::Tcp(_) | ListeningSocket::Memory(_) => Self {
                identity: Some(ReloadingIdentity::new(identity)),
                ..self
            },
            ListeningSocket::Unix(..) => self,
        }
    }

    /// Accepts the next connection. Cancelling loses none. An error concerns one connection or a
    /// passing shortage (of file descriptors, say): pause briefly and call again. An encrypted
    /// connection shakes hands when it is first read.
    pub async fn accept(&self) -> io::Result<Stream> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        if let Some(identity) = &self.identity {
            identity.poll_refresh(cx);
        }
        let stream = match &self.socket {
            ListeningSocket::Tcp(listener) => {
                let (stream, _) = ready!(listener.poll_accept(cx))?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            ListeningSocket::Unix(listener, _) => Stream::Unix(ready!(listener.poll_accept(cx))?.0),
            ListeningSocket::Memory(listener) => Stream::Memory(ready!(listener.poll_accept(cx))?),
        };
        Poll::Ready(Ok(match &self.identity {
            Some(tls) => Stream::Accepting(Box::new(tls.identity.accept(stream))),
            None => stream,
        }))
    }

    /// Returns the listen address, with the port that the system chose.
    pub fn address(&self) -> ListenAddr {
        match &self.socket {
            ListeningSocket::Tcp(listener) => match listener.local_addr() {
                Ok(address) => ListenAddr::from(address),
                // Only a closed descriptor has no name, and this one is open.
                Err(_) => ListenAddr::tcp("0.0.0.0", 0),
            },
            ListeningSocket::Unix(_, file) => ListenAddr::unix(&file.0.path),
            ListeningSocket::Memory(listener) => listener.address(),
        }
        .chosen_by(self.flag)
    }
}

/// A second handle of a listening socket.
#[derive(Debug)]
pub struct SharedListener {
    /// The socket.
    pub socket: OwnedFd,
    /// The listen address.
    pub address: ListenAddr,
    file: Option<SocketFile>,
}

impl SharedListener {
    /// Keeps the file of a unix socket when this process ends: another process owns it now.
    pub fn keep_socket_file(&self) {
        if let Some(file) = &self.file {
            file.0.keep.store(true, Ordering::Relaxed);
        }
    }
}

async fn bind_unix(path: &Path) -> io::Result<ListeningSocket> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path).await => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    // Whatever the umask is, a listener without a key is not everyone's on this machine.
    let mode = std::fs::metadata(path)?.permissions().mode();
    std::fs::set_permissions(path, Permissions::from_mode(mode & 0o770))?;
    Ok(ListeningSocket::Unix(listener, SocketFile::new(path)))
}

/// Returns whether no process holds the socket, which a refused connection proves; a plain file
/// never counts as an abandoned socket.
async fn is_abandoned(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    is_socket
        && matches!(UnixStream::connect(path).await, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

#[derive(Clone, Debug)]
struct SocketFile(Arc<OwnedSocketFile>);

#[derive(Debug)]
struct OwnedSocketFile {
    path: PathBuf,
    /// Whether the file belongs to another process by now.
    keep: AtomicBool,
}

impl SocketFile {
    fn new(path: &Path) -> Self {
        Self(Arc::new(OwnedSocketFile {
            path: path.to_owned(),
            keep: AtomicBool::new(false),
        }))
    }
}

impl Drop for OwnedSocketFile {
    fn drop(&mut self) {
        if !self.keep.load(Ordering::Relaxed) {
            // Another process may have removed it already; there is no caller left to report to.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
