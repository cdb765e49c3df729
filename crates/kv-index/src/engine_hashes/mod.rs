//! Engine hashes of blocks, and the groups of targets that share them.
//!
//! Hashes are stored per *hash group*: the members whose engines give the same content the same
//! hash. Most fleets have one group per model, so a block has one engine hash however many targets
//! hold it. A member starts in the initial group of its model and leaves it with the first
//! announcement that contradicts it; engines that number their blocks each have a group of their
//! own.
//!
//! A hash of the group counts for a member only if the member announced it itself, until the member
//! is *proven*: until it gave a block the same long hash as another member before it. See
//! [`ResolvedHash`].
//!
//! Not here: the holders of blocks, and any content. Single-threaded; engine hashes are untrusted
//! input, so the table that finds them is keyed with a secret.
//!
//! **Invariant**: within one group and block size an engine hash stands for one block.
//! **Invariant**: a refused announcement changes nothing here.

mod announce;
mod groups;
mod hash_index;
mod run_hash_table;
mod run_hashes;
mod split;
#[cfg(test)]
mod tests;

use std::{cmp::Reverse, ops::Range};

use kv_blocks::{BlockSize, EngineHash};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::{
    groups::HashGroups,
    hash_index::{HashIndex, HashSlot, HashTag, RUN_BLOCKS},
    run_hash_table::RunHashTable,
    run_hashes::{HashWriter, RunHashes},
};

/// Hashes looked up together, their cache misses overlapping.
const BATCH: usize = 32;
/// Hashes of groups without members that are freed at once, under one hold of the writer's lock.
const SLICE: usize = 4096;

/// Position of a block: `at` blocks of its run are before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockRef {
    pub(crate) run: u32,
    pub(crate) at: u32,
}

/// Meaning of an engine hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResolvedHash {
    pub(crate) spot: BlockRef,
    /// Whether the member's own engine certainly means this block. If not, it is valid only for a
    /// block that the member holds: it announced that one by this very hash.
    pub(crate) proven: bool,
}

/// Effect of an announcement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnnounceOutcome {
    /// Blocks whose hash now stands for another block, in a group with one member. No event could
    /// remove them from that member any more, so the caller removes them. Blocks named again by the
    /// same announcement are not included.
    pub(crate) moved: Vec<BlockRef>,
}

/// An engine hash that the group uses for another block, or a block with another hash in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashConflict {
    pub(crate) name: EngineHash,
    pub(crate) spot: BlockRef,
}

/// One member, for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupMembership {
    pub(crate) member: u32,
    pub(crate) family: u32,
    /// Whether the group is the initial one of its model.
    pub(crate) common: bool,
    pub(crate) proven: bool,
}

/// Consecutive hashes of one run in one group, for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedStretch {
    pub(crate) family: u32,
    pub(crate) size: BlockSize,
    /// The block of the first hash.
    pub(crate) at: u32,
    pub(crate) names: Vec<EngineHash>,
}

/// All engine hashes.
#[derive(Debug)]
pub(crate) struct EngineHashTable {
    seed: u64,
    table: HashIndex,
    run_hashes: RunHashTable,
    groups: HashGroups,
}

impl EngineHashTable {
    /// Creates an empty table. `seed` is a secret: with it an attacker could choose hashes that
    /// make the table slow. The table is optimal up to `most` hashes; more are possible.
    pub(crate) fn new(seed: u64, most: u64) -> Self {
        Self {
            seed,
            table: HashIndex::new(most),
            run_hashes: RunHashTable::default(),
            groups: HashGroups::default(),
        }
    }

    /// Adds a slot as a member of the initial group of `common`, without announcements.
    pub(crate) fn join(&mut self, member: u32, common: u32) {
        self.groups.join(member, common);
    }

    /// Removes a member.
    pub(crate) fn leave(&mut self, member: u32) {
        self.groups.leave(member);
    }

    /// Drops all announcements of a member: it starts again.
    pub(crate) fn clear(&mut self, member: u32) {
        if let Some(common) = self.groups.common(member) {
            self.groups.join(member, common);
        }
    }

    /// Returns whether a member may announce blocks of this size: the first eight sizes since it
    /// joined or was cleared.
    pub(crate) fn admits(&mut self, member: u32, size: BlockSize) -> bool {
        self.groups
            .member_mut(member)
            .is_some_and(|member| member.admits(size))
    }

