//! The accept loop.

use std::{io, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{ConnectionSlot, ConnectionTable, PeerAddress};
use crate::{Listeners, Stream};

/// Pause after an accept that failed for want of descriptors: a busy loop would take the core from
/// running streams.
const PAUSE: Duration = Duration::from_millis(50);
/// Interval at which a lasting shortage is logged again.
const LOG_AGAIN: Duration = Duration::from_secs(30);

/// Accept loop that takes a connection only when a slot is free.
#[derive(Debug)]
pub struct Acceptor {
    listeners: Listeners,
    table: Arc<ConnectionTable>,
    /// An accepted connection without a slot so far.
    accepted: Option<Stream>,
    /// When a failure was last logged.
    logged: Option<Instant>,
}

impl Acceptor {
    /// Accepts from all of `listeners`, `most` connections at once.
    pub fn new(listeners: impl Into<Listeners>, most: usize) -> Self {
        Self {
            listeners: listeners.into(),
            table: ConnectionTable::new(most),
            accepted: None,
            logged: None,
        }
    }

    /// Returns the next connection and its slot, none whose peer is not known any more. While no slot is free, connections wait in the
    /// kernel's backlog. Cancelling loses none.
    pub async fn next(&mut self) -> (Stream, ConnectionSlot) {
        loop {
            let stream = match self.accepted.take() {
                Some(stream) => stream,
                None => {
                    self.table.has_capacity().await;
                    self.accept().await
                }
            };
            let address = stream.peer_addr();
            let Some(peer) = PeerAddress::of_stream(&stream) else {
                // It was reset. What it sent before could still be read, under no one's address.
                tracing::debug!("connection dropped: its peer is gone");
                continue;
            };
            self.accepted = Some(stream);
            let slot = self.table.admit(peer).await;
            let (Some(stream), Some(slot)) = (self.accepted.take(), slot) else {
                tracing::debug!(
                    ?peer,
                    "connection refused: its address has its share of the connections in use"
                );
                continue;
            };
            return (stream, slot.with_address(address));
        }
    }

    /// Stops accepting. A connection that was already accepted gets a slot, even above the limit.
    pub fn stop(self) -> Option<(Stream, ConnectionSlot)> {
        let stream = self.accepted?;
        let address = stream.peer_addr();
        let slot = self.table.admit_last(PeerAddress::of_stream(&stream)?);
        Some((stream, slot.with_address(address)))
    }

    async fn accept(&mut self) -> Stream {
        loop {
            match self.listeners.accept().await {
                Ok(stream) => return stream,
                Err(error) => {
                    self.log(&error);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Logs a shortage once, however often an accept fails meanwhile.
    fn log(&mut self, error: &io::Error) {
        if self
            .logged
            .is_none_or(|logged| logged.elapsed() >= LOG_AGAIN)
        {
            self.logged = Some(Instant::now());
            tracing::warn!(%error, "accept failed: new connections wait; check the limit of open files (ulimit -n)");
        }
    }
}
