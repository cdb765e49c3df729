//! From an engine hash to the block that it stands for.

use kv_blocks::{BlockSize, EngineHash};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    BATCH, BlockRef, EngineHashTable, ResolvedHash,
    hash_index::{HashSlot, HashTag},
    run_hashes::HashWriter,
};

impl EngineHashTable {
    /// Returns the block that a member's engine means by a hash.
    pub(crate) fn resolve(
        &self,
        member: u32,
        name: EngineHash,
        size: BlockSize,
    ) -> Option<ResolvedHash> {
        let member = self.groups.member(member)?;
        let found = self.find(self.key(member.group, size, name), member.group, size, name)?;
        let run_hashes = self.run_hashes.get(found.run_hashes);
        let proven = member.proven || run_hashes.writer == HashWriter::Epoch(member.epoch);
        Some(ResolvedHash {
            block_ref: BlockRef {
                run: run_hashes.run,
                at: found.at,
            },
            proven,
        })
    }

    /// Resolves each of `names` in each block size that the member announced: calls `each` with the
    /// position in `names`. For removals, which have no block size.
    pub(crate) fn resolve_any(
        &self,
        member: u32,
        names: &[EngineHash],
        mut each: impl FnMut(usize, BlockSize, ResolvedHash),
    ) {
        let Some(of) = self.groups.member(member) else {
            return;
        };
        for (batch, names) in names.chunks(BATCH).enumerate() {
            for size in of.sizes() {
                let keys = self.keys(of.group, *size, names);
                for key in &keys[..names.len()] {
                    if let Some(slot) = self.table.find(*key, |_| true) {
                        self.run_hashes.touch(slot.run_hashes, slot.at);
                    }
                }
                for (at, name) in names.iter().enumerate() {
                    if let Some(resolved) = self.resolve(member, *name, *size) {
                        each(batch * BATCH + at, *size, resolved);
                    }
                }
            }
        }
    }

    pub(super) fn key(&self, group: u32, size: BlockSize, name: EngineHash) -> HashTag {
        self.keyed(group, size)(name)
    }

    /// Returns the function from a hash to its key in one group and block size. Without the seed,
    /// collisions of keys cannot be predicted.
    pub(super) fn keyed(&self, group: u32, size: BlockSize) -> impl Fn(EngineHash) -> HashTag {
        let about = u64::from(group) << 32 | u64::from(size.tokens());
        let secret = xxh3_64_with_seed(&about.to_le_bytes(), self.seed);
        move |name| {
            self.table
                .key(xxh3_64_with_seed(&name.0.to_le_bytes(), secret))
        }
    }

    /// Returns the keys of up to a batch of hashes, and starts to read the location of each.
    pub(super) fn keys(
        &self,
        group: u32,
        size: BlockSize,
        names: &[EngineHash],
    ) -> [HashTag; BATCH] {
        let key = self.keyed(group, size);
        let mut keys = [HashTag::default(); BATCH];
        for (key_of, name) in keys.iter_mut().zip(names) {
            *key_of = key(*name);
        }
        self.table.touch(&keys[..names.len()]);
        keys
    }

    pub(super) fn find(
        &self,
        key: HashTag,
        group: u32,
        size: BlockSize,
        name: EngineHash,
    ) -> Option<HashSlot> {
        self.table.find(key, |slot| {
            let run_hashes = self.run_hashes.get(slot.run_hashes);
            run_hashes.group == group && run_hashes.size == size && run_hashes.has(slot.at, name)
        })
    }
}
