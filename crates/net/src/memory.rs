//! Sockets within the process, for a simulation.
//!
//! Under [`runtime::SimulatedWorld`] [`crate::listen`] registers an address of the calling thread, and
//! [`crate::connect`] finds it there. Connections take no time and lose nothing; an address that
//! nobody listens on refuses.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex},
    sync::mpsc,
};

use crate::{Address, ListenAddr};

/// Bytes that one direction of a connection holds, as a kernel's buffers would.
const BUFFER: usize = 64 * 1024;
/// Connections that wait to be accepted.
const BACKLOG: usize = 1024;
/// First of the ports that are chosen for port 0 and for connecting sides.
const FIRST_PORT: u16 = 32_768;

thread_local! {
    static NETWORK: RefCell<MemoryNetwork> = RefCell::default();
}

#[derive(Debug, Default)]
struct MemoryNetwork {
    listeners: HashMap<Address, mpsc::Sender<MemoryStream>>,
    ports_chosen: u16,
}

impl MemoryNetwork {
    fn next_port(&mut self) -> u16 {
        let port = FIRST_PORT + self.ports_chosen;
        self.ports_chosen = (self.ports_chosen + 1) % (u16::MAX - FIRST_PORT);
        port
    }
}

/// One side of a connection.
#[derive(Debug)]
pub struct MemoryStream {
    stream: DuplexStream,
    peer: SocketAddr,
}

impl MemoryStream {
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.peer
    }
}

/// A registered address.
#[derive(Debug)]
pub(crate) struct MemoryListener {
    address: Address,
    waiting: Mutex<mpsc::Receiver<MemoryStream>>,
}

impl MemoryListener {
    /// Registers `address`; a port of 0 is chosen.
    pub(crate) fn bind(address: &Address) -> io::Result<Self> {
        NETWORK.with_borrow_mut(|network| {
            let address = match address {
                Address::Tcp { host, port: 0 } => Address::Tcp {
                    host: host.clone(),
                    port: network.next_port(),
                },
                other => other.clone(),
            };
            if network.listeners.contains_key(&address) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            let (sender, waiting) = mpsc::channel(BACKLOG);
            network.listeners.insert(address.clone(), sender);
            Ok(Self {
                address,
                waiting: Mutex::new(waiting),
            })
        })
    }

    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<MemoryStream>> {
        let stream = ready!(self.waiting.lock().poll_recv(cx));
        Poll::Ready(stream.ok_or_else(|| io::ErrorKind::NotConnected.into()))
    }

    pub(crate) fn address(&self) -> ListenAddr {
        ListenAddr::from(self.address.clone())
    }
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        // The thread may be ending, and its network be gone.
        let _ = NETWORK.try_with(|network| network.borrow_mut().listeners.remove(&self.address));
    }
}

/// Connects to a registered address.
pub(crate) fn connect(address: &Address) -> io::Result<MemoryStream> {
    NETWORK.with_borrow_mut(|network| {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, network.next_port()));
        let listener = network.listeners.get(address).ok_or_else(refused)?;
        let (near, far) = duplex(BUFFER);
        let to = SocketAddr::from((
            Ipv4Addr::LOCALHOST,
            match address {
                Address::Tcp { port, .. } => *port,
                Address::Unix(_) => 0,
            },
        ));
        let far = MemoryStream {
            stream: far,
            peer: from,
        };
        listener.try_send(far).map_err(|_| refused())?;
        Ok(MemoryStream {
            stream: near,
            peer: to,
        })
    })
}

impl AsyncRead for MemoryStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for MemoryStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime::SimulatedWorld;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use crate::{ListenAddr, connect, listen};

    const TIMEOUT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_simulated_connection_carries_bytes_both_ways_and_ends_with_either_side() {
        let _simulation = SimulatedWorld::enter(1);
        let listener = listen(&ListenAddr::tcp("engine-0", 0)).await.unwrap();
        let address = listener.address();
        assert_ne!(address.port(), Some(0), "a port is chosen");
        let mut client = connect(address.address(), TIMEOUT).await.unwrap();
        let mut server = listener.accept().await.unwrap();
        assert!(server.peer_addr().unwrap().ip().is_loopback());
        client.write_all(b"ping").await.unwrap();
        let mut read = [0; 4];
        server.read_exact(&mut read).await.unwrap();
        server.write_all(&read).await.unwrap();
        drop(server);
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).await.unwrap();
        assert_eq!(reply, b"ping");
    }

    #[tokio::test(start_paused = true)]
    async fn a_simulated_address_is_refused_without_a_listener_and_taken_with_one() {
        let _simulation = SimulatedWorld::enter(1);
        let address = ListenAddr::tcp("127.0.0.1", 9000);
        let refused = connect(address.address(), TIMEOUT).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        let listener = listen(&address).await.unwrap();
        assert!(listen(&address).await.is_err(), "in use");
        drop(listener);
        assert!(connect(address.address(), TIMEOUT).await.is_err());
        assert!(listen(&address).await.is_ok());
    }
}
