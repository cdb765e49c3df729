//! Several listening sockets of one service.

use std::{
    future::poll_fn,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

use crate::{ListenAddr, Listener, Stream};

/// Listening sockets, at least one.
#[derive(Debug)]
pub struct Listeners {
    all: Vec<Arc<Listener>>,
    /// The socket polled first, rotating so that a busy one does not starve the others.
    next: AtomicUsize,
}

impl Listeners {
    /// Combines the first listener and the others.
    pub fn new(first: Arc<Listener>, others: impl IntoIterator<Item = Arc<Listener>>) -> Self {
        Self {
            all: std::iter::once(first).chain(others).collect(),
            next: AtomicUsize::new(0),
        }
    }

    /// Accepts the next connection of any of them; as [`Listener::accept`].
    pub async fn accept(&self) -> io::Result<Stream> {
        poll_fn(|cx| {
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            for step in 0..self.all.len() {
                let at = turn.wrapping_add(step) % self.all.len();
                if let Some(Poll::Ready(accepted)) =
                    self.all.get(at).map(|listener| listener.poll_accept(cx))
                {
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Returns all of them, the first one first.
    pub fn all(&self) -> &[Arc<Listener>] {
        &self.all
    }

    /// Returns their addresses, the first one first.
    pub fn addresses(&self) -> Vec<ListenAddr> {
        self.all.iter().map(|listener| listener.address()).collect()
    }
}

impl From<Arc<Listener>> for Listeners {
    fn from(listener: Arc<Listener>) -> Self {
        Self::new(listener, [])
    }
}

impl From<Listener> for Listeners {
    fn from(listener: Listener) -> Self {
        Self::new(Arc::new(listener), [])
    }
}
