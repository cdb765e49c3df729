//! The loop closed: another index that reads the stream has the same content.

use std::{collections::HashSet, ops::Range, pin::Pin};

use kv_blocks::{HashScheme, Moment};
use kv_events::standard::{
    HashKeyedUpdate, StandardChange, StandardEvent, StandardStreams, StandardStreamsSettings,
    StreamKey, StreamOutput, decode_json, to_hashed,
};
use proptest::prelude::*;

use super::*;

/// Worker, medium, salt and block.
type AnnouncedBlock = (Arc<str>, Arc<str>, Option<Arc<str>>, u64);

/// Reader of envelopes, like any index of the standard.
struct EnvelopeReader {
    index: KvIndex,
    streams: StandardStreams,
    /// Blocks announced as stored and not removed since.
    announced: HashSet<AnnouncedBlock>,
}

impl EnvelopeReader {
    fn new() -> Self {
        let index = KvIndex::new(IndexSettings {
            secret: 7,
            ..IndexSettings::default()
        });
        (0..3).for_each(|worker| index.register(target(worker), "m".into()));
        Self {
            index,
            streams: StandardStreams::new(StandardStreamsSettings::default()),
            announced: HashSet::new(),
        }
    }

    /// A block stored twice is a copy for a reader that counts copies, and one removal leaves the
    /// other.
    fn note(&mut self, event: &StandardEvent) {
        let StreamKey {
            backend_id,
            medium,
            salt,
            ..
        } = &event.stream;
        let key = |hash: &u64| {
            (
                backend_id.clone().unwrap(),
                medium.clone().unwrap(),
                salt.clone(),
                *hash,
            )
        };
        match &event.change {
            StandardChange::Stored { seq_hashes, .. } => {
                let counted = medium.as_deref() == Some("gpu");
                for hash in seq_hashes {
                    assert!(
                        self.announced.insert(key(hash)) || !counted,
                        "told twice: {event:?}"
                    );
                }
            }
            StandardChange::Removed { seq_hashes, .. } => {
                for hash in seq_hashes {
                    self.announced.remove(&key(hash));
                }
            }
            StandardChange::Cleared => {}
        }
    }

    fn read(&mut self, text: &str) {
        for line in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
            if line.contains("snapshot_end") {
                continue;
            }
            for event in decode_json(line.as_bytes()).unwrap() {
                for ordered in self.streams.take(Moment::START, event.unwrap()) {
                    let StreamOutput::Event(event) = ordered else {
                        panic!("nothing is missing: {ordered:?}")
                    };
                    self.note(&event);
                    let worker = event.stream.backend_id.as_ref().unwrap()[1..]
                        .parse()
                        .unwrap();
                    let namespace = event.stream.namespace().unwrap();
                    match to_hashed(&event, HashScheme::default()).unwrap() {
                        HashKeyedUpdate::Stored {
                            parent,
                            hashes,
                            tier,
                        } => {
                            self.index.store_hashes(
                                target(worker),
                                &namespace,
                                parent,
                                &hashes,
                                tier,
                            );
                        }
                        HashKeyedUpdate::Removed { hashes, tier } => {
                            self.index
                                .remove_hashes(target(worker), &namespace, &hashes, tier);
                        }
                        HashKeyedUpdate::Cleared { tier } => {
                            self.index.clear_stream(target(worker), &namespace, tier)
                        }
                    }
                }
            }
        }
    }
}

/// One step: a change of the index, or a read of the stream. Blocks in units of [`SCALE`].
#[derive(Clone, Debug)]
enum FollowerStep {
    Store {
        worker: u32,
        salt: u32,
        blocks: Range<u32>,
        tier: Tier,
    },
    Remove {
        worker: u32,
        salt: u32,
        blocks: Range<u32>,
        tier: Tier,
    },
    Clear {
        worker: u32,
    },
    Read,
}

/// Long chains, so that the initial state comes in several pieces.
const SCALE: u32 = 150;

