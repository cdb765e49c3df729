//! Encodes token ids as bytes, and decodes them.
//!
//! Version (1 byte), number of ids (4), checksum (8), then the ids (4 each), all little-endian. The
//! checksum covers the name and the ids: it detects a value that was cut, changed or stored under
//! another name. It is not secret and does not stop an attacker, whose worst effect is a request at
//! the wrong worker.

use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

const VERSION: u8 = 1;
const HEAD: usize = 13;
/// Most ids: a query is no longer than this in bytes, and a token has at least one.
pub(crate) const MOST_IDS: usize = 256 << 10;
/// Bound on an id: vocabularies have some hundred thousand tokens.
const ID_BOUND: u32 = 1 << 24;
/// Longest value, bytes.
pub(crate) const MOST_BYTES: usize = length(MOST_IDS);

/// Returns the bytes of a value with `ids` ids.
pub(crate) const fn length(ids: usize) -> usize {
    HEAD + 4 * ids
}

/// Returns `None` for ids that are not shared.
pub(crate) fn encode(name: &str, ids: &[u32]) -> Option<Vec<u8>> {
    let count = u32::try_from(ids.len()).ok()?;
    if !may_be(ids) {
        return None;
    }
    let mut bytes = Vec::with_capacity(length(ids.len()));
    bytes.push(VERSION);
    bytes.extend(count.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    let check = check(name, bytes.get(HEAD..)?);
    bytes
        .get_mut(5..HEAD)?
        .copy_from_slice(&check.to_le_bytes());
    Some(bytes)
}

/// Returns `None` for a foreign value, or one of another name.
pub(crate) fn decode(name: &str, bytes: &[u8]) -> Option<Arc<[u32]>> {
    let (version, rest) = bytes.split_first()?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let (stored_check, packed) = rest.split_first_chunk::<8>()?;
    let (chunks, left) = packed.as_chunks::<4>();
    if *version != VERSION
        || !left.is_empty()
        || u32::try_from(chunks.len()).ok()? != u32::from_le_bytes(*count)
    {
        return None;
    }
    if u64::from_le_bytes(*stored_check) != check(name, packed) {
        return None;
    }
    let ids: Arc<[u32]> = chunks.iter().map(|id| u32::from_le_bytes(*id)).collect();
    may_be(&ids).then_some(ids)
}

/// Returns whether an engine may have sent these ids.
fn may_be(ids: &[u32]) -> bool {
    (1..=MOST_IDS).contains(&ids.len()) && ids.iter().all(|id| *id < ID_BOUND)
}

fn check(name: &str, packed: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(name.as_bytes());
    hash.update(packed);
    hash.digest()
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use proptest::prelude::*;

    use super::*;

    #[test]
    #[contract("V30")]
    fn a_value_is_thirteen_bytes_and_four_per_id() {
        let bytes = encode("n", &[1, 0x0002_0304, 3]).expect("three ids");
        assert_eq!(bytes[..5], [1, 3, 0, 0, 0]);
        assert_eq!(bytes[13..], [1, 0, 0, 0, 4, 3, 2, 0, 3, 0, 0, 0]);
    }

    #[test]
    #[contract("V30")]
    fn too_many_or_too_large_ids_are_neither_written_nor_read() {
        assert_eq!(encode("n", &[]), None);
        assert_eq!(encode("n", &[ID_BOUND]), None);
        assert_eq!(encode("n", &vec![7; MOST_IDS + 1]), None);
        let most = encode("n", &vec![7; MOST_IDS]).expect("as many as may be");
        assert_eq!(most.len(), MOST_BYTES);
        assert_eq!(decode("n", &most).map(|ids| ids.len()), Some(MOST_IDS));
        // Otherwise well-formed.
        let forged = |ids: &[u32]| {
            let packed: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let count = u32::try_from(ids.len()).expect("few");
            [
                &[VERSION][..],
                &count.to_le_bytes(),
                &check("n", &packed).to_le_bytes(),
                &packed,
            ]
            .concat()
        };
        assert_eq!(decode("n", &forged(&[7, 8])).as_deref(), Some(&[7, 8][..]));
        for ids in [&[][..], &[7, ID_BOUND], &vec![7; MOST_IDS + 1]] {
            assert_eq!(decode("n", &forged(ids)), None);
        }
    }

    proptest! {
        #[test]
        #[contract("V30")]
        fn every_written_value_is_read_and_every_changed_one_is_rejected(
            ids in prop::collection::vec(0..ID_BOUND, 1..200),
            at in any::<prop::sample::Index>(),
            flipped in 1..=u8::MAX,
        ) {
            let bytes = encode("n", &ids).expect("ids that may be");
            let read = decode("n", &bytes);
            prop_assert_eq!(read.as_deref(), Some(&ids[..]));
            prop_assert_eq!(decode("m", &bytes), None);
            let at = at.index(bytes.len());
            prop_assert_eq!(decode("n", &bytes[..at]), None);
            let mut changed = bytes.clone();
            changed[at] ^= flipped;
            prop_assert_eq!(decode("n", &changed), None);
            changed.push(0);
            prop_assert_eq!(decode("n", &changed), None);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode("n", &bytes);
        }
    }
}
