//! A scripted engine: a PUB socket and a ROUTER that answers replay requests from a history.

use std::{sync::Arc, time::Duration};

use event_sources::{
    Endpoint, EventDefaults, SourceHandle, SourceSettings, SourceSpec, StreamReport, ZmqSource,
};
use kv_blocks::{
    BlockSize, DpRank, HashScheme, Moment, Namespace, PromptIdentity, Target, WorkerId,
};
use kv_events::{
    Action, Input, Sequencer, SequencerSettings,
    frames::{self, ReplayForm},
    vllm::{self, EventEncoding, WireEvent, WireRemoved, WireStored},
};
use kv_index::{IndexSettings, KvIndex, TargetDigest};
use net::Clock;
use tokio::{sync::mpsc, task::JoinHandle};
use zmtp::{Limits, Pub, PubSettings, Router};

pub(crate) const BLOCK: u32 = 4;
/// Time limit of a wait; only a failing test reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
pub(crate) const TARGET: Target = Target {
    worker: WorkerId(7),
    rank: DpRank(0),
};

/// How the replay socket answers each request.
#[derive(Clone, Debug)]
pub(crate) enum Replies {
    /// Sends the buffered batches from the requested number on, then the end marker.
    History(Vec<(u64, Vec<u8>)>, ReplayForm),
    /// The same, with the losses of libzmq to a reader that reads nothing meanwhile.
    Overflowing(Vec<(u64, Vec<u8>)>, Overflow),
    /// Sends nothing.
    Silence,
    /// Sends these frames.
    Frames(Vec<Vec<u8>>),
}

/// The part of an answer that a libzmq ROUTER delivers when its queue overflows: the first messages
/// and some later ones. The end marker is the last message and does not count as one of these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overflow {
    pub(crate) queue: usize,
    /// Behind the queue, one message in this many is delivered.
    pub(crate) every: usize,
}

impl Overflow {
    fn delivers(self, message: usize) -> bool {
        message < self.queue || (message - self.queue + 1).is_multiple_of(self.every)
    }
}

/// The replay socket of an engine.
pub(crate) struct ReplaySocket {
    pub(crate) endpoint: Endpoint,
    pub(crate) requests: mpsc::UnboundedReceiver<u64>,
    script: mpsc::UnboundedSender<Replies>,
    task: JoinHandle<()>,
}

impl ReplaySocket {
    pub(crate) async fn bind(first: Replies) -> Self {
        let (mut router, endpoint) = Router::bind(&any(), Limits::default()).await.unwrap();
        let (script, mut scripts) = mpsc::unbounded_channel();
        let (request_sender, requests) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut replies = first;
            loop {
                let (peer, request) = router.recv().await;
                while let Ok(newer) = scripts.try_recv() {
                    replies = newer;
                }
                let start = frames::parse_replay_request(&request).unwrap();
                match &replies {
                    Replies::History(batches, form) => {
                        for (seq, payload) in batches.iter().filter(|(seq, _)| *seq >= start) {
                            router
                                .send(&peer, &frames::encode_replay(*form, b"", *seq, payload))
                                .await;
                        }
                        router.send(&peer, &frames::encode_replay_end(*form)).await;
                    }
                    Replies::Overflowing(batches, overflow) => {
                        let all = batches.iter().filter(|(seq, _)| *seq >= start);
                        let messages = all.clone().count() + 1;
                        for (_, (seq, payload)) in all
                            .enumerate()
                            .filter(|(message, _)| overflow.delivers(*message))
                        {
                            router
                                .send(
                                    &peer,
                                    &frames::encode_replay(ReplayForm::New, b"", *seq, payload),
                                )
                                .await;
                        }
                        if messages <= overflow.queue {
                            router
                                .send(&peer, &frames::encode_replay_end(ReplayForm::New))
                                .await;
                        }
                    }
                    Replies::Silence => {}
                    Replies::Frames(frames) => {
                        router.send(&peer, frames).await;
                    }
                }
                request_sender.send(start).unwrap();
            }
        });
        Self {
            endpoint,
            requests,
            script,
            task,
        }
    }

    /// Sets the replies from the next request on.
    pub(crate) fn then(&self, replies: Replies) {
        self.script.send(replies).unwrap();
    }
}

impl Drop for ReplaySocket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn any() -> Endpoint {
    "tcp://127.0.0.1:0".parse().unwrap()
}

