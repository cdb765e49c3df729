//! One bound socket that several publishers connect to, each with its topic.

use std::{collections::BTreeMap, sync::Arc};

use contract_id::contract;
use event_sources::{
    Codec, Endpoint, EventDefaults, FanOut, PeerFilter, PodTopic, PublisherInfo, PublisherLookup,
    SharedSpec, SourceHandle, SourceSpec, ZmqSource,
};
use kv_blocks::{DpRank, Target, WorkerId};
use kv_events::{frames::encode_live, vllm};
use kv_index::{IndexSettings, KvIndex};
use net::Clock;
use parking_lot::RwLock;
use tokio::{io::AsyncReadExt, net::TcpStream};
use zmtp::{Pub, PubSettings};

use crate::{
    engine::{self, any, cleared, removed, stored},
    residency::{self, PATIENCE, namespace, resident, until, until_resident},
};

fn target(worker: u32, rank: u32) -> Target {
    Target {
        worker: WorkerId(worker),
        rank: DpRank(rank),
    }
}

/// Pods by name; tests change them while the socket is followed.
type Pods = Arc<RwLock<BTreeMap<String, u32>>>;
/// Where workers may publish from, if not from everywhere.
type Peers = Arc<RwLock<BTreeMap<u32, PeerFilter>>>;

struct SharedSocketFixture {
    source: SourceHandle,
    index: Arc<KvIndex>,
    endpoint: Endpoint,
    pods: Pods,
    peers: Peers,
}

impl SharedSocketFixture {
    /// Binds a socket with the pods `a` and `b`, workers 1 and 2.
    async fn bind(change: impl FnOnce(&mut SharedSpec)) -> Self {
        let (probe, endpoint) = engine::publisher(&any()).await;
        drop(probe);
        let pods: Pods = Arc::new(RwLock::new(
            [("a".to_owned(), 1), ("b".to_owned(), 2)].into(),
        ));
        let (known, peers) = (Arc::clone(&pods), Peers::default());
        let allowed = Arc::clone(&peers);
        let route = PublisherLookup::new(move |topic| {
            let topic = PodTopic::parse(topic)?;
            let id = WorkerId(*known.read().get(topic.pod)?);
            Some(PublisherInfo {
                id,
                worker: topic.pod.into(),
                model: topic.model.into(),
                defaults: EventDefaults::default(),
                peers: allowed.read().get(&id.0).cloned().unwrap_or_default(),
            })
        });
        let mut spec = SharedSpec::new("pods", endpoint.clone());
        change(&mut spec);
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        let source = ZmqSource::spawn_shared(spec, route, Arc::clone(&index), Clock::system());
        until(&source, "the bound socket", |report| report.state == "live").await;
        Self {
            source,
            index,
            endpoint,
            pods,
            peers,
        }
    }

    async fn publisher(&self) -> Pub {
        let publisher = Pub::connect(&self.endpoint, PubSettings::default()).unwrap();
        let mut subscribers = publisher.watch_subscribers();
        tokio::time::timeout(PATIENCE, subscribers.wait_for(|count| *count > 0))
            .await
            .unwrap()
            .unwrap();
        publisher
    }

    /// Waits until the connection of the only stream has ended.
    async fn until_lost(&self) {
        until(&self.source, "the loss", |_| {
            self.source.reports()[0].state == "connecting"
        })
        .await;
    }

    async fn until_resident(&self, target: Target, blocks: &[u32]) {
        let blocks: Vec<_> = blocks.iter().map(|n| (*n, "device")).collect();
        until_resident(&self.source, &self.index, target, &blocks).await;
    }
}

/// Returns a batch of this rank that stores block `n`.
fn of_rank(rank: u32, n: u32) -> Vec<u8> {
    let event = vllm::WireEvent::Stored(vllm::WireStored {
        hashes: vec![(100 + u64::from(n)).into()],
        tokens: vec![n; 4],
        block_size: 4,
        medium: Some("GPU".into()),
        ..vllm::WireStored::default()
    });
    vllm::encode(
        1.0,
        Some(rank),
        &[event],
        vllm::EventEncoding {
            layout: vllm::EventLayout::Array,
            ..vllm::EventEncoding::CURRENT
        },
    )
}

