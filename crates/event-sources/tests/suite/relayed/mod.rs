//! An engine that keeps its history, its relay, and readers behind a NATS server.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use event_sources::{NatsRelay, NatsSource, NatsSpec, RelayCounts, RelayNotice, RelaySpec};
use kv_events::frames::{self, ReplayForm};
use kv_index::{IndexSettings, KvIndex, TargetDigest};
use net::Clock;
use test_programs::ReservedPort;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};
use zmtp::{Endpoint, Limits, Pub, Router};

use crate::engine::{PATIENCE, TARGET, TestSource, publisher, truth};

pub(crate) const SUBJECT: &str = "kv.pool-a.engine_0";

type BatchHistory = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// An engine: it publishes its batches and keeps them for replay.
pub(crate) struct RelayedEngine {
    publisher: Pub,
    pub(crate) endpoint: Endpoint,
    pub(crate) replay: Endpoint,
    ports: Arc<[ReservedPort; 2]>,
    history: BatchHistory,
    requests: Arc<AtomicU32>,
    answering: JoinHandle<()>,
}

impl RelayedEngine {
    pub(crate) async fn start() -> Self {
        Self::start_at(Arc::new([ReservedPort::new(), ReservedPort::new()])).await
    }

    async fn start_at(ports: Arc<[ReservedPort; 2]>) -> Self {
        let [endpoint, replay] =
            [0, 1].map(|n: usize| format!("tcp://{}", ports[n].address()).parse().unwrap());
        let (publisher, endpoint) = publisher(&endpoint).await;
        let (mut router, replay) = bound(&replay).await;
        let history = BatchHistory::default();
        let (batches, requests) = (Arc::clone(&history), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&requests);
        let answering = tokio::spawn(async move {
            loop {
                let (peer, request) = router.recv().await;
                let from = frames::parse_replay_request(&request).unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                let batches: Vec<_> = batches
                    .lock()
                    .unwrap()
                    .iter()
                    .filter(|(seq, _)| *seq >= from)
                    .cloned()
                    .collect();
                for (seq, payload) in batches {
                    router
                        .send(
                            &peer,
                            &frames::encode_replay(ReplayForm::New, b"", seq, &payload),
                        )
                        .await;
                }
                router
                    .send(&peer, &frames::encode_replay_end(ReplayForm::New))
                    .await;
            }
        });
        Self {
            publisher,
            endpoint,
            replay,
            ports,
            history,
            requests,
            answering,
        }
    }

    /// Starts a new engine process behind the same sockets.
    pub(crate) async fn restart(self) -> Self {
        let ports = Arc::clone(&self.ports);
        drop(self);
        Self::start_at(ports).await
    }

    pub(crate) fn publish(&self, payload: Vec<u8>) {
        let mut history = self.history.lock().unwrap();
        let seq = history.len() as u64;
        self.publisher
            .send(&frames::encode_live(b"", seq, &payload));
        history.push((seq, payload));
    }

    pub(crate) fn publish_all(&self, batches: &[(u64, Vec<u8>)]) {
        batches
            .iter()
            .for_each(|(_, payload)| self.publish(payload.clone()));
    }

    /// Returns the digest of an index that applied the whole history.
    pub(crate) fn truth(&self) -> Vec<TargetDigest> {
        truth(&self.history.lock().unwrap())
    }

    /// The number of its latest batch.
    pub(crate) fn last_seq(&self) -> Option<u64> {
        (self.history.lock().unwrap().len() as u64).checked_sub(1)
    }

    /// Waits until it has a subscriber.
    pub(crate) async fn until_subscribed(&self) {
        let mut subscribers = self.publisher.watch_subscribers();
        timeout(PATIENCE, subscribers.wait_for(|count| *count > 0))
            .await
            .unwrap()
            .unwrap();
    }