pub(crate) async fn publisher(at: &Endpoint) -> (Pub, Endpoint) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match Pub::bind(at, PubSettings::default()).await {
            Ok(bound) => return bound,
            // The connections of the previous publisher may take a moment to close.
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A batch that stores one root block of tokens `n, n, n, n` with engine hash `100 + n`.
pub(crate) fn stored(n: u32) -> Vec<u8> {
    let event = WireEvent::Stored(WireStored {
        hashes: vec![(100 + u64::from(n)).into()],
        tokens: vec![n; BLOCK as usize],
        block_size: BLOCK,
        medium: Some("GPU".into()),
        ..WireStored::default()
    });
    batch(&[event])
}

pub(crate) fn removed(n: u32) -> Vec<u8> {
    let hashes = vec![(100 + u64::from(n)).into()];
    batch(&[WireEvent::Removed(WireRemoved {
        hashes,
        medium: Some("GPU".into()),
    })])
}

pub(crate) fn cleared() -> Vec<u8> {
    batch(&[WireEvent::Cleared])
}

fn batch(events: &[WireEvent]) -> Vec<u8> {
    vllm::encode(1.0, Some(0), events, EventEncoding::CURRENT)
}

pub(crate) fn live(seq: u64, payload: &[u8]) -> Vec<Vec<u8>> {
    frames::encode_live(b"", seq, payload)
}

/// Returns `batches` batches, numbered from 0: mostly stores, and removals of blocks stored a
/// little earlier.
pub(crate) fn history(batches: u32) -> Vec<(u64, Vec<u8>)> {
    let batch = |n: u32| {
        if n % 4 == 3 {
            removed(n - 2)
        } else {
            stored(n)
        }
    };
    (0..batches).map(|n| (n.into(), batch(n))).collect()
}

/// Returns the digest of an index that applied all of these, each once and in order.
pub(crate) fn truth(batches: &[(u64, Vec<u8>)]) -> Vec<TargetDigest> {
    let index = KvIndex::new(IndexSettings::default());
    index.register(TARGET, "m".into());
    let mut sequencer = Sequencer::new(SequencerSettings::default());
    for (seq, payload) in batches {
        for action in sequencer.on(
            Moment::START,
            Input::Live {
                seq: Some(*seq),
                payload,
            },
        ) {
            let Action::Apply(update) = action else {
                panic!("{action:?}")
            };
            index.apply(TARGET, &update);
        }
    }
    index.digest()
}

/// A source under test, with its own index.
pub(crate) struct TestSource {
    pub(crate) index: Arc<KvIndex>,
    pub(crate) source: SourceHandle,
}

impl TestSource {
    pub(crate) fn follow(endpoint: &Endpoint, replay: Option<&Endpoint>) -> Self {
        Self::with(endpoint, replay, |_| {})
    }

    pub(crate) fn with(
        endpoint: &Endpoint,
        replay: Option<&Endpoint>,
        change: impl FnOnce(&mut SourceSpec),
    ) -> Self {
        Self::on(
            KvIndex::new(IndexSettings::default()),
            endpoint,
            replay,
            change,
        )
    }

    /// Follows with a given index.
    pub(crate) fn on(
        index: KvIndex,
        endpoint: &Endpoint,
        replay: Option<&Endpoint>,
        change: impl FnOnce(&mut SourceSpec),
    ) -> Self {
        let index = Arc::new(index);
        let mut spec = SourceSpec {
            target: TARGET,
            worker: "w7".into(),
            model: "m".into(),
            endpoint: endpoint.clone(),
            replay_endpoint: replay.cloned(),
            topic: String::new(),
            bind: false,
            defaults: EventDefaults::default(),
            resume: None,
            settings: SourceSettings::default(),
        };
        change(&mut spec);
        let source = ZmqSource::spawn(spec, Arc::clone(&index), Clock::system());
        Self { index, source }
    }

    /// Returns the blocks of `0..10` that the target holds.
    pub(crate) fn resident(&self) -> Vec<u32> {
        let block_size = BlockSize::new(BLOCK.into()).unwrap();
        let namespace = Namespace {
            model: "m".into(),
            lora: None,
            salt: None,
            block_size,
            identity: PromptIdentity::Tokens,
        };
        let holds = |n: &u32| {
            let chain = HashScheme::default().chain(None, &[*n; BLOCK as usize], block_size);
            let found = self.index.lookup(&namespace, &chain, Moment::START);
            found
                .iter()
                .any(|overlap| overlap.target == TARGET && overlap.blocks.device == 1)
        };
        (0..10).filter(holds).collect()
    }

    /// Waits until the report and the held blocks satisfy a condition.
    pub(crate) async fn until(
        &self,
        what: &str,
        matches_report: impl Fn(&StreamReport, &[u32]) -> bool,
    ) -> StreamReport {
        let mut changes = self.source.changes();
        let wait = async {
            loop {
                let report = self.source.report();
                if matches_report(&report, &self.resident()) {
                    return report;
                }
                changes.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(report) => report,
            Err(_) => panic!(
                "{what} never came: {:?}, held {:?}",
                self.source.report(),
                self.resident()
            ),
        }
    }

    pub(crate) async fn until_resident(&self, blocks: &[u32]) -> StreamReport {
        self.until(&format!("holding {blocks:?}"), |_, resident| {
            resident == blocks
        })
        .await
    }

    /// Waits until the publisher has this reader's subscription.
    pub(crate) async fn until_subscribed(&self, publisher: &Pub) {
        let mut subscribers = publisher.watch_subscribers();
        tokio::time::timeout(PATIENCE, subscribers.wait_for(|count| *count > 0))
            .await
            .unwrap()
            .unwrap();
    }
}
