//! The data listener: accepts connections, and drains.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use net::server::Acceptor;
use tokio::{sync::watch, task::JoinSet};

use crate::{CurrentGateway, Gateway, client_connection, housekeeping};

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainResult {
    /// Connections that still carried a request at the end of the drain time, and were cut.
    pub cut: usize,
}

/// The phase of the listener, set from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListenerPhase {
    /// Accepts and serves.
    #[default]
    Run,
    /// Readiness fails; the listener still accepts and serves, and ends each connection with its
    /// next reply.
    Leaving,
    /// Like `Leaving`, while another process accepts connections.
    HandedOver,
    /// Accepts nothing new, lets running requests end.
    Drain,
    /// Aborts what still runs.
    Cut,
}

/// Time for an aborted request to send its error. A client that does not read it is not waited for.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Panics of the accept loop, without ten quiet seconds between them, after which it gives up: some
/// two seconds of pauses.
const MOST_PANICS: u32 = 6;

/// Serves `listeners` until `phase` says otherwise, then lets running requests end until `phase`
/// aborts them. If it can no longer accept, [`CurrentGateway::failed`] resolves; running requests
/// continue until `phase` says otherwise. Without listeners only this process sends requests
/// ([`CurrentGateway::answer`]), and waits for them itself.
pub async fn serve(
    gateway: Arc<CurrentGateway>,
    listeners: Option<net::Listeners>,
    phase: watch::Receiver<ListenerPhase>,
) -> DrainResult {
    let unfinished = ServingGuard(&gateway);
    let housekeeping = housekeeping::start(&gateway);
    let drained = match listeners {
        Some(listeners) => accept_and_drain(Arc::clone(&gateway), listeners, phase).await,
        None => end_of_phases(&gateway, phase).await,
    };
    drop(housekeeping);
    std::mem::forget(unfinished);
    drained
}

/// Dropped only if serving ends without a drain.
struct ServingGuard<'a>(&'a CurrentGateway);

impl Drop for ServingGuard<'_> {
    fn drop(&mut self) {
        self.0.current().fail();
    }
}

/// Waits until no more requests are to begin.
async fn end_of_phases(
    gateway: &CurrentGateway,
    mut phase: watch::Receiver<ListenerPhase>,
) -> DrainResult {
    announce(gateway.current(), phase.clone()).await;
    reached(&mut phase, ListenerPhase::Drain).await;
    DrainResult { cut: 0 }
}

async fn accept_and_drain(
    gateway: Arc<CurrentGateway>,
    listeners: net::Listeners,
    mut phase: watch::Receiver<ListenerPhase>,
) -> DrainResult {
    let mut acceptor = Acceptor::new(
        listeners,
        gateway.current().edge.admission.process.max_connections,
    );
    let announced = runtime::spawn(announce(gateway.current(), phase.clone()));
    // Outside the accept loop: a panic there costs no connection.
    let mut connections = JoinSet::new();
    let mut accepting = supervision::Task::new("accept");
    loop {
        match accepting
            .run(accept(
                &gateway,
                &mut acceptor,
                &mut phase,
                &mut connections,
            ))
            .await
        {
            Ok(()) => break,
            Err(panicked) if panicked.in_a_row >= MOST_PANICS => {
                gateway.current().fail();
                break;
            }
            // Meanwhile connections wait in the kernel's backlog.
            Err(_) => tokio::select! {
                () = accepting.pause() => {}
                () = reached(&mut phase, ListenerPhase::HandedOver) => break,
            },
        }
    }
    if let Some((stream, slot)) = acceptor.stop() {
        connections.spawn(client_connection::serve(
            Arc::clone(&gateway),
            stream,
            slot,
            phase.clone(),
        ));
    }
    let drained = drain(&gateway, connections, &mut phase).await;
    announced.abort();
    drained
}

/// Waits for the running connections, and aborts those that are left at the end of the drain time.
async fn drain(
    gateway: &CurrentGateway,
    mut connections: JoinSet<()>,
    phase: &mut watch::Receiver<ListenerPhase>,
) -> DrainResult {
    let ended = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = ended => return DrainResult { cut: 0 },
        () = reached(phase, ListenerPhase::Cut) => {}
    }
    while connections.try_join_next().is_some() {}
    let cut = connections.len();
    gateway.current().lifecycle.abort.abort();
    let closing = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(CLOSE_TIMEOUT, closing).await.is_err() {
        connections.shutdown().await;
    }
    DrainResult { cut }
}

/// Accepts connections until another process does, or until the drain.
async fn accept(
    gateway: &Arc<CurrentGateway>,
    acceptor: &mut Acceptor,
    phase: &mut watch::Receiver<ListenerPhase>,
    connections: &mut JoinSet<()>,
) {
    let memory = Arc::clone(&gateway.current().edge.admission.memory);
    loop {
        // Under memory pressure new connections wait in the kernel's backlog: none is accepted only
        // to be refused.
        tokio::select! {
            () = memory.has_room() => {}
            () = reached(phase, ListenerPhase::HandedOver) => return,
        }
        let (stream, slot) = tokio::select! {
            accepted = acceptor.next() => accepted,
            () = memory.is_full() => continue,
            () = reached(phase, ListenerPhase::HandedOver) => return,
        };
        while connections.try_join_next().is_some() {}
        connections.spawn(client_connection::serve(
            Arc::clone(gateway),
            stream,
            slot,
            phase.clone(),
        ));
    }
}

/// Fails readiness as soon as the listener is to get no more requests.
async fn announce(gateway: Arc<Gateway>, mut phase: watch::Receiver<ListenerPhase>) {
    reached(&mut phase, ListenerPhase::Leaving).await;
    gateway.lifecycle.leaving.store(true, Ordering::Relaxed);
}

/// Resolves when the phase is `at` or later; a dropped controller means the end.
pub(crate) async fn reached(phase: &mut watch::Receiver<ListenerPhase>, at: ListenerPhase) {
    drop(phase.wait_for(|phase| *phase >= at).await);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::test_gateway::TestGateway;

    #[tokio::test]
    async fn a_gateway_without_listeners_is_ready_until_a_drain_begins() {
        let gateway = CurrentGateway::new(TestGateway::new().gateway);
        let (phases, phase) = watch::channel(ListenerPhase::Run);
        let serving = runtime::spawn(serve(Arc::clone(&gateway), None, phase));
        tokio::task::yield_now().await;
        assert!(!serving.is_finished());
        let lifecycle = Arc::clone(&gateway.current().lifecycle);
        assert!(!lifecycle.leaving.load(Ordering::Relaxed));
        phases.send_replace(ListenerPhase::Drain);
        let drained = serving.await.expect("it does not panic");
        assert_eq!(drained, DrainResult { cut: 0 });
        assert!(lifecycle.leaving.load(Ordering::Relaxed));
        assert!(!*lifecycle.failed.borrow());
    }
}
