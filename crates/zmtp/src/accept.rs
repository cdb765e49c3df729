//! Serving everybody who connects to a bound socket.

use std::{future::Future, sync::Arc, time::Duration};

use net::{Listener, Stream};
use tokio::{
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
};

/// Peers served at once. With as many, new ones wait in the kernel's backlog.
const MAX_PEERS: usize = 1024;
/// Pause after an accept that failed, most likely for want of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// A running accept loop. Dropping it ends the loop and every connection it made.
#[derive(Debug)]
pub(crate) struct Accepting(JoinHandle<()>);

impl Accepting {
    /// Runs `serve` for each connection, which it is given with a number of its own.
    pub(crate) fn start<S, F>(listener: Listener, mut serve: S) -> Self
    where
        S: FnMut(u64, Stream) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self(tokio::spawn(async move {
            let room = Arc::new(Semaphore::new(MAX_PEERS));
            let mut peers = JoinSet::new();
            for number in 1.. {
                let permit = Arc::clone(&room).acquire_owned().await;
                let stream = loop {
                    match listener.accept().await {
                        Ok(stream) => break stream,
                        Err(error) => {
                            tracing::warn!(%error, "accept failed, pausing");
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                };
                while peers.try_join_next().is_some() {}
                let serving = serve(number, stream);
                peers.spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
        }))
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.abort();
    }
}