#[tokio::test]
async fn the_topic_selects_the_target_of_a_message() {
    let socket = SharedSocketFixture::bind(|_| {}).await;
    let (a, b) = (socket.publisher().await, socket.publisher().await);
    // Each stream has its own numbers: the other's are no gap and no duplicate.
    for seq in 0..3_u32 {
        a.send(&encode_live(b"kv@a@m", seq.into(), &stored(seq)));
        b.send(&encode_live(b"kv@b@m", (seq + 40).into(), &stored(seq + 5)));
    }
    socket.until_resident(target(1, 0), &[0, 1, 2]).await;
    socket.until_resident(target(2, 0), &[5, 6, 7]).await;
    a.send(&encode_live(b"kv@a@m", 3, &cleared()));
    socket.until_resident(target(1, 0), &[]).await;
    b.send(&encode_live(b"kv@b@m", 43, &removed(6)));
    socket.until_resident(target(2, 0), &[5, 7]).await;

    let reports = socket.source.reports();
    let rows: Vec<_> = reports
        .iter()
        .map(|row| {
            (
                row.worker.as_ref(),
                row.dp_rank,
                row.last_seq,
                row.counts.gaps,
            )
        })
        .collect();
    assert_eq!(rows, [("a", 0, Some(3), 0), ("b", 0, Some(43), 0)]);
    let all = socket.source.report();
    assert_eq!(
        (all.worker.as_ref(), &*all.source, all.counts.batches),
        ("pods", "zmq", 8)
    );
    assert_eq!(socket.source.counters().removed, 1);
    socket.source.stop().await;
}

#[tokio::test]
async fn ranks_that_share_a_topic_are_numbered_separately() {
    let socket = SharedSocketFixture::bind(|_| {}).await;
    let (first, second) = (socket.publisher().await, socket.publisher().await);
    for seq in 0..2_u32 {
        first.send(&encode_live(b"kv@a@m", seq.into(), &of_rank(0, seq)));
        second.send(&encode_live(b"kv@a@m", seq.into(), &of_rank(1, seq + 4)));
    }
    socket.until_resident(target(1, 0), &[0, 1]).await;
    socket.until_resident(target(1, 1), &[4, 5]).await;
    let report = socket.source.report();
    assert_eq!(
        (
            report.counts.duplicates,
            report.counts.restarts,
            report.counts.gaps
        ),
        (0, 0, 0)
    );
    socket.source.stop().await;
}

#[tokio::test]
async fn unknown_topics_are_counted_and_dropped_until_their_worker_is_known() {
    let socket = SharedSocketFixture::bind(|_| {}).await;
    let publisher = socket.publisher().await;
    publisher.send(&encode_live(b"kv@c@m", 0, &stored(1)));
    publisher.send(&encode_live(b"kv@nonsense", 0, &stored(1)));
    // The subscription already filters other topics.
    publisher.send(&encode_live(b"load", 0, &stored(1)));
    let report = until(&socket.source, "two drops", |report| {
        report.counts.dropped == 2
    })
    .await;
    assert!(report.last_error.unwrap().contains("no known worker's"));
    publisher.send(&encode_live(
        &[b"kv@a@", &[b'm'; 2_000][..]].concat(),
        0,
        &stored(1),
    ));
    let report = until(&socket.source, "a third", |report| {
        report.counts.dropped == 3
    })
    .await;
    assert!(
        report
            .last_error
            .unwrap()
            .contains("2005 bytes: expected 1024 at most")
    );
    assert_eq!(socket.source.reports(), []);

    socket.pods.write().insert("c".to_owned(), 3);
    publisher.send(&encode_live(b"kv@c@m", 1, &stored(2)));
    socket.until_resident(target(3, 0), &[2]).await;
    // A topic whose worker is removed is not followed any more.
    socket.pods.write().remove("c");
    socket.until_resident(target(3, 0), &[]).await;
    assert_eq!(socket.source.reports(), []);
    socket.source.stop().await;
}

