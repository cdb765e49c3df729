//! Snapshots with correct checksums and wrong content.

use proptest::{collection::vec, prelude::*};

use super::{
    page::{PageReader, PageWriter},
    *,
};

type SpoilFn = fn(&mut SampleContent);

/// The expected error text of each contradiction, and the function that causes it.
const CONTRADICTIONS: [(&str, SpoilFn); 28] = [
    ("namespace 1 a second time", |it| it.spaces[1].number = 1),
    ("namespace 0 equals an earlier one", |it| {
        it.spaces[1].namespace = it.spaces[0].namespace.clone()
    }),
    ("slot 0 a second time", |it| it.targets[1].slot = 0),
    ("slot 3 is target 10/1 again", |it| {
        it.targets[1].target = it.targets[0].target
    }),
    (
        "run 5 in namespace 9, expected one that came before",
        |it| it.runs[0].space = 9,
    ),
    ("run 5 a second time", |it| it.runs[1].id = 5),
    (
        "run 2 continues run 6, expected one that came before",
        |it| it.runs[1].parent.as_mut().unwrap().run = 6,
    ),
    (
        "run 2 continues run 2, expected one that came before",
        |it| it.runs[1].parent.as_mut().unwrap().run = 2,
    ),
    (
        "run 2 continues run 5, expected one that came before",
        |it| it.runs.reverse(),
    ),
    ("run 2 in namespace 0 continues run 5, expected 1", |it| {
        it.runs[1].space = 0
    }),
    ("run 2 behind 5 blocks of run 5, expected 1 to 4", |it| {
        it.runs[1].parent.as_mut().unwrap().attach = 5
    }),
    ("run 2 behind 0 blocks of run 5, expected 1 to 4", |it| {
        it.runs[1].parent.as_mut().unwrap().attach = 0
    }),
    ("run 2 at depth 4, expected 3", |it| it.runs[1].depth = 4),
    ("run 5 at depth 1, expected 0", |it| it.runs[0].depth = 1),
    ("a holder in slot 4, expected one that came before", |it| {
        it.runs[0].holders[0].slot = 4
    }),
    ("held blocks 2..5 of run 5, expected some of 0..4", |it| {
        it.runs[0].holders[1].end = 5
    }),
    ("held blocks 2..2 of run 5, expected some of 0..4", |it| {
        it.runs[0].holders[1].end = 2
    }),
    ("held blocks 4294967295..4 of run 5", |it| {
        it.runs[0].holders[1].start = u32::MAX
    }),
    ("block 1 of run 5 held twice by slot 0", |it| {
        it.runs[0].holders[0].end = 2;
        it.runs[0].holders[1].start = 1;
    }),
    ("names in family 8, expected one with a member", |it| {
        it.runs[0].names[0].group = 8
    }),
    ("named blocks 1..5 of run 5, expected some of 0..4", |it| {
        it.runs[0].names[0].at = 1
    }),
    ("named blocks 4294967295..4294967299 of run 5", |it| {
        it.runs[0].names[0].at = u32::MAX
    }),
    (
        "counted blocks 4..5 of run 5, expected some of 0..4",
        |it| it.runs[0].copies[1].at = 4,
    ),
    ("block 3 counted as held once by slot 0", |it| {
        it.runs[0].copies[1].lapses_after = None
    }),
    ("block 0 of run 5 counted twice for slot 0", |it| {
        it.runs[0].copies[1].at = 0
    }),
    (
        "copies of block 1 of run 5 in slot 0, expected a block on its device",
        |it| it.runs[0].copies[0].at = 1,
    ),
    (
        "copies of block 0 of run 5 in slot 3, expected a block on its device",
        |it| it.runs[0].copies[0].slot = 3,
    ),
    (
        "copies of block 0 of run 5 in slot 9, expected a block on its device",
        |it| it.runs[0].copies[0].slot = 9,
    ),
];

#[test]
fn contradicting_records_are_refused() {
    for (words, spoil) in CONTRADICTIONS {
        let mut sample = small();
        spoil(&mut sample);
        let message = loaded(&written(&sample, HashScheme::default()))
            .unwrap_err()
            .to_string();
        assert!(message.contains(words), "{words}: {message}");
        assert!(
            message.starts_with("snapshot is damaged at byte "),
            "{message}"
        );
        assert!(message.ends_with("; the index starts empty"), "{message}");
    }
}

