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
use nats_client::{Client, ConnectionState, Message, SharedConnection, Subscriber};
use supervision::Task;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::timeout,
};

use super::TransportEvent;
use crate::{
    exchange::PageRequest,
    identity::ShownId,
    wire::{self, EnvelopeHead, StatePage},
};

/// Most messages that wait in each direction.
const MOST_WAITING: usize = 256;
/// Longest wait for a page.
const PATIENCE: Duration = Duration::from_secs(2);
/// Where answers may go: any client that may send requests could otherwise make a replica publish
/// on any subject.
const INBOX: &str = "_INBOX.";

/// The subjects of one group of replicas.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaSubjects {
    all: String,
}

impl ReplicaSubjects {
    /// Returns the subjects of the replicas that share these names, which are checked settings.
    pub(crate) fn new(namespace: &str, component: &str) -> Self {
        Self {
            all: format!("{namespace}.{component}.replicas"),
        }
    }

    /// Returns the subject of messages to all.
    pub(crate) fn all(&self) -> &str {
        &self.all
    }

    fn of(&self, replica: u64) -> String {
        format!("{}.{}", self.all, ShownId(replica))
    }
}

/// Messages over NATS.
#[derive(Debug)]
pub(crate) struct NatsTransport {
    departures: mpsc::Sender<Bytes>,
    arrivals: mpsc::Receiver<TransportEvent>,
    state: watch::Receiver<ConnectionState>,
    fetcher: NatsPageFetcher,
    _task: JoinSet<()>,
}

impl NatsTransport {
    /// Starts to send and receive over a connection.
    pub(crate) fn start(
        connection: &Arc<SharedConnection>,
        subjects: ReplicaSubjects,
        own_id: u64,
    ) -> Self {
        let (departures, leaving) = mpsc::channel(MOST_WAITING);
        let (arriving, arrivals) = mpsc::channel(MOST_WAITING);
        let state = connection.watch();
        let fetcher = NatsPageFetcher {
            connection: Arc::clone(connection),
            subjects: subjects.clone(),
        };
        let mut task = JoinSet::new();
        let mut pump = Pump {
            state: state.clone(),
            own: subjects.of(own_id),
            own_id,
            all: subjects.all,
            leaving,
            arriving,
        };
        task.spawn(async move {
            let mut task = Task::new("replica_bus");
            while task.attempt(pump.run()).await.is_none() {}
        });
        Self {
            departures,
            arrivals,
            state,
            fetcher,
            _task: task,
        }
    }

    /// Sends a message, which is dropped if the bus is slow or away.
    pub(crate) fn publish(&self, message: Bytes) {
        let _ = self.departures.try_send(message);
    }

    pub(crate) async fn next(&mut self) -> TransportEvent {
        match self.arrivals.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn fetcher(&self) -> NatsPageFetcher {
        self.fetcher.clone()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state.borrow().client.is_some()
    }
}

/// Moves messages between the connection and the exchange.
struct Pump {
    state: watch::Receiver<ConnectionState>,
    all: String,
    own: String,
    own_id: u64,
    leaving: mpsc::Receiver<Bytes>,
    arriving: mpsc::Sender<TransportEvent>,
}

impl Pump {
    async fn run(&mut self) {
        loop {
            let client = self.state.borrow_and_update().client.clone();
            let Some(client) = client else {
                // Messages for a bus that is away are dropped, not sent late.
                tokio::select! {
                    changed = self.state.changed() => if changed.is_err() { return },
                    _ = self.leaving.recv() => {}
                }
                continue;
            };
            let subscribed = tokio::join!(
                client.subscribe(self.all.clone()),
                client.subscribe(self.own.clone())
            );
            let (Ok(mut all), Ok(mut own)) = subscribed else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            self.move_messages(&client, &mut all, &mut own).await;
        }
    }

    /// Moves messages until the connection changes.
    async fn move_messages(&mut self, client: &Client, all: &mut Subscriber, own: &mut Subscriber) {
        loop {
            tokio::select! {
                _ = self.state.changed() => return,
                message = all.next() => match message {
                    Some(message) => self.deliver(&message).await,
                    None => return,
                },
                request = own.next() => match request {
                    Some(request) => self.serve(client.clone(), &request).await,
                    None => return,
                },
                Some(message) = self.leaving.recv() => {
                    if client.publish(self.all.clone(), message).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    async fn deliver(&self, message: &Message) {
        // Most messages that come back are own changes: they are not even decoded.
        let head = wire::decode::<EnvelopeHead>(&message.payload);
        if head.is_ok_and(|head| head.sender == self.own_id && head.presence.is_none()) {
            return;
        }
        let bytes = message.payload.len();
        let event = match wire::decode(&message.payload) {
            Ok(message) => TransportEvent::Message {
                message: Box::new(message),
                bytes,
            },
            Err(_) => TransportEvent::Malformed,
        };
        // The receiver ends with this task.
        let _ = self.arriving.send(event).await;
    }

    async fn serve(&self, client: Client, request: &Message) {
        let inbox = request.reply.clone();
        let after = std::str::from_utf8(&request.payload).ok();
        let (Some(inbox), Some(after)) = (
            inbox.filter(|inbox| inbox.starts_with(INBOX)),
            after.and_then(|after| after.parse().ok()),
        ) else {
            let _ = self.arriving.send(TransportEvent::Malformed).await;
            return;
        };
        let (reply, page) = oneshot::channel();
        let request = TransportEvent::PageRequest(PageRequest { after, reply });
        if self.arriving.send(request).await.is_err() {
            return;
        }
        runtime::spawn(async move {
            if let Ok(Ok(page)) = timeout(PATIENCE, page).await {
                let _ = client.publish(inbox, wire::encode(&page)).await;
            }
        });
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
