use std::collections::HashSet;

use kv_blocks::{DpRank, Target, Tier, WorkerId};

use super::{
    MAX_BLOCKS, MediumStream, MediumStreams, Publisher, StreamBlock, StreamRole, tier::MAX_STREAMS,
};

const TARGET: Target = Target {
    worker: WorkerId(1),
    rank: DpRank(0),
};

fn stream<'a>(backend: &'a str, medium: &'a str, unlisted: bool) -> MediumStream<'a> {
    MediumStream {
        backend,
        medium,
        unlisted,
        ..MediumStream::of_tier(Publisher::Store, Tier::Disk)
    }
}

fn store(streams: &MediumStreams, by: &MediumStream<'_>, blocks: &[StreamBlock]) -> StreamRole {
    let role = streams.enter(TARGET, by, || false);
    streams.stored(TARGET, by, blocks, &HashSet::new());
    role
}

fn blocks_in_sets(streams: &MediumStreams) -> usize {
    streams.table.read().blocks
}

#[test]
fn the_only_stream_of_a_tier_takes_no_memory_for_its_blocks() {
    let streams = MediumStreams::default();
    let disk = stream("w0", "ssd", false);
    for number in 0..100 {
        assert_eq!(store(&streams, &disk, &[(1, number)]), StreamRole::Alone);
    }
    assert_eq!(blocks_in_sets(&streams), 0);
    let other = stream("w1", "ssd", false);
    assert_eq!(store(&streams, &other, &[(1, 2)]), StreamRole::Further);
    assert_eq!(blocks_in_sets(&streams), 1);
    // When the others have left, it is as before.
    streams.removed(TARGET, &other, &[(1, 2)]);
    assert_eq!(streams.role(TARGET, &disk), StreamRole::Alone);
    assert_eq!(blocks_in_sets(&streams), 0);
}

#[test]
fn after_a_load_or_beyond_the_bounds_the_blocks_of_a_further_stream_are_unknown() {
    let streams = MediumStreams::default();
    let tape = stream("", "tape", true);
    let blocks_of = |streams: &MediumStreams, stream| streams.blocks_of(TARGET, None, stream);
    assert_eq!(blocks_of(&streams, &tape), Some(Vec::new()));
    store(&streams, &tape, &[(1, 2)]);
    let in_capitals = stream("", "TAPE", true);
    assert_eq!(blocks_of(&streams, &in_capitals), Some(vec![(1, 2)]));
    for number in 0..=MAX_STREAMS {
        store(
            &streams,
            &stream("", &format!("medium {number}"), true),
            &[(1, 2)],
        );
    }
    let zero = stream("", "medium 0", true);
    assert_eq!(blocks_of(&streams, &zero), None);
    streams.clear_target(TARGET);
    assert_eq!(blocks_of(&streams, &zero), Some(Vec::new()));

    let loaded = MediumStreams::default();
    loaded.note_load(&[(TARGET, Tier::Disk)]);
    assert_eq!(blocks_of(&loaded, &tape), None);
    assert!(loaded.removed(TARGET, &tape, &[(1, 2)]).staying.is_empty());
    loaded.enter(TARGET, &tape, || true);
    assert_eq!(blocks_of(&loaded, &tape), None);
    // Only until the tier is emptied, and only there.
    loaded.end_clear((TARGET, Tier::Disk), None, false);
    assert_eq!(blocks_of(&loaded, &tape), Some(Vec::new()));
    let in_host = MediumStream {
        tier: Tier::Host,
        ..tape
    };
    assert_eq!(blocks_of(&loaded, &in_host), Some(Vec::new()));
}

#[test]
fn beyond_the_bound_a_block_leaves_with_the_first_removal_and_no_set_grows() {
    let streams = MediumStreams::default();
    let further = stream("", "tape", true);
    let all: Vec<_> = (0..MAX_BLOCKS as u64 + 1).map(|hash| (1, hash)).collect();
    store(&streams, &further, &all);
    assert_eq!(blocks_in_sets(&streams), MAX_BLOCKS);
    let beyond = all[MAX_BLOCKS];
    for by in [&further, &stream("", "other", true)] {
        let departure = streams.removed(TARGET, by, &[beyond]);
        assert_eq!(departure.staying, HashSet::new());
    }
    // The sets of all targets have one bound.
    let elsewhere = Target {
        worker: WorkerId(2),
        ..TARGET
    };
    streams.enter(elsewhere, &further, || false);
    streams.stored(elsewhere, &further, &[(1, 1)], &HashSet::new());
    assert_eq!(blocks_in_sets(&streams), MAX_BLOCKS);
    streams.remove_worker(TARGET.worker);
    assert_eq!(blocks_in_sets(&streams), 0);
}

#[test]
fn a_set_gives_the_room_of_removed_blocks_back() {
    let streams = MediumStreams::default();
    let (disk, tape) = (stream("", "ssd", false), stream("", "tape", true));
    let all: Vec<_> = (0..10_000).map(|hash| (1, hash)).collect();
    let held = all.iter().copied().collect();
    store(&streams, &disk, &all);
    streams.enter(TARGET, &tape, || true);
    streams.stored(TARGET, &tape, &all, &held);
    let room = || {
        let table = streams.table.read();
        let [tier] = &*table.tiers.values().collect::<Vec<_>>() else {
            panic!("one tier");
        };
        let sets = tier.further.iter().map(|further| &further.blocks);
        let sets = sets.chain([&tier.with_first]);
        sets.map(HashSet::capacity).collect::<Vec<_>>()
    };
    assert!(room().iter().all(|room| *room >= 10_000));
    streams.removed(TARGET, &tape, &all[1..]);
    assert_eq!(room().len(), 2);
    assert!(room().iter().all(|room| *room < 10), "{:?}", room());
    // The other set shrinks by itself, when the first stream leaves.
    streams.stored(TARGET, &tape, &all, &held);
    streams.clear_marks((TARGET, Tier::Disk), None);
    assert_eq!(room()[1], 0);
}
