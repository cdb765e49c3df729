//! An engine, and replicas that follow it and share a log.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use event_log::{EventLog, EventLogSettings, LogNames, StreamRole};
use event_sources::{Endpoint, SharedLogSource, SourceHandle, SourceSpec};
use kv_events::frames::ReplayForm;
use kv_index::{IndexSettings, KvIndex};
use nats_client::{JetStream, NatsDialer, SharedConnection};
use net::{Clock, Destinations};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};
use zmtp::Pub;

use crate::{
    engine::{PATIENCE, ReplaySocket, Replies, TARGET, any, history, live, publisher, truth},
    nats_server::NatsServer,
};

/// An engine that publishes, and answers replays from all that it published in this life.
pub(crate) struct TestEngine {
    socket: Pub,
    pub(crate) endpoint: Endpoint,
    pub(crate) replay: ReplaySocket,
    pub(crate) published: Vec<(u64, Vec<u8>)>,
}

impl TestEngine {
    pub(crate) async fn start() -> Self {
        let (socket, endpoint) = publisher(&any()).await;
        let replay = ReplaySocket::bind(Replies::History(vec![], ReplayForm::New)).await;
        Self {
            socket,
            endpoint,
            replay,
            published: Vec::new(),
        }
    }

    /// Publishes the next batches.
    pub(crate) fn publish(&mut self, count: usize) {
        let end = u32::try_from(self.published.len() + count).unwrap();
        for (seq, payload) in history(end).into_iter().skip(self.published.len()) {
            self.published.push((seq, payload.clone()));
            let known = self.published.clone();
            self.replay.then(Replies::History(known, ReplayForm::New));
            self.socket.send(&live(seq, &payload));
        }
    }

    /// Publishes a batch without a number.
    pub(crate) fn publish_unnumbered(&self, payload: &[u8]) {
        self.socket.send(&[Vec::new(), payload.to_vec()]);
    }

    /// Ends the process and starts it anew: its numbers begin with 0, and these are its batches.
    pub(crate) async fn restart(&mut self, batches: Vec<(u64, Vec<u8>)>) {
        let (socket, _) = publisher(&any()).await;
        drop(std::mem::replace(&mut self.socket, socket));
        self.published.clone_from(&batches);
        self.replay.then(Replies::History(batches, ReplayForm::New));
        self.socket = publisher(&self.endpoint).await.0;
    }

    pub(crate) fn subscribers(&self) -> usize {
        *self.socket.watch_subscribers().borrow()
    }
}

/// The names of a fleet.
pub(crate) fn names(namespace: &str) -> LogNames {
    LogNames::new("kv", namespace, "router").unwrap()
}

/// One router, as far as its events go. Dropping it is a kill: it says no farewell.
pub(crate) struct Replica {
    pub(crate) name: String,
    pub(crate) index: Arc<KvIndex>,
    pub(crate) log: Arc<EventLog>,
    pub(crate) source: SourceHandle,
}

impl Replica {
    pub(crate) fn start(name: &str, nats: &str, engine: &TestEngine) -> Self {
        Self::start_in(names("prod"), name, nats, engine)
    }

    pub(crate) fn start_in(names: LogNames, name: &str, nats: &str, engine: &TestEngine) -> Self {
        let clock = Clock::system();
        let dialer = NatsDialer {
            server: nats.parse().unwrap(),
            credentials: None,
            trust: None,
            destinations: Destinations::Any,
            name: name.to_owned(),
        };
        let settings = EventLogSettings {
            names,
            replica: name.into(),
            retention: Duration::from_secs(3_600),
        };
        let log = EventLog::spawn(settings, SharedConnection::spawn(dialer, clock), clock);
        let mut spec = SourceSpec::new(TARGET, "w7", "m", engine.endpoint.clone());
        spec.replay_endpoint = Some(engine.replay.endpoint.clone());
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        let sink = Arc::clone(&index);
        let source = SharedLogSource::spawn(spec, &log, sink, clock);
        Self {
            name: name.to_owned(),
            index,
            log,
            source,
        }
    }

    pub(crate) fn role(&self) -> StreamRole {
        let report = self.log.report();
        report.roles.values().next().copied().unwrap_or_default()
    }

    pub(crate) async fn until_role(&self, expected: impl Fn(StreamRole) -> bool) {
        let what = format!("the role of {}", self.name);
        until(&what, self, || expected(self.role())).await;
    }

    /// Waits until the index has what an index has that applied these batches once and in order.
    pub(crate) async fn until_equal(&self, batches: &[(u64, Vec<u8>)]) {
        let expected = truth(batches);
        until("the whole index", self, || self.index.digest() == expected).await;
    }
}

/// Waits for a condition of a replica.
pub(crate) async fn until(what: &str, replica: &Replica, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, wait).await.is_ok(),
        "{what} never came at {}: {:?} {:?}",
        replica.name,
        replica.source.report(),
        replica.log.report()
    );
}

/// Waits until one of them owns the stream and the others follow it; returns the owner's place.
pub(crate) async fn until_owned(replicas: &[Replica]) -> usize {
    for replica in replicas {
        replica.until_role(|role| role != StreamRole::Alone).await;
    }
    let owner = || {
        replicas
            .iter()
            .position(|replica| replica.role() == StreamRole::Owner)
    };
    until("an owner", &replicas[0], || owner().is_some()).await;
    owner().unwrap()
}

/// Returns the numbers of the batches in the log, in its order.
pub(crate) async fn logged(server: &NatsServer, names: &LogNames) -> Vec<u64> {
    let jetstream = jetstream(server).await;
    let mut reader = jetstream
        .read(names.stream(), &names.subjects(), 1)
        .await
        .unwrap();
    let mut numbers = Vec::new();
    while let Some((_, message)) = reader.next().await.unwrap() {
        let headers = message.headers.unwrap();
        if headers.get("Warmroute-Tail").is_none() {
            numbers.push(
                headers
                    .get("Warmroute-Seq")
                    .unwrap()
                    .as_str()
                    .parse()
                    .unwrap(),
            );
        }
    }
    numbers
}

pub(crate) async fn jetstream(server: &NatsServer) -> JetStream {
    JetStream::new(server.dialer().open().await.unwrap().client.clone())
}

/// A TCP proxy in front of the server whose connections can be cut.
pub(crate) struct Partition {
    pub(crate) url: String,
    open: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Partition {
    pub(crate) async fn start(server: &NatsServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let upstream: SocketAddr = server
            .url()
            .strip_prefix("nats://")
            .unwrap()
            .parse()
            .unwrap();
        let open = watch::Sender::new(true);
        let state = open.subscribe();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut state = state.clone();
                connections.spawn(async move {
                    if !*state.borrow() {
                        return;
                    }
                    let mut server = TcpStream::connect(upstream).await.unwrap();
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = state.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { url, open, task }
    }

    /// Cuts all connections and refuses new ones.
    pub(crate) fn cut(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn heal(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        self.task.abort();
    }
}
