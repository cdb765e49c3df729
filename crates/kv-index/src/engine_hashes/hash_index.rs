//! Index from an engine hash to its location: a hash table of eight bytes an entry that does not
//! store its keys.
//!
//! An entry is a location and 18 bits of the hash's digest, its print. A search gets the locations
//! with that print and compares the hashes there; about one in a hundred is another hash.
//!
//! The table is cut into a fixed number of parts, each a row of buckets of one cache line. An entry
//! is in the bucket of its print, or behind it if that was full. The print alone determines the
//! bucket, so a part grows and shrinks without reading hashes, and no step moves more than one
//! part.
//!
//! Not here: the hashes themselves, and the meaning of a location.

use std::hint::black_box;

use super::bucket_row::{BucketRow, PRINT_BITS};

/// Blocks of one run that an entry can tell apart.
pub(super) const RUN_BLOCKS: u32 = 1 << 14;
/// Entries of a part when the table has the number given at its creation. More are possible, with
/// less selective prints.
const PART_ENTRIES: u64 = 4096;
/// Maximum number of parts: beyond 4 thousand million entries parts grow larger rather than more.
const MAX_PARTS: u64 = 1 << 20;

/// Location of a hash: a line of a run's hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HashSlot {
    pub(super) run_hashes: u32,
    /// Position of the block in its run.
    pub(super) at: u32,
}

/// The part of a digest that finds an entry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HashTag {
    part: u32,
    print: u32,
}

fn word(print: u32, slot: HashSlot) -> u64 {
    debug_assert!(slot.at < RUN_BLOCKS, "a run has no block {}", slot.at);
    u64::from(print) << 46 | u64::from(slot.at % RUN_BLOCKS) << 32 | u64::from(slot.run_hashes)
}

#[expect(clippy::cast_possible_truncation, reason = "fields of a word, cut out")]
fn slot(word: u64) -> HashSlot {
    HashSlot {
        run_hashes: word as u32,
        at: (word >> 32) as u32 % RUN_BLOCKS,
    }
}

/// Locations by the digest of their hash.
#[derive(Debug)]
pub(super) struct HashIndex {
    parts: Box<[BucketRow]>,
    bucket_bytes: u64,
}

impl HashIndex {
    /// Creates an empty table that is optimal up to `most` entries.
    pub(super) fn new(most: u64) -> Self {
        let parts = (most / PART_ENTRIES).clamp(16, MAX_PARTS);
        Self {
            parts: (0..parts).map(|_| BucketRow::default()).collect(),
            bucket_bytes: 0,
        }
    }

    /// Returns the tag of a digest, whose bits must all be evenly spread.
    pub(super) fn key(&self, digest: u64) -> HashTag {
        let part = ((digest >> 32) * self.parts.len() as u64) >> 32;
        // A word of 0 is no entry.
        let print = (digest & ((1 << PRINT_BITS) - 1)).max(1);
        HashTag {
            part: u32::try_from(part).expect("less than the number of parts"),
            print: u32::try_from(print).expect("18 bits"),
        }
    }

    /// Reads the start of the search for each key, so that their cache misses overlap.
    pub(super) fn touch(&self, keys: &[HashTag]) {
        let mut read = 0;
        for key in keys {
            let part = &self.parts[key.part as usize];
            read ^= part.first_slot(u64::from(key.print));
        }
        black_box(read);
    }

    /// Returns the first slot with that key that `accept` takes.
    pub(super) fn find(
        &self,
        key: HashTag,
        mut accept: impl FnMut(HashSlot) -> bool,
    ) -> Option<HashSlot> {
        let part = &self.parts[key.part as usize];
        part.find(u64::from(key.print), |word| accept(slot(word)))
            .map(slot)
    }

    /// Enlarges the parts for `entries` in all, which is cheaper than their growth entry by entry.
    pub(super) fn reserve(&mut self, entries: u64) {
        let share = entries / self.parts.len() as u64;
        for part in &mut self.parts {
            let before = part.bytes();
            part.reserve(share);
            self.bucket_bytes = self.bucket_bytes + part.bytes() - before;
        }
    }

    /// Adds an entry, which must be new.
    pub(super) fn insert(&mut self, key: HashTag, slot: HashSlot) {
        let part = &mut self.parts[key.part as usize];
        let before = part.bytes();
        part.insert(word(key.print, slot));
        self.bucket_bytes = self.bucket_bytes + part.bytes() - before;
    }

    /// Removes an entry; returns whether it existed.
    pub(super) fn remove(&mut self, key: HashTag, slot: HashSlot) -> bool {
        let part = &mut self.parts[key.part as usize];
        let before = part.bytes();
        let was = part.remove(word(key.print, slot));
        self.bucket_bytes = self.bucket_bytes + part.bytes() - before;
        was
    }

    /// Returns the heap bytes.
    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&*self.parts) as u64 + self.bucket_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn slots(table: &HashIndex, digest: u64) -> BTreeSet<HashSlot> {
        let mut slots = BTreeSet::new();
        table.find(table.key(digest), |slot| !slots.insert(slot));
        slots
    }

    proptest! {
        #[test]
        fn an_entry_is_found_from_its_insertion_to_its_removal(
            // Few digests, many with an equal fingerprint, and many in one bucket.
            steps in prop::collection::vec((any::<bool>(), 0_u64..40, 0_u32..4), 1..400),
        ) {
            let digest = |number: u64| if number < 20 { number * 13_107 } else { u64::MAX - number % 3 };
            let mut table = HashIndex::new(0);
            let mut model = BTreeSet::new();
            for (add, number, run_hashes) in steps {
                let slot = HashSlot { run_hashes, at: u32::try_from(number).unwrap() };
                let key = table.key(digest(number));
                if !add {
                    prop_assert_eq!(table.remove(key, slot), model.remove(&(number, slot)));
                } else if model.insert((number, slot)) {
                    table.insert(key, slot);
                }
                for number in 0..40 {
                    let found = slots(&table, digest(number));
                    let own = model.iter().filter(|(other, _)| *other == number);
                    prop_assert!(own.clone().all(|(_, slot)| found.contains(slot)));
                }
                let found: usize = table.parts.iter().map(|part| part.entries as usize).sum();
                prop_assert_eq!(found, model.len());
            }
        }
    }

    #[test]
    fn one_part_may_outgrow_its_share_and_frees_the_memory_again() {
        let mut table = HashIndex::new(0);
        let empty = table.bytes();
        let digest = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = |number: u64| HashSlot {
            run_hashes: u32::try_from(number).unwrap(),
            at: 0,
        };
        for number in 0..200_000 {
            table.insert(table.key(digest(number)), slot(number));
        }
        assert!((0..200_000).all(|number| slots(&table, digest(number)).contains(&slot(number))));
        assert!(table.bytes() < 200_000 * 14, "{} bytes", table.bytes());
        for number in 0..200_000 {
            assert!(table.remove(table.key(digest(number)), slot(number)));
        }
        assert_eq!(table.bytes(), empty);
    }
}
