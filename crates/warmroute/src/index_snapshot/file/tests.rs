use std::{fs, os::unix::fs::PermissionsExt, sync::Arc};

use contract_id::contract;
use fleet::NumberedWorker;
use kv_blocks::{
    BlockSize, DpRank, EngineHash, HashScheme, IndexUpdate, StoredBlocks, StreamPosition, Target,
    Tier, WorkerId,
};
use kv_index::{IndexSettings, KvIndex};
use routing::LearnedState;

use super::{RejectedSnapshot, SnapshotHead, beside, load, save};

const TARGET: Target = Target {
    worker: WorkerId(3),
    rank: DpRank(0),
};

fn index() -> KvIndex {
    KvIndex::new(IndexSettings::default())
}

fn filled() -> KvIndex {
    let index = index();
    index.register(TARGET, Arc::from("m"));
    let stored = StoredBlocks {
        hashes: vec![EngineHash(1), EngineHash(2)],
        parent: None,
        tokens: vec![1, 2],
        block_size: BlockSize::new(1).unwrap(),
        lora: None,
        media: Vec::new(),
        salt: None,
        tier: Tier::Device,
    };
    index.apply(TARGET, &IndexUpdate::Stored(stored));
    index.note_position(TARGET, Some(StreamPosition::of(5, b"batch")));
    index
}

fn head() -> SnapshotHead {
    let worker = NumberedWorker {
        id: WorkerId(3),
        name: "a".into(),
        url: "http://127.0.0.1:8000".to_owned(),
    };
    SnapshotHead::new(1_700_000_000_000, &[worker], LearnedState::default())
}

#[test]
fn a_saved_file_loads_with_its_workers_and_only_its_owner_may_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    // Left by a process that was killed while it wrote.
    fs::write(beside(&path), vec![7; 100_000]).unwrap();
    fs::set_permissions(beside(&path), fs::Permissions::from_mode(0o644)).unwrap();
    let saved = save(&path, &head(), &filled()).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(
        (metadata.len(), metadata.permissions().mode() & 0o777),
        (saved.bytes, 0o600)
    );
    assert!(!beside(&path).exists());
    let index = index();
    let (head, summary) = load(&path, &index).unwrap().unwrap();
    assert_eq!((summary.targets, summary.blocks), (1, 2));
    assert_eq!(head.saved_at_ms, 1_700_000_000_000);
    assert_eq!(head.into_parts(), super::tests::head().into_parts());
    assert_eq!(
        index.resume_position(TARGET),
        Some(StreamPosition::of(5, b"batch"))
    );
}

#[test]
fn without_a_file_there_is_nothing_to_load() {
    let folder = tempfile::tempdir().unwrap();
    let found = load(&folder.path().join("none"), &index()).unwrap();
    assert!(found.is_none());
}

#[test]
fn a_second_save_leaves_the_old_file_until_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    save(&path, &head(), &filled()).unwrap();
    let before = fs::read(&path).unwrap();
    let other = fs::File::create(beside(&path)).unwrap();
    other.lock().unwrap();
    let error = save(&path, &head(), &filled()).unwrap_err();
    assert!(
        error.to_string().contains("another process is writing"),
        "{error}"
    );
    assert_eq!(fs::read(&path).unwrap(), before);
    drop(other);
    save(&path, &head(), &index()).unwrap();
    assert_ne!(fs::read(&path).unwrap(), before);
}

/// Every prefix and every changed byte of a file is refused with one of the known reasons, and
/// leaves the index empty.
#[test]
#[contract("F92")]
fn a_truncated_or_changed_file_is_refused_and_the_index_stays_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    save(&path, &head(), &filled()).unwrap();
    let whole = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let index = index();
        let error = load(&path, &index).unwrap_err();
        assert_eq!(index.stats().distinct, 0);
        error.reason()
    };
    for end in 0..whole.len() {
        assert_eq!(refused(&whole[..end]), "truncated", "{end} bytes");
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x11;
        let reason = refused(&changed);
        assert!(RejectedSnapshot::REASONS.contains(&reason), "byte {at}");
        match at {
            0..8 => assert_eq!(reason, "not_a_snapshot"),
            8..12 => assert_eq!(reason, "version"),
            _ => assert!(reason != "unreadable", "byte {at}: {reason}"),
        }
    }
}

#[test]
#[contract("F92")]
fn a_file_of_another_hash_scheme_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    save(&path, &head(), &filled()).unwrap();
    let other = KvIndex::new(IndexSettings {
        scheme: HashScheme::Fnv1a,
        ..IndexSettings::default()
    });
    assert_eq!(load(&path, &other).unwrap_err().reason(), "scheme");
}
