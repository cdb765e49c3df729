//! Streams that run, end and are followed elsewhere, with publishers that do not exist.

use std::time::Duration;

use config::{EventSource, ReplayEndpoint};
use contract_id::contract;
use event_sources::Endpoint;
use kv_blocks::{BlockSize, DpRank, HashScheme, Namespace, PromptIdentity, SequenceHash, Target};
use kv_index::{IndexSettings, KvIndex};
use net::{Clock, Destinations};
use tokio::runtime::Builder;
use zmtp::Limits;

use super::{find::next_port_if_replay, followed::RankSelection, *};
use crate::{
    probe::event_endpoints::{self, EventEndpoint},
    worker_record::WorkerRecord,
};

/// A time that nothing here takes.
const LONG: Duration = Duration::from_secs(2);

const ID: WorkerId = WorkerId(0);

fn settings() -> StreamSettings {
    let url = "http://127.0.0.1:1".parse().expect("a url");
    StreamSettings {
        own: config::WorkerKvEvents::default(),
        all: config::KvEventsSection {
            default_port: 1,
            ..config::KvEventsSection::default()
        },
        host_is_its_own: true,
        bound_alone: true,
        url,
        api_key: None,
        block_size: None,
        scheme: HashScheme::default(),
    }
}

/// A worker table of one worker, and a chain of blocks to be stored for its first rank.
struct StreamFixture {
    index: Arc<KvIndex>,
    table: Arc<WorkerTable>,
    namespace: Namespace,
    chain: Vec<SequenceHash>,
}

impl StreamFixture {
    fn new() -> Self {
        let (clock, index) = (
            Clock::system(),
            Arc::new(KvIndex::new(IndexSettings::default())),
        );
        let table = Arc::new(WorkerTable::new(Arc::clone(&index), clock));
        table.add(WorkerRecord::for_tests(ID, &clock));
        let block_size = BlockSize::new(16).expect("a block size");
        let namespace = Namespace {
            model: "m".into(),
            lora: None,
            salt: None,
            block_size,
            identity: PromptIdentity::Tokens,
        };
        let chain = HashScheme::default().chain(None, &[1; 32], block_size);
        Self {
            index,
            table,
            namespace,
            chain,
        }
    }

    fn streams(&self) -> WorkerStreams {
        WorkerStreams::new(Arc::clone(&self.table), ID, "w1".into())
    }

    fn enter(&self) {
        let target = Target {
            worker: ID,
            rank: DpRank(0),
        };
        let ttl = Duration::from_secs(100);
        self.index.predict(
            target,
            &self.namespace,
            &self.chain,
            self.table.clock.now(),
            ttl,
        );
    }

    fn is_empty(&self) -> bool {
        self.index
            .lookup(&self.namespace, &self.chain, self.table.clock.now())
            .is_empty()
    }

    fn specs(port: u16, replay_port: Option<u16>) -> Vec<StreamSpec> {
        let at = |port: u16| format!("tcp://127.0.0.1:{port}");
        let replay_endpoint = replay_port.map(at);
        let endpoint = EventEndpoint {
            rank: 0,
            endpoint: at(port),
            replay_endpoint,
            topic: String::new(),
        };
        vec![StreamSpec::Publisher(endpoint)]
    }
}

#[tokio::test]
async fn a_stream_with_a_changed_endpoint_begins_empty() {
    let (fixture, settings) = (StreamFixture::new(), settings());
    let (mut streams, model) = (fixture.streams(), &fixture.namespace.model);
    // Blocks expected of a worker before its first stream are no stream's content.
    fixture.enter();
    for (specs, empty) in [
        (StreamFixture::specs(1, None), false),
        (StreamFixture::specs(1, None), false),
        (StreamFixture::specs(1, Some(2)), true),
        (StreamFixture::specs(3, Some(2)), true),
        (Vec::new(), true),
    ] {
        let what = format!("{specs:?}");
        streams.run(&settings, model, specs).await;
        assert_eq!(fixture.is_empty(), empty, "{what}");
        fixture.enter();
    }
    streams.stop().await;
}