/// Returns a snapshot of these records, each with correct checksums.
fn forged(records: &[&[u8]]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut pages = PageWriter::new(&mut file).unwrap();
    for record in records {
        let encode = |page: &mut Vec<u8>| {
            page.extend_from_slice(record);
            Ok(())
        };
        pages.record(encode).unwrap();
    }
    pages.finish().unwrap();
    file
}

const HEAD: &[u8] = &[kind::HEAD, 1, 0x39, 5, 0, 0, 0, 0, 0, 0];
const MANY: [u8; 4] = u32::MAX.to_le_bytes();
const ZERO: [u8; 4] = [0; 4];
const ONE: [u8; 4] = 1_u32.to_le_bytes();

fn refusal(records: &[&[u8]]) -> String {
    loaded(&forged(records)).unwrap_err().to_string()
}

#[test]
fn lengths_beyond_their_page_are_refused_before_anything_is_allocated() {
    // Number 0, one token a block, exact, a model of 4 GiB.
    let space = [&[kind::SPACE][..], &ZERO, &ONE, &[0], &MANY].concat();
    let message = refusal(&[HEAD, &space, b"m"]);
    assert!(
        message.contains("a field of 4294967295 bytes, expected at most the 1 left of its page"),
        "{message}"
    );
    // Slot, worker, rank, no model, no size of its own, four billion block sizes.
    let target = [
        &[kind::TARGET][..],
        &ZERO,
        &ZERO,
        &ZERO,
        &[0],
        &ZERO,
        &MANY,
        &ONE,
    ]
    .concat();
    let message = refusal(&[HEAD, &target]);
    assert!(
        message.contains("a field of 4 bytes, expected at most the 0 left of its page"),
        "{message}"
    );
    // A complete namespace, and a run in it that starts a chain.
    let space = [&[kind::SPACE][..], &ZERO, &ONE, &[0], &ONE, b"m", &[0, 0]].concat();
    let run = |count: u32| {
        [
            &[kind::RUN][..],
            &ZERO,
            &ZERO,
            &[0],
            &ZERO,
            &count.to_le_bytes(),
        ]
        .concat()
    };
    let message = refusal(&[HEAD, &space, &run(u32::MAX)]);
    assert!(
        message.contains("run 0 of 4294967295 blocks, expected 1 to 8192"),
        "{message}"
    );
    let message = refusal(&[HEAD, &space, &run(8193)]);
    assert!(
        message.contains("run 0 of 8193 blocks, expected 1 to 8192"),
        "{message}"
    );
    let message = refusal(&[HEAD, &space, &run(0)]);
    assert!(
        message.contains("run 0 of 0 blocks, expected 1 to 8192"),
        "{message}"
    );
    let message = refusal(&[HEAD, &space, &run(8192)]);
    assert!(
        message.contains("a field of 65536 bytes, expected at most the 0 left of its page"),
        "{message}"
    );
    let holders = [&[kind::HOLDERS][..], &ZERO, &ONE, &[0], &MANY].concat();
    let message = refusal(&[HEAD, &space, &run(1), &[7; 8], &holders]);
    assert!(
        message.contains("a field of 4 bytes, expected at most the 0 left of its page"),
        "{message}"
    );
}

#[test]
fn a_page_of_gigabytes_allocates_only_the_received_bytes() {
    let mut file = forged(&[HEAD]);
    let length = u32::MAX.to_le_bytes();
    let check = xxhash_rust::xxh3::xxh3_64_with_seed(&length, 12).to_le_bytes();
    file[12..16].copy_from_slice(&length);
    file[16..20].copy_from_slice(&check[..4]);
    let mut from = &file[..];
    let mut pages = PageReader::open(&mut from, u64::MAX).unwrap();
    let error = pages.next().unwrap_err();
    assert!(
        matches!(error, SnapshotError::Truncated { at } if at == file.len() as u64),
        "{error}"
    );
    assert!(pages.room() < 1024, "{} bytes allocated", pages.room());
    assert!(matches!(
        loaded(&file),
        Err(SnapshotError::TooLarge { limit: ROOM })
    ));
}