#[tokio::test]
async fn messages_of_two_frames_are_read_and_of_one_frame_are_counted() {
    let socket = SharedSocketFixture::bind(|_| {}).await;
    let publisher = socket.publisher().await;
    publisher.send(&[b"kv@a@m".to_vec(), stored(1)]);
    publisher.send(&[b"kv@a@m".to_vec()]);
    publisher.send(&[b"kv@a@m".to_vec(), stored(2)]);
    socket.until_resident(target(1, 0), &[1, 2]).await;
    let report = socket.source.report();
    assert_eq!(
        (
            report.counts.batches,
            report.counts.decode_errors,
            report.counts.gaps
        ),
        (2, 1, 0)
    );
    assert_eq!(socket.source.reports()[0].last_seq, None);
    socket.source.stop().await;
}

#[tokio::test]
#[contract("S79")]
async fn the_first_live_publisher_keeps_its_stream() {
    let socket = SharedSocketFixture::bind(|_| {}).await;
    let first = socket.publisher().await;
    first.send(&encode_live(b"kv@a@m", 0, &stored(1)));
    socket.until_resident(target(1, 0), &[1]).await;
    // Another connection can neither add to the stream nor clear or restart it, nor end it with
    // garbage.
    let second = socket.publisher().await;
    second.send(&encode_live(b"kv@a@m", 1, &cleared()));
    second.send(&encode_live(b"kv@a@m", 0, &stored(5)));
    for seq in 2..=120 {
        second.send(&encode_live(b"kv@a@m", seq, b"garbage"));
    }
    until(&socket.source, "the drops", |report| {
        report.counts.dropped == 121
    })
    .await;
    first.send(&encode_live(b"kv@a@m", 1, &stored(2)));
    socket.until_resident(target(1, 0), &[1, 2]).await;
    let report = socket.source.report();
    assert_eq!(
        (
            report.counts.restarts,
            report.counts.gaps,
            report.counts.decode_errors
        ),
        (0, 0, 0)
    );
    socket.source.stop().await;
}

#[tokio::test]
#[contract("S79")]
async fn a_restarted_publisher_continues_when_its_old_connection_has_ended() {
    let socket = SharedSocketFixture::bind(|_| {}).await;
    let old = socket.publisher().await;
    old.send(&encode_live(b"kv@a@m", 0, &stored(1)));
    old.send(&encode_live(b"kv@a@m", 1, &stored(2)));
    socket.until_resident(target(1, 0), &[1, 2]).await;
    let new = socket.publisher().await;
    drop(old);
    socket.until_lost().await;
    new.send(&encode_live(b"kv@a@m", 0, &stored(5)));
    socket.until_resident(target(1, 0), &[5]).await;
    assert_eq!(socket.source.report().counts.restarts, 1);
    drop(new);
    socket.until_lost().await;
    socket.source.stop().await;
}

#[tokio::test]
async fn an_engine_that_restarts_under_another_topic_replaces_its_old_stream() {
    let socket = SharedSocketFixture::bind(|_| {}).await;
    socket.pods.write().insert("a-new-address".to_owned(), 1);
    let old = socket.publisher().await;
    old.send(&encode_live(b"kv@a@m", 7, &stored(1)));
    socket.until_resident(target(1, 0), &[1]).await;
    let new = socket.publisher().await;
    // While the old one lives, another topic cannot replace it either.
    new.send(&encode_live(b"kv@a-new-address@m", 0, &stored(5)));
    until(&socket.source, "the drop", |report| {
        report.counts.dropped == 1
    })
    .await;
    socket.until_resident(target(1, 0), &[1]).await;
    drop(old);
    socket.until_lost().await;
    new.send(&encode_live(b"kv@a-new-address@m", 1, &stored(6)));
    socket.until_resident(target(1, 0), &[6]).await;
    socket.source.stop().await;
}