    /// Returns the block that a member's engine means by a hash.
    pub(crate) fn resolve(
        &self,
        member: u32,
        name: EngineHash,
        size: BlockSize,
    ) -> Option<ResolvedHash> {
        let member = self.groups.member(member)?;
        let found = self.find(
            self.key(member.family, size, name),
            member.family,
            size,
            name,
        )?;
        let sheet = self.run_hashes.get(found.sheet);
        let proven = member.proven || sheet.author == HashWriter::Stint(member.stint);
        Some(ResolvedHash {
            spot: BlockRef {
                run: sheet.run,
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
                let keys = self.keys(of.family, *size, names);
                for key in &keys[..names.len()] {
                    if let Some(place) = self.table.find(*key, |_| true) {
                        self.run_hashes.touch(place.sheet, place.at);
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

    /// Removes all hashes of blocks that left the structure.
    pub(crate) fn forget(&mut self, run: u32, range: Range<u32>) {
        for sheet in self.run_hashes.of_run(run).collect::<Vec<_>>() {
            let blocks = self.run_hashes.get(sheet).within(&range);
            self.erase_all(sheet, blocks);
            self.free_if_empty(sheet);
        }
    }

    /// Removes one hash of a member that is alone in its group; other members may still need it.
    /// For hashes of blocks that the member does not hold any more.
    pub(crate) fn remove_hash(&mut self, member: u32, name: EngineHash, size: BlockSize) {
        let Some(family) = self.groups.member(member).map(|member| member.family) else {
            return;
        };
        let key = self.key(family, size, name);
        if self.groups.is_alone(family)
            && let Some(place) = self.find(key, family, size, name)
        {
            self.erase(key, place, name);
            self.free_if_empty(place.sheet);
        }
    }

    /// Removes the hashes of a run's blocks from the group of a member that is alone there. For
    /// blocks that it does not hold: hashes of other members or of earlier times are not its own.
    pub(crate) fn unlink(&mut self, member: u32, run: u32, range: &Range<u32>) {
        let Some(family) = self.groups.member(member).map(|member| member.family) else {
            return;
        };
        if self.groups.is_alone(family)
            && let Some(sheet) = self.run_hashes.find(run, family)
        {
            let blocks = self.run_hashes.get(sheet).within(range);
            self.erase_all(sheet, blocks);
            self.free_if_empty(sheet);
        }
    }

    /// Returns whether a member is alone in its group, and blocks of the run have hashes there.
    pub(crate) fn may_unlink(&self, member: u32, run: u32) -> bool {
        let family = self.groups.member(member).map(|member| member.family);
        family.is_some_and(|family| {
            self.groups.is_alone(family) && self.run_hashes.find(run, family).is_some()
        })
    }

    /// Returns whether a member is alone in its group.
    pub(crate) fn is_alone(&self, member: u32) -> bool {
        self.groups
            .member(member)
            .is_some_and(|member| self.groups.is_alone(member.family))
    }

    /// Frees up to a slice of the hashes of groups without members. Returns whether there may be
    /// more.
    pub(crate) fn tidy(&mut self) -> bool {
        self.free_ended(SLICE)
    }

    /// Returns all heap bytes except the allocator's overhead.
    pub(crate) fn bytes(&self) -> u64 {
        self.table.bytes() + self.run_hashes.bytes() + self.groups.bytes()
    }

    /// Returns all members, by slot.
    pub(crate) fn members(&self) -> impl Iterator<Item = GroupMembership> {
        self.groups
            .members()
            .map(|(member, of, common)| GroupMembership {
                member,
                family: of.family,
                common,
                proven: of.proven,
            })
    }

    /// Returns the block sizes that a member has announced since it joined or was cleared.
    pub(crate) fn sizes(&self, member: u32) -> &[BlockSize] {
        self.groups
            .member(member)
            .map_or(&[], |member| member.sizes())
    }

    /// Returns the hashes of a run.
    pub(crate) fn names_of(&self, run: u32) -> impl Iterator<Item = NamedStretch> {
        let sheets = self
            .run_hashes
            .of_run(run)
            .map(|sheet| self.run_hashes.get(sheet));
        let living = sheets.filter(|sheet| self.groups.has_members(sheet.family));
        living.flat_map(|sheet| {
            let (family, size) = (sheet.family, sheet.size);
            sheet.stretches().map(move |(at, names)| NamedStretch {
                family,
                size,
                at,
                names,
            })
        })
    }

    fn key(&self, family: u32, size: BlockSize, name: EngineHash) -> HashTag {
        self.keyed(family, size)(name)
    }

    /// Returns the function from a hash to its key in one group and block size. Without the seed,
    /// collisions of keys cannot be predicted.
    fn keyed(&self, family: u32, size: BlockSize) -> impl Fn(EngineHash) -> HashTag {
        let about = u64::from(family) << 32 | u64::from(size.tokens());
        let secret = xxh3_64_with_seed(&about.to_le_bytes(), self.seed);
        move |name| {
            self.table
                .key(xxh3_64_with_seed(&name.0.to_le_bytes(), secret))
        }
    }

    /// Returns the keys of up to a batch of hashes, and starts to read the location of each.
    fn keys(&self, family: u32, size: BlockSize, names: &[EngineHash]) -> [HashTag; BATCH] {
        let key = self.keyed(family, size);
        let mut keys = [HashTag::default(); BATCH];
        for (key_of, name) in keys.iter_mut().zip(names) {
            *key_of = key(*name);
        }
        self.table.touch(&keys[..names.len()]);
        keys
    }

    fn find(
        &self,
        key: HashTag,
        family: u32,
        size: BlockSize,
        name: EngineHash,
    ) -> Option<HashSlot> {
        self.table.find(key, |place| {
            let sheet = self.run_hashes.get(place.sheet);
            sheet.family == family && sheet.size == size && sheet.has(place.at, name)
        })
    }

    /// Writes a hash that is new in its group.
    fn write(&mut self, key: HashTag, place: HashSlot, name: EngineHash) {
        self.table.insert(key, place);
        if let Some(gone) = self
            .run_hashes
            .change(place.sheet, |sheet| sheet.write(place.at, name))
        {
            let sheet = self.run_hashes.get(place.sheet);
            self.table
                .remove(self.key(sheet.family, sheet.size, gone), place);
        }
    }

    fn erase(&mut self, key: HashTag, place: HashSlot, name: EngineHash) {
        if self
            .run_hashes
            .change(place.sheet, |sheet| sheet.erase(place.at, name))
        {
            self.table.remove(key, place);
        }
    }

    /// Erases all hashes of some blocks, the last first: then the lines are freed from the end.
    fn erase_all(&mut self, sheet: u32, blocks: Range<u32>) {
        let (family, size) = (
            self.run_hashes.get(sheet).family,
            self.run_hashes.get(sheet).size,
        );
        let names = blocks.flat_map(|at| {
            self.run_hashes
                .get(sheet)
                .names(at)
                .map(move |name| (at, name))
        });
        let mut names: Vec<_> = names.collect();
        names.sort_by_key(|(at, _)| Reverse(*at));
        for batch in names.chunks(BATCH) {
            let mut hashes = [EngineHash(0); BATCH];
            for (hash, (_, name)) in hashes.iter_mut().zip(batch) {
                *hash = *name;
            }
            let keys = self.keys(family, size, &hashes[..batch.len()]);
            for ((at, name), key) in batch.iter().zip(keys) {
                self.erase(key, HashSlot { sheet, at: *at }, *name);
            }
        }
    }

    /// Returns the hashes of a run in a group; creates them if there are none.
    fn sheet(&mut self, run: u32, family: u32, size: BlockSize) -> u32 {
        if let Some(sheet) = self.run_hashes.find(run, family) {
            return sheet;
        }
        let number = self.run_hashes.add(RunHashes::new(run, family, size));
        let filed = self.groups.attach_run_hashes(family, number);
        self.run_hashes.change(number, |sheet| sheet.filed = filed);
        number
    }

    fn free_if_empty(&mut self, number: u32) {
        if !self.run_hashes.get(number).is_empty() {
            return;
        }
        let sheet = self.run_hashes.remove(number);
        if let Some(moved) = self.groups.detach_run_hashes(sheet.family, sheet.filed) {
            self.run_hashes
                .change(moved, |moved| moved.filed = sheet.filed);
        }
    }

    fn free_ended(&mut self, most: usize) -> bool {
        let mut room = u32::try_from(most).unwrap_or(u32::MAX);
        while let Some(sheet) = self.groups.next_unused_run_hashes() {
            let mut blocks = self.run_hashes.get(sheet).within(&(0..RUN_BLOCKS));
            blocks.start = blocks.start.max(blocks.end.saturating_sub(room.max(1)));
            room = room.saturating_sub(blocks.end - blocks.start);
            self.erase_all(sheet, blocks);
            self.free_if_empty(sheet);
            if room == 0 {
                return true;
            }
        }
        false
    }
}
