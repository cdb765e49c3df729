//! One connection for several users of a process.

use std::sync::Arc;

use async_nats::Client;
use net::Clock;
use tokio::{sync::watch, task::JoinHandle, time::sleep};

use crate::{ConnectionEvent, NatsDialer, backoff};

/// A connection that is made again after each end, until dropped.
#[derive(Debug)]
pub struct SharedConnection {
    state: watch::Receiver<ConnectionState>,
    task: JoinHandle<()>,
}

/// The state of a [`SharedConnection`].
#[derive(Clone, Debug, Default)]
pub struct ConnectionState {
    /// The client of the current connection. Users drop it, and all that they made from it, when
    /// the state changes.
    pub client: Option<Client>,
    /// Number of connections so far; it names the current one.
    pub connections: u64,
    /// The last error, of this connection or of the last attempt.
    pub last_error: Option<String>,
}

impl SharedConnection {
    /// Starts connecting in a task of the current runtime.
    pub fn spawn(dialer: NatsDialer, clock: Clock) -> Arc<Self> {
        let (sender, state) = watch::channel(ConnectionState::default());
        let task = runtime::spawn(keep(dialer, clock, sender));
        Arc::new(Self { state, task })
    }

    /// Returns the client of the current connection, if there is one.
    pub fn client(&self) -> Option<Client> {
        self.state.borrow().client.clone()
    }

    /// Returns a receiver of the state, which changes with each connection and its end.
    pub fn watch(&self) -> watch::Receiver<ConnectionState> {
        self.state.clone()
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(dialer: NatsDialer, clock: Clock, state: watch::Sender<ConnectionState>) {
    let mut backoff = backoff::reconnects();
    loop {
        let started = clock.now();
        match dialer.open().await {
            Ok(mut connection) => {
                tracing::info!(server = %dialer.server, "nats connected");
                state.send_modify(|state| {
                    state.client = Some(connection.client.clone());
                    state.connections += 1;
                    state.last_error = None;
                });
                while let ConnectionEvent::Fault(error) = connection.next().await {
                    state.send_modify(|state| state.last_error = Some(error));
                }
                tracing::warn!(server = %dialer.server, "nats connection lost");
                state.send_modify(|state| {
                    state.client = None;
                    state.last_error =
                        Some(format!("the connection to {} was lost", dialer.server));
                });
            }
            Err(error) => {
                let text = error.to_string();
                let is_new = state.borrow().last_error.as_ref() != Some(&text);
                if is_new {
                    tracing::warn!(error = text, "nats is away");
                    state.send_modify(|state| state.last_error = Some(text));
                }
            }
        }
        let lasted = clock.now().since(started);
        sleep(backoff::wait(&mut backoff, lasted, runtime::chance())).await;
    }
}