#[tokio::test]
#[contract("S79")]
async fn a_publisher_speaks_only_for_workers_at_its_address() {
    let socket = SharedSocketFixture::bind(|_| {}).await;
    let elsewhere = PeerFilter::new(|address| !address.is_loopback());
    socket.peers.write().insert(2, elsewhere);
    let publisher = socket.publisher().await;
    publisher.send(&encode_live(b"kv@b@m", 0, &stored(1)));
    publisher.send(&encode_live(b"kv@a@m", 0, &stored(2)));
    socket.until_resident(target(1, 0), &[2]).await;
    let report = socket.source.report();
    assert_eq!(report.counts.dropped, 1);
    let error = report.last_error.unwrap();
    assert!(
        error.starts_with("127.0.0.1 sends events of b")
            && error.ends_with("add kv_events: {allowed_peers: [\"127.0.0.1\"]}"),
        "{error}"
    );
    assert!(resident(&socket.index, target(2, 0)).is_empty());
    socket.source.stop().await;
}

#[tokio::test]
#[contract("S79")]
async fn a_peer_at_an_unexpected_address_is_refused_and_logged_once_with_the_setting() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log.reopen().unwrap());
    // The runtime of this test runs on this thread alone.
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let socket = SharedSocketFixture::bind(|spec| {
        spec.peers = PeerFilter::new(|address| !address.is_loopback());
    })
    .await;
    for _ in 0..2 {
        let mut sent = TcpStream::connect(socket.endpoint.to_string().trim_start_matches("tcp://"))
            .await
            .unwrap();
        // The socket has read the peer's address and closed the connection.
        assert_eq!(sent.read(&mut [0; 1]).await.unwrap_or(0), 0);
    }
    let publisher = Pub::connect(&socket.endpoint, PubSettings::default()).unwrap();
    let report = until(&socket.source, "the refusal", |report| {
        report.last_error.is_some()
    })
    .await;
    let setting = "add kv_events: {allowed_peers: [\"127.0.0.1\"]}";
    let error = report.last_error.unwrap();
    assert!(
        error.starts_with("a peer at 127.0.0.1 was refused") && error.ends_with(setting),
        "{error}"
    );
    assert_eq!(*publisher.watch_subscribers().borrow(), 0);
    socket.source.stop().await;
    let log = std::fs::read_to_string(log.path()).unwrap();
    let lines: Vec<_> = log.lines().filter(|line| line.contains(setting)).collect();
    assert!(
        matches!(lines.as_slice(), [line] if line.contains(" WARN ") && line.contains("address=127.0.0.1")),
        "{log}"
    );
}

#[tokio::test]
async fn only_the_publisher_that_sends_garbage_is_quarantined() {
    let socket = SharedSocketFixture::bind(|_| {}).await;
    let (bad, good) = (socket.publisher().await, socket.publisher().await);
    bad.send(&encode_live(b"kv@a@m", 0, &stored(1)));
    socket.until_resident(target(1, 0), &[1]).await;
    for seq in 1..=120 {
        bad.send(&encode_live(b"kv@a@m", seq, b"garbage"));
    }
    good.send(&encode_live(b"kv@b@m", 0, &stored(2)));
    socket.until_resident(target(2, 0), &[2]).await;
    socket.until_resident(target(1, 0), &[]).await;
    until(&socket.source, "the rest", |report| {
        report.counts.dropped == 20
    })
    .await;
    let reports = socket.source.reports();
    let states: Vec<_> = reports.iter().map(|report| &*report.state).collect();
    assert_eq!(states, ["quarantined", "live"]);
    socket.source.stop().await;
}