#[test]
fn a_stream_whose_task_ended_is_forgotten_and_started_again() {
    let here = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let (fixture, settings) = (StreamFixture::new(), settings());
    let (table, mut streams) = (&fixture.table, fixture.streams());
    // Its task runs on a runtime that is dropped: to the stream's owner that is like a panic.
    let guard = runtime.enter();
    let model = &fixture.namespace.model;
    let specs = StreamFixture::specs(1, None);
    futures_util::FutureExt::now_or_never(streams.run(&settings, model, specs))
        .expect("nothing to wait for");
    drop(guard);
    fixture.enter();
    runtime.shutdown_timeout(Duration::from_secs(10));

    let ended = || table.with(ID, |entry| entry.streams[0].source.ended());
    here.block_on(async {
        while !streams.one_ended {
            streams.changed().await;
        }
        assert!(streams.forget_ended(), "its supervisor hears of it");
        assert!(!streams.forget_ended(), "once");
        assert!(fixture.is_empty());
        assert_eq!(ended(), Some(true));
        assert_eq!(streams.start_missing(&settings), StreamCoverage::Complete);
        assert_eq!((ended(), streams.any()), (Some(false), true));
        streams.stop().await;
    });
}

/// A search on this machine, for a worker that announces nothing.
fn search(settings: &StreamSettings, ranks: u32) -> StreamSearch<'_> {
    StreamSearch {
        settings,
        announced: None,
        host: "127.0.0.1",
        ranks,
        connect_timeout: LONG,
    }
}

/// Returns the endpoint one port below.
fn before(endpoint: &Endpoint) -> String {
    event_endpoints::tcp("127.0.0.1", endpoint.port().expect("a tcp port") - 1)
}

#[tokio::test]
async fn the_next_port_is_a_replay_socket_only_if_one_answers_there() {
    let any: Endpoint = "tcp://127.0.0.1:0".parse().expect("an endpoint");
    let (_router, replay) = zmtp::Router::bind(&any, Limits::default())
        .await
        .expect("a free port");
    let found = next_port_if_replay(&before(&replay), Destinations::Any, LONG).await;
    assert_eq!(found, Some(replay.to_string()));
    let (_publisher, events) = zmtp::Pub::bind(&any, zmtp::PubSettings::default())
        .await
        .expect("a free port");
    assert_eq!(
        next_port_if_replay(&before(&events), Destinations::Any, LONG).await,
        None,
        "another engine's publisher"
    );

    let find = async |replay_endpoint, announced: Option<&[EventEndpoint]>| {
        let own = config::WorkerKvEvents {
            endpoint: Some(before(&replay)),
            replay_endpoint,
            ..settings().own
        };
        let settings = StreamSettings { own, ..settings() };
        let search = StreamSearch {
            announced,
            ..search(&settings, 1)
        };
        let found = search.find().await.remove(0);
        found.into_publisher().expect("a publisher").replay_endpoint
    };
    assert_eq!(
        find(ReplayEndpoint::Auto, None).await,
        Some(replay.to_string())
    );
    assert_eq!(
        find(ReplayEndpoint::Auto, Some(&[])).await,
        None,
        "it announces its blocks"
    );
    assert_eq!(find(ReplayEndpoint::None, None).await, None);
}

#[test]
#[contract("S39", "S40")]
fn the_streams_of_a_worker_that_was_found_go_only_where_engines_may_be() {
    let mut settings = settings();
    assert_eq!(settings.source_settings().destinations, Destinations::Any);
    settings.url = settings.url.only_at(Destinations::Engines);
    assert_eq!(
        settings.source_settings().destinations,
        Destinations::Engines
    );
}