#[test]
fn impossible_records_are_refused() {
    let end = [&[kind::END][..], &[0; 56]].concat();
    let wrong_counts = [&[kind::END][..], &[1; 56]].concat();
    let namespace = |identity: u8, tokens: [u8; 4], model: &[u8]| {
        [
            &[kind::SPACE][..],
            &ZERO,
            &tokens,
            &[identity],
            &ONE,
            model,
            &[0, 0],
        ]
        .concat()
    };
    let cases: [(&str, &[&[u8]]); 11] = [
        ("a page of 0 bytes, expected at least 1", &[]),
        ("a first record of kind 8, expected 1", &[&end]),
        (
            "hash scheme 3 with seed 0, expected 1, or 2 with seed 0",
            &[&[kind::HEAD, 3, 0, 0, 0, 0, 0, 0, 0, 0]],
        ),
        (
            "hash scheme 2 with seed 1",
            &[&[kind::HEAD, 2, 1, 0, 0, 0, 0, 0, 0, 0]],
        ),
        ("a record of kind 1, expected 2 to 8", &[HEAD, HEAD]),
        ("a record of kind 9, expected 2 to 8", &[HEAD, &[9]]),
        ("counts RecordCounts", &[HEAD, &wrong_counts]),
        (
            "records follow the last one, expected none",
            &[HEAD, &end, &end],
        ),
        (
            "block size 0 is out of range: expected 1 to 65536 tokens",
            &[HEAD, &namespace(0, ZERO, b"m")],
        ),
        (
            "namespace 0 of identity 2, expected 0 or 1",
            &[HEAD, &namespace(2, ONE, b"m")],
        ),
        ("a text is not UTF-8", &[HEAD, &namespace(0, ONE, &[0xff])]),
    ];
    for (words, records) in cases {
        let file = if records.is_empty() {
            empty_page()
        } else {
            forged(records)
        };
        let message = loaded(&file).unwrap_err().to_string();
        assert!(message.contains(words), "{words}: {message}");
    }
    assert!(
        loaded(&forged(&[HEAD, &end])).is_ok(),
        "the parts of these cases are valid by themselves"
    );
    let blocks_before_runs = [&[kind::HOLDERS][..], &ZERO, &ONE, &[0], &ONE, &ZERO].concat();
    let target = [
        &[kind::TARGET][..],
        &ZERO,
        &ZERO,
        &ZERO,
        &[0],
        &ZERO,
        &ZERO,
        &[0, 0],
    ]
    .concat();
    let message = refusal(&[HEAD, &target, &blocks_before_runs]);
    assert!(
        message.contains("held blocks in front of the first run"),
        "{message}"
    );
}

/// Returns a snapshot whose first page is empty.
fn empty_page() -> Vec<u8> {
    let mut file = forged(&[]);
    file.truncate(12);
    let check = xxhash_rust::xxh3::xxh3_64_with_seed(&ZERO, 12).to_le_bytes();
    file.extend([&ZERO[..], &check[..4], &[0; 8]].concat());
    file
}

/// Returns whether all guarantees for a consumer hold.
fn consistent(content: &SnapshotContent) -> bool {
    let slots: Vec<u32> = content.targets().iter().map(|target| target.slot).collect();
    let mut before: Vec<RunRecord<'_>> = Vec::new();
    content.runs().all(|run| {
        let length = run.hashes.len();
        let whole = |start: u32, end: u64| u64::from(start) < end && end <= length as u64;
        let resident = run
            .holders
            .iter()
            .all(|it| slots.contains(&it.slot) && whole(it.start, u64::from(it.end)));
        let named = run
            .named()
            .all(|(it, names)| whole(it.at, u64::from(it.at) + names.len() as u64));
        let counted = run.copies.iter().all(|copy| {
            run.holders.iter().any(|held| {
                (held.slot, held.tier) == (copy.slot, Tier::Device)
                    && (held.start..held.end).contains(&copy.at)
            })
        });
        let depth = run.parent.map_or(Some(0), |parent| {
            let found = before.iter().find(|run| {
                run.id == parent.run && (1..=run.hashes.len()).contains(&(parent.attach as usize))
            })?;
            Some(found.depth + parent.attach)
        });
        let known = content
            .spaces()
            .iter()
            .any(|space| space.number == run.space);
        before.push(run);
        resident && named && counted && known && depth == Some(run.depth)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_records_are_refused_or_still_consistent(changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let file = written(&small(), HashScheme::default());
        // The position lies between the head of the only page and the last checksum.
        let mut records = file[28..file.len() - 8].to_vec();
        for (field, value) in changes {
            *field.get_mut(&mut records) = value;
        }
        match loaded(&forged(&[&records])) {
            Ok(content) => prop_assert!(consistent(&content), "{content:?}"),
            Err(SnapshotError::Damaged { .. } | SnapshotError::Scheme { .. } | SnapshotError::Truncated { .. }) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
