//! The order of events within streams.

use std::time::Duration;

use contract_id::contract;
use kv_blocks::Moment;
use kv_events::standard::{
    EventRejection, OrderingCounts, StandardChange, StandardEvent, StandardStreams,
    StandardStreamsSettings, StreamKey, StreamOutput,
};
use proptest::{collection::vec, prelude::*};

fn stream(name: &str) -> StreamKey {
    StreamKey {
        backend_id: Some(name.into()),
        ..StreamKey::default()
    }
}

/// Returns an event whose content depends on its stream, its number and its publisher's life.
fn event(name: &str, event_id: u64, epoch: u64) -> StandardEvent {
    StandardEvent {
        event_id,
        timestamp_ms: None,
        stream: stream(name),
        change: StandardChange::Removed {
            seq_hashes: vec![event_id, epoch],
            base_block_idx: None,
        },
        object_key: None,
    }
}

/// Formats an output: events by number, `H` for a hole, `R` for a restart.
fn short(out: &[StreamOutput]) -> String {
    let label = |ordered: &StreamOutput| match ordered {
        StreamOutput::Event(event) => event.event_id.to_string(),
        StreamOutput::Hole(_) => "H".into(),
        StreamOutput::Restarted(_) => "R".into(),
    };
    out.iter().map(label).collect::<Vec<_>>().join(" ")
}

fn at(ms: u64) -> Moment {
    Moment::at(Duration::from_millis(ms))
}

struct StreamsFixture(StandardStreams);

impl StreamsFixture {
    fn new() -> Self {
        Self::with(StandardStreamsSettings::default())
    }

    fn with(settings: StandardStreamsSettings) -> Self {
        Self(StandardStreams::new(settings))
    }

    fn a(&mut self, event_id: u64) -> String {
        short(&self.0.take(at(0), event("a", event_id, 1)))
    }

    fn counts(&self) -> OrderingCounts {
        self.0.counts()
    }
}

#[test]
#[contract("MC8")]
fn an_early_event_waits_for_the_events_before_it() {
    let mut world = StreamsFixture::new();
    assert_eq!(world.a(5), "5", "a stream may begin at any number");
    assert_eq!(world.a(8), "");
    assert_eq!(world.a(7), "");
    assert_eq!(world.counts().waiting, 2);
    assert_eq!(world.a(6), "6 7 8");
    assert_eq!(world.a(9), "9");
    let expected = OrderingCounts {
        streams: 1,
        delivered: 5,
        early: 2,
        ..OrderingCounts::default()
    };
    assert_eq!(world.counts(), expected);
}

#[test]
#[contract("MC8")]
fn a_duplicate_event_is_dropped_and_counted() {
    let mut world = StreamsFixture::new();
    for id in [3, 4, 6] {
        world.a(id);
    }
    assert_eq!(
        (world.a(4), world.a(6), world.a(3)),
        (String::new(), String::new(), String::new())
    );
    assert_eq!(world.counts().duplicates, 3);
    assert_eq!(world.a(5), "5 6");
    assert_eq!(world.a(6), "");
    assert_eq!(
        (world.counts().duplicates, world.counts().delivered),
        (4, 4)
    );
}

#[test]
#[contract("MC8")]
fn a_gap_that_is_not_closed_in_time_is_a_hole() {
    let mut world = StreamsFixture::new();
    world.a(1);
    assert_eq!(short(&world.0.take(at(100), event("a", 4, 1))), "");
    assert_eq!(short(&world.0.take(at(1_000), event("a", 6, 1))), "");
    assert_eq!(short(&world.0.tick(at(2_099))), "");
    assert_eq!(short(&world.0.tick(at(2_100))), "H 4");
    // The next gap has its own time limit.
    assert_eq!(short(&world.0.tick(at(4_099))), "");
    assert_eq!(short(&world.0.tick(at(4_100))), "H 6");
    assert_eq!((world.counts().lost_events, world.counts().lost), (2, 3));
    // An event of the hole arrives too late and is dropped.
    assert_eq!(world.a(5), "");
    assert_eq!(world.counts().late, 1);
    assert_eq!(world.a(7), "7");
}

#[test]
fn an_arrival_advances_the_time_as_a_tick_does() {
    let mut world = StreamsFixture::new();
    world.a(1);
    world.a(3);
    assert_eq!(short(&world.0.take(at(2_000), event("a", 4, 1))), "H 3 4");
}

