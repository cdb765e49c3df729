//! Snapshots of other releases and other hash schemes, and other files.

use super::{page::VERSION, *};

#[test]
fn a_snapshot_of_another_format_version_is_refused() {
    let file = written(&small(), HashScheme::default());
    for found in [0, VERSION + 1, u32::MAX] {
        let mut other = file.clone();
        other[8..12].copy_from_slice(&found.to_le_bytes());
        let error = loaded(&other).unwrap_err();
        assert!(
            matches!(error, SnapshotError::Version { found: f, expected: VERSION } if f == found),
            "{error}"
        );
    }
}

#[test]
fn hashes_of_another_scheme_are_refused_and_both_schemes_named() {
    let schemes = [
        HashScheme::Xxh3 { seed: 1337 },
        HashScheme::Xxh3 { seed: 0 },
        HashScheme::Fnv1a,
    ];
    for written_with in schemes {
        let file = written(&small(), written_with);
        for ours in schemes {
            let outcome = read(&mut &file[..], ours, ROOM);
            assert_eq!(
                outcome.is_ok(),
                ours == written_with,
                "{written_with:?} read by {ours:?}"
            );
        }
    }
    let file = written(&small(), HashScheme::Fnv1a);
    assert_eq!(
        loaded(&file).unwrap_err().to_string(),
        "snapshot has block hashes of fnv1a, expected xxh3 with seed 1337: load it with the block_hash and \
         block_hash_seed it was saved with; the index starts empty"
    );
}

#[test]
fn a_file_of_another_kind_is_refused() {
    let error = loaded(b"kv_events: {enabled: true}\n").unwrap_err();
    assert!(
        matches!(error, SnapshotError::NotASnapshot { found } if &found == b"kv_event"),
        "{error}"
    );
    assert!(matches!(
        loaded(b""),
        Err(SnapshotError::Truncated { at: 0 })
    ));
}

#[test]
fn a_snapshot_beyond_the_limit_is_refused() {
    let file = written(&small(), HashScheme::default());
    let exact = file.len() as u64 - 8;
    assert!(
        read(&mut &file[..], HashScheme::default(), exact).is_ok(),
        "the last checksum takes no memory"
    );
    let error = read(&mut &file[..], HashScheme::default(), exact - 1).unwrap_err();
    assert!(
        matches!(error, SnapshotError::TooLarge { limit } if limit == exact - 1),
        "{error}"
    );
}

/// The layout is a promise to later releases: if this fails, the format has changed, and its
/// version must too.
#[test]
fn the_layout_of_version_3_is_unchanged() {
    let file = written(&small(), HashScheme::default());
    let hex: String = file.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        (VERSION, hex),
        (3, include_str!("version_3.hex").replace('\n', ""))
    );
}