    pub(crate) fn request_count(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for RelayedEngine {
    fn drop(&mut self) {
        self.answering.abort();
    }
}

async fn bound(at: &Endpoint) -> (Router, Endpoint) {
    let wait = async {
        loop {
            match Router::bind(at, Limits::default()).await {
                Ok(bound) => return bound,
                // The connections of the previous socket may take a moment to close.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        }
    };
    timeout(PATIENCE, wait).await.expect("a free port")
}

/// A relay in its own task.
pub(crate) struct RelayTask {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<RelayCounts>,
    notices: mpsc::UnboundedReceiver<RelayNotice>,
}

impl RelayTask {
    pub(crate) fn start(engine: &RelayedEngine, server: &str) -> Self {
        Self::with(engine, server, |_| {})
    }

    pub(crate) fn with(
        engine: &RelayedEngine,
        server: &str,
        change: impl FnOnce(&mut RelaySpec),
    ) -> Self {
        let mut spec = RelaySpec {
            endpoint: engine.endpoint.clone(),
            replay_endpoint: Some(engine.replay.clone()),
            topic: String::new(),
            bind: false,
            to: format!("{server}/{SUBJECT}").parse().unwrap(),
            credentials: None,
            trust: None,
        };
        change(&mut spec);
        let (stop, stopped) = oneshot::channel();
        let (sender, notices) = mpsc::unbounded_channel();
        let relay = NatsRelay::new(spec, Clock::system(), move |notice| {
            let _ = sender.send(notice);
        });
        let task = tokio::spawn(async move { relay.run(stopped).await.unwrap().1 });
        Self {
            stop: Some(stop),
            task,
            notices,
        }
    }

    /// Waits for a matching notice.
    pub(crate) async fn until(&mut self, is_so: impl Fn(&RelayNotice) -> bool) -> RelayNotice {
        let wait = async {
            loop {
                let notice = self.notices.recv().await.expect("it runs");
                if is_so(&notice) {
                    return notice;
                }
            }
        };
        timeout(PATIENCE, wait)
            .await
            .expect("the relay sends the notice")
    }

    /// Waits until both its ends are connected, in any order.
    pub(crate) async fn until_relaying(&mut self) {
        let is_end = |notice: &RelayNotice| {
            matches!(
                notice,
                RelayNotice::Relaying(_) | RelayNotice::EngineConnected(_)
            )
        };
        let first = self.until(is_end).await;
        self.until(|notice| {
            is_end(notice) && std::mem::discriminant(notice) != std::mem::discriminant(&first)
        })
        .await;
    }

    /// Stops it as a signal does.
    pub(crate) async fn stop(mut self) -> RelayCounts {
        self.stop.take().unwrap().send(()).unwrap();
        timeout(PATIENCE, &mut self.task)
            .await
            .expect("it ends")
            .unwrap()
    }

    /// Ends it as SIGKILL does.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

pub(crate) fn follow(server: &str) -> TestSource {
    follow_with(server, |_| {})
}

pub(crate) fn follow_with(server: &str, change: impl FnOnce(&mut NatsSpec)) -> TestSource {
    let mut spec = NatsSpec::new(
        TARGET,
        "w7",
        "m",
        format!("{server}/{SUBJECT}").parse().unwrap(),
    );
    change(&mut spec);
    let index = Arc::new(KvIndex::new(IndexSettings::default()));
    let source = NatsSource::spawn(spec, Arc::clone(&index), Clock::system());
    TestSource { index, source }
}

/// Waits until the reader's index equals the engine's cache.
pub(crate) async fn until_synced(
    reader: &TestSource,
    engine: &RelayedEngine,
) -> event_sources::StreamReport {
    let (truth, last) = (engine.truth(), engine.last_seq());
    let index = Arc::clone(&reader.index);
    // The report is older than the digest beside it, so it must show the state by itself.
    reader
        .until("the truth", |report, _| {
            report.state == "live" && report.last_seq == last && index.digest() == truth
        })
        .await
}

/// Waits until the target holds exactly these blocks and the report agrees: it is published after
/// the index update.
pub(crate) async fn until_reported(
    reader: &TestSource,
    last_seq: u64,
    blocks: &[u32],
) -> event_sources::StreamReport {
    let what = format!("holding {blocks:?} since batch {last_seq}");
    reader
        .until(&what, |report, resident| {
            report.last_seq == Some(last_seq) && resident == blocks
        })
        .await
}
