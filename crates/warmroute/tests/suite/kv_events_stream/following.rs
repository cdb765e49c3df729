//! An index that reads the stream equals the router's.

use std::collections::{BTreeMap, BTreeSet};

use contract_id::contract;
use kv_blocks::{DpRank, HashScheme, Moment, Target, WorkerId};
use kv_events::standard::{
    HashKeyedUpdate, StandardStreams, StandardStreamsSettings, StreamOutput, decode_json, to_hashed,
};
use kv_index::{IndexSettings, KvIndex};
use serde_json::json;
use test_programs::ReservedPort;

use super::subscriber::Subscriber;
use crate::harness::{Program, RawClient, RoutedFleet, eventually, words};

/// Worker, rank, tier, blocks and digest.
type BlockRow = (String, u64, String, u64, String);

/// A second index, fed only by the stream.
struct IndexReader {
    subscriber: Subscriber,
    index: KvIndex,
    streams: StandardStreams,
    workers: BTreeMap<String, WorkerId>,
    read: usize,
}

impl IndexReader {
    fn new(router: &Program, query: &str) -> Self {
        let subscriber = Subscriber::new(router, &format!("?format=rfc1527{query}"));
        let index = KvIndex::new(IndexSettings {
            secret: 3,
            ..IndexSettings::default()
        });
        let streams = StandardStreams::new(StandardStreamsSettings::default());
        Self {
            subscriber,
            index,
            streams,
            workers: BTreeMap::new(),
            read: 0,
        }
    }

    fn read_on(&mut self) {
        let events = self.subscriber.events();
        for event in &events[self.read..] {
            if event.name == "snapshot_end" {
                continue;
            }
            for event in decode_json(event.data.to_string().as_bytes()).unwrap() {
                for ordered in self.streams.take(Moment::START, event.unwrap()) {
                    self.apply(ordered);
                }
            }
        }
        self.read = events.len();
    }

    fn apply(&mut self, ordered: StreamOutput) {
        let StreamOutput::Event(event) = ordered else {
            panic!("nothing is missing: {ordered:?}")
        };
        let next = WorkerId(u32::try_from(self.workers.len()).unwrap() + 100);
        let worker = *self
            .workers
            .entry(event.stream.backend_id.as_ref().unwrap().to_string())
            .or_insert(next);
        let target = Target {
            worker,
            rank: DpRank(event.stream.dp_rank.unwrap()),
        };
        let namespace = event.stream.namespace().unwrap();
        self.index.register(target, namespace.model.clone());
        match to_hashed(&event, HashScheme::default()).unwrap() {
            HashKeyedUpdate::Stored {
                parent,
                hashes,
                tier,
            } => {
                self.index
                    .store_hashes(target, &namespace, parent, &hashes, tier);
            }
            HashKeyedUpdate::Removed { hashes, tier } => {
                self.index.remove_hashes(target, &namespace, &hashes, tier);
            }
            HashKeyedUpdate::Cleared { tier } => self.index.clear_stream(target, &namespace, tier),
        }
    }

    fn digest(&mut self) -> BTreeSet<BlockRow> {
        self.read_on();
        let name = |id: WorkerId| {
            self.workers
                .iter()
                .find(|(_, known)| **known == id)
                .unwrap()
                .0
                .clone()
        };
        let rows = self.index.digest().into_iter().map(|row| {
            let (tier, digest) = (row.tier.as_str().to_owned(), format!("{:016x}", row.digest));
            (
                name(row.target.worker),
                u64::from(row.target.rank.0),
                tier,
                row.blocks,
                digest,
            )
        });
        rows.collect()
    }

    /// Waits until it equals that of a router which has applied all events; returns the number of
    /// blocks.
    fn agrees(&mut self, routed: &RoutedFleet) -> u64 {
        routed.caught_up();
        eventually("both indexes to have the same content", || {
            let rows = digest(routed);
            (self.digest() == rows).then(|| rows.iter().map(|row| row.3).sum())
        })
    }
}

fn digest(routed: &RoutedFleet) -> BTreeSet<BlockRow> {
    let body = routed.digest();
    let rows = body["targets"].as_array().unwrap().iter();
    rows.map(|row| {
        let text = |field: &str| row[field].as_str().unwrap().to_owned();
        let number = |field: &str| row[field].as_u64().unwrap();
        (
            text("worker"),
            number("dp_rank"),
            text("tier"),
            number("blocks"),
            text("digest"),
        )
    })
    .collect()
}

fn complete(routed: &RoutedFleet, worker: &str, topic: &str) {
    routed.completion(
        json!({"prompt": words(topic, 60)}),
        &[("x-warmroute-worker", worker)],
    );
}

#[test]
#[contract("MC8", "MC9", "MC13")]
fn an_index_fed_by_the_stream_stays_equal_through_evictions_restarts_and_reconnects() {
    let small: &[&str] = &["--kv-blocks", "64"];
    let tiered: &[&str] = &["--kv-blocks", "64", "--host-blocks", "100"];
    let ports = [ReservedPort::new(), ReservedPort::new()];
    let [events, replay] = [0, 1].map(|n: usize| format!("tcp://{}", ports[n].address()));
    let sockets = ["--kv-events", &*events, "--replay", &*replay];
    let mut routed = RoutedFleet::start(&[&[small, &sockets].concat(), tiered]);
    let mut from_the_start = IndexReader::new(&routed.router, "");
    let topics = ["one", "two", "three", "four", "five", "one", "six", "two"];
    for topic in topics {
        complete(&routed, "a", topic);
        complete(&routed, "b", topic);
    }
    assert!(from_the_start.agrees(&routed) > 64);
    // It equals the router's, so that the evictions before have been read.
    let evicted = from_the_start
        .subscriber
        .events()
        .iter()
        .any(|event| event.name == "cache_evicted");
    assert!(evicted, "the caches were too small for all");

    let mut from_now = IndexReader::new(&routed.router, "&snapshot=true");
    from_now.subscriber.until("snapshot_end");
    from_now.agrees(&routed);
    complete(&routed, "b", "seven");
    from_now.agrees(&routed);

    // Engine a dies, and restarts on its ports with an empty cache.
    let port = routed.engines[0]
        .data()
        .rsplit(':')
        .next()
        .unwrap()
        .to_owned();
    routed.engines[0].kill();
    let again = Program::engine(&[small, &sockets, &["--speed", "20", "--port", &port]].concat());
    // The killed engine's handle keeps the port reserved.
    let _dead = std::mem::replace(&mut routed.engines[0], again);
    eventually("the engine to be used again", || {
        let body =
            json!({"model": "sim", "prompt": words("eight", 60), "max_tokens": 1}).to_string();
        let mut client = RawClient::connect(&routed.router.data());
        client.send(
            "POST",
            "/v1/completions",
            &[("x-warmroute-worker", "a")],
            body.as_bytes(),
        );
        (client.reply().status == 200).then_some(())
    });
    for reader in [&mut from_the_start, &mut from_now] {
        assert!(reader.agrees(&routed) > 0);
    }

    let mut again = IndexReader::new(&routed.router, "&snapshot=true");
    complete(&routed, "a", "nine");
    again.subscriber.until("snapshot_end");
    for reader in [&mut again, &mut from_the_start] {
        reader.agrees(&routed);
    }
}
