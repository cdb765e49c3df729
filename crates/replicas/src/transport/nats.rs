//! Messages over NATS: one subject for all replicas, and one for requests to each.
//!
//! | message on | payload | meaning |
//! |---|---|---|
//! | `NAMESPACE.COMPONENT.replicas` | an envelope | a message to all |
//! | `NAMESPACE.COMPONENT.replicas.ID`, with a reply inbox | an id in decimal | a request for a page of open requests behind that id |
//! | the inbox | a page | the answer |
//!
//! Core NATS stores nothing: what is published while a replica is not connected is lost, and found
//! by numbers and digests.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt;
use nats_client::{Client, ConnectionState, Message, SharedConnection, Subject, Subscriber};
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

use super::{PublishOutcome, TransportEvent, departures::Departures};
use crate::{
    exchange::PageRequest,
    identity::ShownId,
    wire::{self, StatePage},
};

/// Longest wait for a page.
const PATIENCE: Duration = Duration::from_secs(2);
/// Where answers may go: any client that may send requests could otherwise make a replica publish
/// on any subject.
const INBOX: &str = "_INBOX.";

/// The subjects of one group of replicas.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaSubjects {
    all: Subject,
}

impl ReplicaSubjects {
    /// Returns the subjects of the replicas that share these names, which are checked settings.
    pub(crate) fn new(namespace: &str, component: &str) -> Self {
        Self {
            all: format!("{namespace}.{component}.replicas").into(),
        }
    }

    /// Returns the subject of messages to all.
    pub(crate) fn all(&self) -> &Subject {
        &self.all
    }

    fn of(&self, replica: u64) -> Subject {
        format!("{}.{}", self.all, ShownId(replica)).into()
    }
}

/// Messages over NATS. There is no task between the exchange and the connection's own: each of the
/// hundreds of messages a second would cost two more switches between tasks.
#[derive(Debug)]
pub(crate) struct NatsTransport {
    state: watch::Receiver<ConnectionState>,
    own_id: u64,
    subscribed: Option<SubscribedClient>,
    fetcher: NatsPageFetcher,
}

/// A connection with the subscriptions of this replica.
#[derive(Debug)]
struct SubscribedClient {
    client: Client,
    /// Number of the connection.
    connection: u64,
    departures: Departures,
    /// Messages to all. Own ones are not delivered here.
    all: Subscriber,
    /// Requests to this replica.
    own: Subscriber,
}

impl NatsTransport {
    /// Prepares to send and receive over a connection.
    pub(crate) fn new(
        connection: &Arc<SharedConnection>,
        subjects: ReplicaSubjects,
        own_id: u64,
    ) -> Self {
        Self {
            state: connection.watch(),
            own_id,
            subscribed: None,
            fetcher: NatsPageFetcher {
                connection: Arc::clone(connection),
                subjects,
            },
        }
    }

    /// Sends a message. Never waits.
    pub(crate) fn publish(&mut self, message: Bytes) -> PublishOutcome {
        let Some(bus) = &mut self.subscribed else {
            return PublishOutcome::Away;
        };
        if bus.departures.send(&bus.client, message) {
            PublishOutcome::Sent
        } else {
            PublishOutcome::Full
        }
    }

    /// Returns the next event. Cancel-safe.
    pub(crate) async fn next(&mut self) -> TransportEvent {
        loop {
            let Some(bus) = &mut self.subscribed else {
                self.subscribe().await;
                return TransportEvent::Connected;
            };
            let event = tokio::select! {
                () = ended(&mut self.state, bus.connection) => None,
                () = bus.departures.advance(&bus.client) => continue,
                message = bus.all.next() => message.map(|message| event_of(&message)),
                request = bus.own.next() => request.map(|request| bus.requested(&request)),
            };
            match event {
                Some(event) => return event,
                None => self.subscribed = None,
            }
        }
    }

    /// Subscribes on the current connection, or on the next one.
    async fn subscribe(&mut self) {
        loop {
            let (client, connection) = next_client(&mut self.state).await;
            let subjects = &self.fetcher.subjects;
            let subscribed = tokio::join!(
                client.subscribe(subjects.all().clone()),
                client.subscribe(subjects.of(self.own_id))
            );
            if let (Ok(all), Ok(own)) = subscribed {
                self.subscribed = Some(SubscribedClient {
                    departures: Departures::new(subjects.all().clone()),
                    client,
                    connection,
                    all,
                    own,
                });
                return;
            }
            ended(&mut self.state, connection).await;
        }
    }

    pub(crate) fn fetcher(&self) -> NatsPageFetcher {
        self.fetcher.clone()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state.borrow().client.is_some()
    }
}

/// Waits for a connection; returns its client and its number.
async fn next_client(state: &mut watch::Receiver<ConnectionState>) -> (Client, u64) {
    loop {
        let connected = state.wait_for(|now| now.client.is_some()).await;
        let connected = connected.map(|now| (now.client.clone(), now.connections));
        match connected {
            Ok((Some(client), number)) => return (client, number),
            Ok((None, _)) => {}
            // The process ends.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Waits for the end of a connection. Errors that the server reports on the way do not end it.
async fn ended(state: &mut watch::Receiver<ConnectionState>, connection: u64) {
    let ended = state.wait_for(|now| now.client.is_none() || now.connections != connection);
    if ended.await.is_err() {
        // The process ends.
        std::future::pending::<()>().await;
    }
}

fn event_of(message: &Message) -> TransportEvent {
    match wire::decode(&message.payload) {
        Ok(decoded) => TransportEvent::Message {
            message: Box::new(decoded),
            bytes: message.payload.len(),
        },
        Err(_) => TransportEvent::Malformed,
    }
}

impl SubscribedClient {
    /// Returns a peer's request for a page; the answer is sent once the exchange has given it.
    fn requested(&self, request: &Message) -> TransportEvent {
        let inbox = request.reply.clone();
        let after = std::str::from_utf8(&request.payload).ok();
        let (Some(inbox), Some(after)) = (
            inbox.filter(|inbox| inbox.starts_with(INBOX)),
            after.and_then(|after| after.parse().ok()),
        ) else {
            return TransportEvent::Malformed;
        };
        let (reply, page) = oneshot::channel();
        let client = self.client.clone();
        runtime::spawn(async move {
            if let Ok(Ok(page)) = timeout(PATIENCE, page).await {
                let _ = client.publish(inbox, wire::encode(&page)).await;
            }
        });
        TransportEvent::PageRequest(PageRequest { after, reply })
    }
}

/// Fetches pages of open requests.
#[derive(Clone, Debug)]
pub(crate) struct NatsPageFetcher {
    connection: Arc<SharedConnection>,
    subjects: ReplicaSubjects,
}

impl NatsPageFetcher {
    pub(crate) async fn page(&self, peer: u64, after: u64) -> Result<StatePage, String> {
        let client = self
            .connection
            .client()
            .ok_or_else(|| "the bus is away".to_owned())?;
        let asked = client.request(self.subjects.of(peer), after.to_string().into());
        let answer = timeout(PATIENCE, asked)
            .await
            .map_err(|_| format!("the replica did not answer within {PATIENCE:?}"))?
            .map_err(|error| error.to_string())?;
        wire::decode(&answer.payload).map_err(|error| error.to_string())
    }
}