#[test]
#[contract("MC8")]
fn waiting_events_are_bounded() {
    let mut world = StreamsFixture::with(StandardStreamsSettings {
        max_waiting_events: 3,
        ..StandardStreamsSettings::default()
    });
    world.a(1);
    for id in [3, 4, 7] {
        assert_eq!(world.a(id), "");
    }
    assert_eq!(world.a(9), "H 3 4", "7 and 9 still wait");
    assert_eq!(world.counts().waiting, 2);

    let mut world = StreamsFixture::with(StandardStreamsSettings {
        max_waiting_bytes: 4_000,
        ..StandardStreamsSettings::default()
    });
    world.a(1);
    world.0.take(at(0), event("b", 1, 1));
    world.a(3);
    let mut large = event("b", 3, 1);
    large.change = StandardChange::Removed {
        seq_hashes: vec![7; 450],
        base_block_idx: None,
    };
    assert_eq!(
        short(&world.0.take(at(0), large)),
        "H 3",
        "the event over the limit is released"
    );
    assert_eq!(world.counts().waiting, 1);
    assert_eq!(world.a(2), "2 3");
}

#[test]
#[contract("MC8")]
fn each_of_the_eight_dimensions_identifies_a_stream() {
    let text = || Some("x".into());
    let keys = [
        StreamKey::default(),
        StreamKey {
            model: text(),
            ..StreamKey::default()
        },
        StreamKey {
            block_size: Some(16),
            ..StreamKey::default()
        },
        StreamKey {
            salt: text(),
            ..StreamKey::default()
        },
        StreamKey {
            lora: text(),
            ..StreamKey::default()
        },
        StreamKey {
            tenant: text(),
            ..StreamKey::default()
        },
        StreamKey {
            backend_id: text(),
            ..StreamKey::default()
        },
        StreamKey {
            medium: text(),
            ..StreamKey::default()
        },
        StreamKey {
            dp_rank: Some(0),
            ..StreamKey::default()
        },
    ];
    let mut world = StreamsFixture::new();
    for id in 7..9 {
        for key in &keys {
            let event = StandardEvent {
                stream: key.clone(),
                ..event("a", id, 1)
            };
            assert_eq!(short(&world.0.take(at(0), event)), id.to_string());
        }
    }
    assert_eq!((world.counts().streams, world.counts().delivered), (9, 18));
}

#[test]
fn a_restarted_stream_is_distinguished_from_a_repetition() {
    let mut world = StreamsFixture::new();
    let mut again = |id, epoch| short(&world.0.take(at(0), event("a", id, epoch)));
    for id in 0..10 {
        again(id, 1);
    }
    assert_eq!(again(0, 1), "", "the same event again");
    assert_eq!(again(0, 2), "R 0", "another event with the same number");
    assert_eq!(again(1, 2), "1");
    // The beginning of the stream is still known long afterwards.
    for id in 2..200 {
        again(id, 2);
    }
    assert_eq!((again(0, 2), again(1, 2)), (String::new(), String::new()));
    assert_eq!(again(0, 3), "R 0");
    for id in 1..200 {
        again(id, 3);
    }
    // If the beginning was missed, many low numbers in a row are a restart.
    for id in 50..81 {
        assert_eq!(again(id, 4), "");
    }
    assert_eq!(again(81, 4), "R 81");
    assert_eq!(again(82, 4), "82");
    let counts = world.counts();
    assert_eq!(
        (counts.restarts, counts.late, counts.duplicates),
        (3, 31, 3)
    );
}

#[test]
fn number_zero_restarts_a_stream_first_seen_in_the_middle() {
    let mut world = StreamsFixture::new();
    world.a(100);
    assert_eq!(
        world.a(99),
        "",
        "an event before the first seen one is late"
    );
    assert_eq!(world.a(1), "R 1");
    assert_eq!(world.a(2), "2");
    assert_eq!((world.counts().restarts, world.counts().late), (1, 1));
}

#[test]
fn the_longest_silent_stream_is_dropped_and_reported() {
    let mut world = StreamsFixture::with(StandardStreamsSettings {
        max_streams: 2,
        ..StandardStreamsSettings::default()
    });
    let mut take = |name, id| world.0.take(at(0), event(name, id, 1));
    take("a", 1);
    take("b", 1);
    take("b", 3);
    take("a", 2);
    let out = take("c", 1);
    assert_eq!(
        short(&out),
        "H 3 H 1",
        "the waiting events first, then the end of the stream"
    );
    assert_eq!(out[2], StreamOutput::Hole(stream("b")));
    assert_eq!(short(&take("a", 3)), "3");
    let counts = world.counts();
    assert_eq!(
        (counts.streams, counts.forgotten, counts.waiting),
        (2, 1, 0)
    );
}

#[test]
#[contract("MC13")]
fn a_refusal_is_counted_every_time_and_reported_once_per_stream() {
    let mut world = StreamsFixture::new();
    world.a(1);
    world.0.take(at(0), event("b", 1, 1));
    let mismatch = EventRejection::Mismatch {
        block: 0,
        found: 1,
        expected: 2,
    };
    assert!(world.0.refuse(&stream("a"), &EventRejection::NotStandard));
    assert!(!world.0.refuse(&stream("a"), &mismatch));
    assert!(world.0.refuse(&stream("b"), &mismatch));
    // A restart of the same publisher is not reported again.
    world.0.take(at(0), event("a", 1, 2));
    assert!(!world.0.refuse(&stream("a"), &EventRejection::NotStandard));
    assert!(
        !world
            .0
            .refuse(&stream("nobody"), &EventRejection::NotStandard)
    );
    assert_eq!((world.counts().refused, world.counts().mismatches), (5, 2));
}