/// `begin` of the stores are whole sequences; the others continue a sequence whose front the worker
/// may lack.
fn steps(begin: f64) -> impl Strategy<Value = Vec<FollowerStep>> {
    let tier = prop_oneof![3 => Just(Tier::Device), 1 => Just(Tier::Host)];
    let span = (0_u32..3, 0_u32..3, 0_u32..24, 1_u32..16, tier);
    let step = prop_oneof![
        5 => (span.clone(), prop::bool::weighted(begin)).prop_map(|((worker, salt, from, len, tier), begins)| {
            // A block without a parent is not stored.
            let from = if begins { 0 } else { from };
            FollowerStep::Store { worker, salt, blocks: from..from + len, tier }
        }),
        4 => span.prop_map(|(worker, salt, from, len, tier)| {
            FollowerStep::Remove { worker, salt, blocks: from..from + len, tier }
        }),
        1 => (0_u32..3).prop_map(|worker| FollowerStep::Clear { worker }),
        8 => Just(FollowerStep::Read),
    ];
    prop::collection::vec(step, 1..60)
}

fn apply(index: &KvIndex, step: &FollowerStep) {
    let scaled = |blocks: &Range<u32>| blocks.start * SCALE..blocks.end * SCALE;
    match step {
        FollowerStep::Store {
            worker,
            salt,
            blocks,
            tier,
        } => {
            index.apply(target(*worker), &stored(*salt, scaled(blocks), *tier));
        }
        FollowerStep::Remove {
            worker,
            salt,
            blocks,
            tier,
        } => {
            index.apply(target(*worker), &removed(*salt, scaled(blocks), *tier));
        }
        FollowerStep::Clear { worker } => index.clear(target(*worker)),
        FollowerStep::Read => {}
    }
}

async fn read_some(events: &mut Pin<Box<impl Stream<Item = String>>>) -> String {
    tokio::time::timeout(Duration::from_millis(50), events.next())
        .await
        .map_or(String::new(), Option::unwrap)
}

async fn follow_through(before: Vec<FollowerStep>, after: Vec<FollowerStep>) {
    let index = index();
    before.iter().for_each(|step| apply(&index, step));
    let query = [
        ("snapshot", "true"),
        ("format", "rfc1527"),
        ("salts", "plain"),
    ];
    let mut events = Box::pin(subscribe_to(&index, &query));
    let mut reader = EnvelopeReader::new();
    for step in after {
        match step {
            FollowerStep::Read => reader.read(&read_some(&mut events).await),
            step => apply(&index, &step),
        }
    }
    let (rest, ended) = all_of(&mut events).await;
    assert!(!ended, "{rest}");
    reader.read(&rest);
    assert_eq!(reader.index.digest(), index.digest());
}

/// A state of several pieces, of which the first is read.
async fn partly_read(
    index: &Arc<KvIndex>,
) -> (Pin<Box<impl Stream<Item = String> + use<>>>, EnvelopeReader) {
    index.apply(target(0), &stored(0, 0..30_000, Tier::Device));
    let query = [
        ("snapshot", "true"),
        ("format", "rfc1527"),
        ("salts", "plain"),
    ];
    let mut events = Box::pin(subscribe_to(index, &query));
    let mut reader = EnvelopeReader::new();
    reader.read(&events.next().await.unwrap());
    assert!(
        reader.index.blocks_per_tier(target(0))[0] < 20_000,
        "most is to come"
    );
    (events, reader)
}

#[tokio::test(start_paused = true)]
async fn blocks_stored_during_the_initial_state_are_sent_once() {
    let index = index();
    let (mut events, mut reader) = partly_read(&index).await;
    index.apply(target(1), &stored(1, 0..500, Tier::Device));
    reader.read(&all_of(&mut events).await.0);
    assert_eq!(reader.index.digest(), index.digest());
    index.apply(target(1), &removed(1, 0..500, Tier::Device));
    reader.read(&all_of(&mut events).await.0);
    assert_eq!(reader.index.digest(), index.digest());
}

#[tokio::test(start_paused = true)]
async fn blocks_removed_during_the_initial_state_are_absent_at_the_follower() {
    let index = index();
    let (mut events, mut reader) = partly_read(&index).await;
    index.apply(target(0), &removed(0, 0..100, Tier::Device));
    index.apply(target(0), &removed(0, 29_000..30_000, Tier::Device));
    reader.read(&all_of(&mut events).await.0);
    assert_eq!(reader.index.digest(), index.digest());
    assert_eq!(index.blocks_per_tier(target(0))[0], 28_900);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    #[contract("MC13")]
    fn a_following_index_has_the_same_content(before in steps(0.7), after in steps(1.0)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(follow_through(before, after));
    }
}
