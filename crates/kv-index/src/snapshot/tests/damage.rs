//! A snapshot with any damaged byte is refused as a whole.

use std::io::{self, Read};

use super::*;

#[test]
fn every_flipped_bit_is_detected() {
    let file = written(&small(), HashScheme::default());
    for bit in 0..file.len() * 8 {
        let mut flipped = file.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let error = loaded(&flipped).unwrap_err();
        let named = match bit / 8 {
            0..8 => matches!(error, SnapshotError::NotASnapshot { .. }),
            8..12 => matches!(error, SnapshotError::Version { .. }),
            _ => matches!(error, SnapshotError::Damaged { .. }),
        };
        assert!(named, "bit {bit}: {error}");
    }
}

#[test]
fn every_truncation_is_detected_and_named() {
    let file = written(&small(), HashScheme::default());
    for length in 0..file.len() {
        let error = loaded(&file[..length]).unwrap_err();
        assert!(
            matches!(error, SnapshotError::Truncated { at } if at <= length as u64),
            "{length} bytes: {error}"
        );
    }
}

#[test]
fn bytes_behind_the_end_are_detected() {
    let mut file = written(&small(), HashScheme::default());
    file.push(0);
    let message = loaded(&file).unwrap_err().to_string();
    assert!(
        message.contains("bytes follow the last checksum, expected none"),
        "{message}"
    );
}

/// Offsets of all pages, and of the bytes behind them.
fn pages(file: &[u8]) -> Vec<usize> {
    let mut starts = vec![12];
    while let Some(length) = file[*starts.last().unwrap()..].get(..16) {
        let length = u32::from_le_bytes(length[..4].try_into().unwrap());
        starts.push(starts.last().unwrap() + 16 + length as usize);
    }
    starts
}

/// A snapshot of several pages of the same length, except for the last one.
fn several_pages() -> Vec<u8> {
    let mut sample = small();
    let run = sample.runs[0].clone();
    sample.runs = (0..6)
        .map(|id| OwnRun {
            id,
            hashes: vec![SequenceHash(u64::from(id)); MAX_RUN_BLOCKS],
            ..run.clone()
        })
        .collect();
    for run in &mut sample.runs {
        run.holders.clear();
        run.names.clear();
        run.engine.clear();
        run.copies.clear();
    }
    written(&sample, HashScheme::default())
}

#[test]
fn a_swapped_page_is_detected() {
    let file = several_pages();
    let starts = pages(&file);
    assert!(starts.len() > 5);
    let (one, two, behind) = (starts[2], starts[3], starts[4]);
    assert_eq!(two - one, behind - two, "pages of equal length");
    let swapped = [
        &file[..one],
        &file[two..behind],
        &file[one..two],
        &file[behind..],
    ]
    .concat();
    let error = loaded(&swapped).unwrap_err();
    assert!(
        matches!(error, SnapshotError::Damaged { at, .. } if at == one as u64),
        "{error}"
    );
}

#[test]
fn a_missing_page_is_detected() {
    let file = several_pages();
    let starts = pages(&file);
    let without = [&file[..starts[2]], &file[starts[3]..]].concat();
    assert!(matches!(
        loaded(&without),
        Err(SnapshotError::Damaged { .. })
    ));
}

#[test]
fn an_unfinished_snapshot_is_refused() {
    let mut file = Vec::new();
    let mut writer = SnapshotWriter::new(&mut file, HashScheme::default()).unwrap();
    for _ in 0..1000 {
        writer
            .space(&NamespaceRecord {
                number: 0,
                namespace: small().spaces[1].namespace.clone(),
            })
            .unwrap();
    }
    drop(writer);
    assert!(matches!(
        loaded(&file),
        Err(SnapshotError::Truncated { .. })
    ));
}

#[test]
fn a_read_error_is_not_reported_as_damage() {
    struct FailingReader;

    impl Read for FailingReader {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("disk on fire"))
        }
    }

    let file = written(&small(), HashScheme::default());
    for good in [0, 9, 12, 40] {
        let error = read(
            &mut file[..good].chain(FailingReader),
            HashScheme::default(),
            ROOM,
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "snapshot cannot be read: disk on fire; the index starts empty"
        );
    }
}

#[test]
fn a_write_error_is_reported() {
    let mut full = [0; 100];
    let mut to = &mut full[..];
    let mut writer = SnapshotWriter::new(&mut to, HashScheme::default()).unwrap();
    writer.run(&small().runs[0].record()).unwrap();
    assert_eq!(
        writer.finish().unwrap_err().kind(),
        io::ErrorKind::WriteZero
    );
}
