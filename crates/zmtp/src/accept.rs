//! Serves every peer that connects to a bound socket.

use std::{future::Future, net::IpAddr};

use net::{
    Listener, Stream,
    server::{Acceptor, ConnectionSlot},
};
use supervision::Task;
use tokio::task::{JoinHandle, JoinSet};

/// A peer that connected to a bound socket.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Number of the connection, never used twice.
    pub(crate) number: u64,
    pub(crate) stream: Stream,
    /// Slot of the connection. At the limit, the peer that has been silent longest yields to a new
    /// one.
    pub(crate) slot: ConnectionSlot,
}

impl Peer {
    /// Returns the peer's address; `None` for a unix socket.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.slot.address()
    }
}

/// A running accept loop. Dropping it ends the loop and all its connections.
#[derive(Debug)]
pub(crate) struct AcceptLoop(JoinHandle<()>);

impl AcceptLoop {
    /// Runs `serve` for each peer, for at most `most` at once.
    pub(crate) fn start<S, F>(listener: Listener, most: usize, mut serve: S) -> Self
    where
        S: FnMut(Peer) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self(runtime::spawn(async move {
            // Outside the accept task: a panic there costs no connection, and no number comes
            // twice.
            let mut acceptor = Acceptor::new(listener, most);
            let (mut peers, mut number) = (JoinSet::new(), 0);
            let mut task = Task::new("zmtp_accept");
            while task
                .attempt(accept(&mut acceptor, &mut serve, &mut peers, &mut number))
                .await
                .is_none()
            {}
        }))
    }
}

async fn accept<S, F>(
    acceptor: &mut Acceptor,
    serve: &mut S,
    peers: &mut JoinSet<()>,
    number: &mut u64,
) where
    S: FnMut(Peer) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let (stream, slot) = acceptor.next().await;
        while peers.try_join_next().is_some() {}
        *number += 1;
        peers.spawn(serve(Peer {
            number: *number,
            stream,
            slot,
        }));
    }
}

impl Drop for AcceptLoop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