#[tokio::test]
async fn streams_beyond_the_limit_are_not_followed() {
    let socket = SharedSocketFixture::bind(|spec| spec.max_streams = 2).await;
    let publisher = socket.publisher().await;
    for rank in 0..4 {
        publisher.send(&encode_live(b"kv@a@m", 0, &of_rank(rank, rank)));
    }
    let report = until(&socket.source, "two drops", |report| {
        report.counts.dropped == 2
    })
    .await;
    assert!(
        report
            .last_error
            .unwrap()
            .contains("2 streams are followed already")
    );
    assert_eq!(socket.source.reports().len(), 2);
    socket.source.stop().await;
}

fn fixture(name: &str) -> Vec<u8> {
    let path = format!(
        "{}/../../tests/fixtures/kv_events/{name}.msgpack",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read(path).unwrap()
}

/// The master of a shared store announces that it also holds a block that an engine announced.
#[tokio::test]
#[contract("MC10")]
async fn the_blocks_of_a_store_count_for_every_target_that_shares_it() {
    let index = Arc::new(KvIndex::new(IndexSettings::default()));
    let (engines, store) = ([target(1, 0), target(2, 0)], target(9, 0));
    // The fixture's key as an engine hash.
    let names =
        kv_events::standard::decode_msgpack(&fixture("mooncake_master_stored_u64_key")).unwrap();
    let kv_events::standard::StandardChange::Stored { seq_hashes, .. } =
        &names[0].as_ref().unwrap().change
    else {
        panic!("{names:?}")
    };
    let fan_out = Arc::new(FanOut::new(Arc::clone(&index)));
    for engine in engines {
        index.register(engine, "m".into());
        let stored = kv_blocks::StoredBlocks {
            hashes: vec![kv_blocks::EngineHash(seq_hashes[0])],
            parent: None,
            tokens: vec![1; 4],
            block_size: kv_blocks::BlockSize::new(4).unwrap(),
            lora: None,
            media: Vec::new(),
            salt: None,
            tier: kv_blocks::Tier::Device,
        };
        index.apply(engine, &kv_blocks::IndexUpdate::Stored(stored));
        fan_out.add(engine);
    }
    let (master, endpoint) = engine::publisher(&any()).await;
    let mut spec = SourceSpec::new(store, "store", "m", endpoint);
    spec.settings.format = Codec::Mooncake;
    let source = ZmqSource::spawn_into(spec, Arc::clone(&fan_out) as _, Clock::system());
    let mut subscribers = master.watch_subscribers();
    tokio::time::timeout(PATIENCE, subscribers.wait_for(|count| *count > 0))
        .await
        .unwrap()
        .unwrap();

    master.send(&encode_live(
        b"",
        0,
        &fixture("mooncake_master_stored_u64_key"),
    ));
    let present = |engine: Target| {
        let found = index.lookup(
            &namespace("m"),
            &[residency::plain(1)],
            kv_blocks::Moment::START,
        );
        found
            .iter()
            .find(|overlap| overlap.target == engine)
            .map(|overlap| overlap.present)
    };
    until(&source, "the host's copies", |_| {
        engines
            .iter()
            .all(|engine| present(*engine) == Some([1, 1, 0, 0]))
    })
    .await;
    // An object that is no engine's block and a malformed batch do not stop the stream. A skipped
    // number is a gap.
    master.send(&encode_live(
        b"",
        1,
        &fixture("mooncake_master_stored_opaque_key"),
    ));
    master.send(&encode_live(b"", 2, b"garbage"));
    until(&source, "the garbage", |report| report.last_seq == Some(2)).await;
    assert!(fan_out.remove(engines[0]), "one member is left");
    master.send(&encode_live(b"", 5, &fixture("mooncake_master_removed")));
    until(&source, "the removal", |_| {
        present(engines[1]) == Some([1, 0, 0, 0])
    })
    .await;
    let report = until(&source, "its count", |report| report.last_seq == Some(5)).await;
    assert_eq!(
        (
            report.counts.batches,
            report.counts.gaps,
            report.counts.decode_errors
        ),
        (4, 1, 1)
    );
    assert_eq!(present(engines[0]), Some([1, 1, 0, 0]), "its updates stop");
    assert_eq!(present(store), None, "the store itself is not a worker");
    source.stop().await;
}