#[test]
#[contract("MC9")]
fn the_depth_alone_places_a_store_behind_the_latest_one_that_ended_there() {
    let mut streams = StandardStreams::new(StandardStreamsSettings::default());
    let mut parent_of = |event_id, base, parent, hashes: &[u64]| {
        let change = StandardChange::Stored {
            seq_hashes: hashes.to_vec(),
            base_block_idx: base,
            parent_hash: parent,
            token_ids: None,
        };
        let out = streams.take(
            at(0),
            StandardEvent {
                change,
                ..event("a", event_id, 1)
            },
        );
        match &out[..] {
            [StreamOutput::Event(event)] => match event.change {
                StandardChange::Stored { parent_hash, .. } => parent_hash,
                _ => panic!("no store"),
            },
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(parent_of(1, Some(0), None, &[10, 11, 12]), None);
    assert_eq!(parent_of(2, Some(3), None, &[13]), Some(12));
    assert_eq!(parent_of(3, Some(0), None, &[20, 21, 22]), None);
    assert_eq!(parent_of(4, Some(3), None, &[23]), Some(22));
    // Depths follow from parents too.
    assert_eq!(parent_of(5, None, Some(13), &[14, 15]), Some(13));
    assert_eq!(parent_of(6, Some(6), None, &[16]), Some(15));
    assert_eq!(
        parent_of(7, Some(9), None, &[1]),
        None,
        "no store ended there"
    );
    assert_eq!(
        parent_of(8, Some(4), Some(77), &[2]),
        Some(77),
        "the given parent is used"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[contract("MC8")]
    fn shuffled_and_repeated_events_are_released_in_order_and_once(
        delays in vec((0..12_u64, any::<bool>()), 1..120), first in 0..1_000_u64,
    ) {
        // Each event arrives with a delay, some twice.
        let mut arrivals: Vec<(u64, u64)> = Vec::new();
        for (at, (delay, twice)) in (0_u64..).zip(&delays) {
            arrivals.push((at + if at == 0 { 0 } else { 1 + delay }, at));
            if *twice {
                arrivals.push((at + delay + 3, at));
            }
        }
        arrivals.sort_unstable();
        let mut streams = StandardStreams::new(StandardStreamsSettings::default());
        let mut out = Vec::new();
        for (_, number) in arrivals {
            out.extend(streams.take(at(0), event("a", first + number, 1)));
        }
        let expected: Vec<_> = (first..).take(delays.len()).map(|id| id.to_string()).collect();
        prop_assert_eq!(short(&out), expected.join(" "));
        prop_assert_eq!(streams.counts().waiting, 0);
        prop_assert_eq!(streams.counts().duplicates, delays.iter().filter(|(_, twice)| *twice).count() as u64);
    }

    #[test]
    #[contract("MC8")]
    fn no_event_is_released_early_and_every_event_is_accounted_for(
        arrivals in vec((0..3_u8, prop_oneof![0..40_u64, any::<u64>()], 0..2_u64, 0..900_u64), 1..200),
        max_streams in 1..4_usize, max_waiting_events in 1..6_usize, max_waiting_bytes in 0..3_000_usize,
    ) {
        let settings = StandardStreamsSettings { max_streams, max_waiting_events, max_waiting_bytes, max_wait: Duration::from_secs(1) };
        let mut streams = StandardStreams::new(settings);
        let mut last: std::collections::BTreeMap<StreamKey, u64> = std::collections::BTreeMap::new();
        let (mut now, mut broken) = (0, std::collections::BTreeSet::new());
        for (name, id, epoch, wait) in &arrivals {
            now += wait;
            let mut out = streams.tick(at(now));
            out.extend(streams.take(at(now), event(["a", "b", "c"][usize::from(*name)], *id, *epoch)));
            for ordered in out {
                match ordered {
                    StreamOutput::Event(event) => {
                        let before = last.insert(event.stream.clone(), event.event_id);
                        let follows = before.is_none_or(|before| event.event_id == before.saturating_add(1));
                        let excused = broken.contains(&event.stream);
                        prop_assert!(follows || excused, "{before:?} {}", event.event_id);
                        broken.remove(&event.stream);
                    }
                    StreamOutput::Hole(key) | StreamOutput::Restarted(key) => {
                        broken.insert(key);
                    }
                }
            }
            prop_assert!(streams.counts().streams <= max_streams as u64);
            prop_assert!(streams.counts().waiting <= (max_streams * max_waiting_events) as u64);
        }
        let counts = streams.counts();
        prop_assert_eq!(
            counts.delivered + counts.duplicates + counts.late + counts.waiting, arrivals.len() as u64
        );
    }
}