#[tokio::test]
async fn each_kind_of_source_has_its_streams() {
    let at = |text: &str| Some(text.to_owned());
    let nats = |rank, endpoint: &str| StreamSpec::Nats {
        rank,
        endpoint: endpoint.to_owned(),
    };
    let standard = |endpoint: &str| StreamSpec::Standard {
        endpoint: endpoint.to_owned(),
    };
    let polled = StreamSpec::Polled {
        endpoint: settings().url.to_string(),
    };
    for (source, endpoint, ranks, expected) in [
        (EventSource::None, at("tcp://h:1"), 1, vec![]),
        (EventSource::Poll, None, 2, vec![polled]),
        (
            EventSource::Sse,
            at("http://h/e"),
            2,
            vec![standard("http://h/e")],
        ),
        (
            EventSource::Ws,
            at("ws://h/e"),
            1,
            vec![standard("ws://h/e")],
        ),
        (EventSource::Sse, None, 1, vec![]),
        (
            EventSource::Nats,
            at("nats://h/s"),
            1,
            vec![nats(0, "nats://h/s")],
        ),
        (
            EventSource::Nats,
            at("nats://h/s"),
            2,
            vec![nats(0, "nats://h/s.0"), nats(1, "nats://h/s.1")],
        ),
        (EventSource::Nats, None, 1, vec![]),
    ] {
        let own = config::WorkerKvEvents {
            source,
            endpoint,
            ..settings().own
        };
        let what = format!("{source:?} {:?} {ranks}", own.endpoint);
        let mut settings = StreamSettings { own, ..settings() };
        assert_eq!(search(&settings, ranks).find().await, expected, "{what}");
        settings.all.enabled = false;
        assert_eq!(search(&settings, ranks).find().await, [], "{what}");
    }
}

#[tokio::test]
async fn announced_publishers_are_followed_within_the_worker_s_ranks_and_with_its_own_topic() {
    let announced = [0, 1, 2].map(|rank| EventEndpoint {
        rank,
        endpoint: format!("tcp://h:{}", 5000 + rank),
        replay_endpoint: Some("tcp://h:6000".to_owned()),
        topic: "told".to_owned(),
    });
    for (replay, replay_endpoint, topic, expected) in [
        (
            true,
            ReplayEndpoint::Auto,
            "",
            (Some("tcp://h:6000"), "told"),
        ),
        (true, ReplayEndpoint::None, "own", (None, "own")),
        (false, ReplayEndpoint::Auto, "own", (None, "own")),
        (
            true,
            ReplayEndpoint::At("tcp://*:7000".to_owned()),
            "",
            (Some("tcp://127.0.0.1:7001"), "told"),
        ),
    ] {
        let mut settings = settings();
        settings.all.replay = replay;
        settings.own.replay_endpoint = replay_endpoint;
        settings.own.topic = topic.to_owned();
        let search = StreamSearch {
            announced: Some(&announced),
            ..search(&settings, 2)
        };
        let mut found = search.find().await;
        assert_eq!(found.len(), 2, "the third is no rank of it");
        let last = found.pop().and_then(StreamSpec::into_publisher);
        let last = last.expect("a publisher");
        assert_eq!(last.endpoint, "tcp://h:5001");
        assert_eq!((last.replay_endpoint.as_deref(), &*last.topic), expected);
    }
}

#[tokio::test]
async fn each_rank_of_a_worker_that_connects_to_us_has_a_socket_of_its_own() {
    let endpoint = Some("tcp://0.0.0.0:5557".to_owned());
    let own = config::WorkerKvEvents {
        bind: true,
        endpoint,
        ..settings().own
    };
    let settings = StreamSettings { own, ..settings() };
    let found = search(&settings, 3).find().await;
    let endpoints: Vec<_> = found
        .iter()
        .map(|spec| (spec.ranks(), spec.endpoint()))
        .collect();
    let one = |rank| RankSelection::One(DpRank(rank));
    assert_eq!(
        endpoints,
        [
            (one(0), "tcp://0.0.0.0:5557"),
            (one(1), "tcp://0.0.0.0:5558"),
            (one(2), "tcp://0.0.0.0:5559")
        ]
    );
}

#[test]
fn a_password_in_an_endpoint_is_not_logged() {
    assert_eq!(
        without_password("nats://user:s3cret@bus:4222/kv.e0"),
        "nats://***@bus:4222/kv.e0"
    );
    assert_eq!(without_password("tcp://h:5557"), "tcp://h:5557");
    assert_eq!(without_password("ipc:///run/a@b"), "ipc://***@b");
}
