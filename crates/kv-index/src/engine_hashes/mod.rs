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
mod bucket_row;
mod groups;
mod hash_index;
mod removal;
mod resolve;
mod run_hash_table;
mod run_hashes;
mod split;
#[cfg(test)]
mod tests;

use kv_blocks::{BlockSize, EngineHash};

use crate::changed_runs::ChangedRuns;

use self::{
    groups::HashGroups,
    hash_index::{HashIndex, HashSlot, HashTag, RUN_BLOCKS},
    run_hash_table::RunHashTable,
    run_hashes::RunHashes,
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
    pub(crate) block_ref: BlockRef,
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
    pub(crate) block_ref: BlockRef,
}

/// One member, for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupMembership {
    pub(crate) member: u32,
    pub(crate) group: u32,
    /// Whether the group is the initial one of its model.
    pub(crate) common: bool,
    pub(crate) proven: bool,
}

/// Consecutive hashes of one run in one group, for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedStretch {
    pub(crate) group: u32,
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
    pub(crate) fn remove_member(&mut self, member: u32) {
        self.groups.remove_member(member);
    }

    /// Drops all announcements of a member: it starts again.
    pub(crate) fn clear(&mut self, member: u32) {
        if let Some(common) = self.groups.common(member) {
            self.groups.join(member, common);
        }
    }

    /// Drops all announcements of a member, and gives it a group of its own. For one that holds blocks
    /// which it did not announce: they do not show that the names of others are its own.
    pub(crate) fn isolate(&mut self, member: u32) {
        self.clear(member);
        self.groups.move_to(member, None);
        if let Some(of) = self.groups.member_mut(member) {
            of.split = true;
        }
    }

    /// Returns whether a member may announce blocks of this size: the first eight sizes since it
    /// joined or was cleared.
    pub(crate) fn admits(&mut self, member: u32, size: BlockSize) -> bool {
        self.groups
            .member_mut(member)
            .is_some_and(|member| member.admits(size))
    }

    /// Returns whether a member is alone in its group.
    pub(crate) fn is_alone(&self, member: u32) -> bool {
        self.groups
            .member(member)
            .is_some_and(|member| self.groups.is_alone(member.group))
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

    /// Makes room for hashes to come.
    pub(crate) fn reserve(&mut self, hashes: u64) {
        self.table.reserve(hashes);
    }

    /// Returns all members, by slot.
    pub(crate) fn members(&self) -> impl Iterator<Item = GroupMembership> {
        self.groups
            .members()
            .map(|(member, of, common)| GroupMembership {
                member,
                group: of.group,
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

    /// Returns the hashes of a run in groups with members.
    #[cfg(test)]
    pub(crate) fn names_of(&self, run: u32) -> impl Iterator<Item = NamedStretch> {
        let stored = self
            .run_hashes
            .of_run(run)
            .map(|run_hashes| self.run_hashes.get(run_hashes));
        let in_use = stored.filter(|run_hashes| self.groups.has_members(run_hashes.group));
        in_use.flat_map(stretches)
    }

    /// Returns the hashes of a run, those of groups without members included: such a group may get
    /// members again.
    pub(crate) fn all_names_of(&self, run: u32) -> impl Iterator<Item = NamedStretch> {
        let stored = self.run_hashes.of_run(run);
        stored.flat_map(|run_hashes| stretches(self.run_hashes.get(run_hashes)))
    }

    /// Returns the record of the runs whose hashes changed during a save.
    pub(crate) fn changed(&mut self) -> &mut ChangedRuns {
        &mut self.run_hashes.changed
    }

    /// Writes a hash that is new in its group.
    fn write(&mut self, key: HashTag, slot: HashSlot, name: EngineHash) {
        self.table.insert(key, slot);
        if let Some(displaced) = self.run_hashes.change(slot.run_hashes, |run_hashes| {
            run_hashes.write(slot.at, name)
        }) {
            let run_hashes = self.run_hashes.get(slot.run_hashes);
            self.table
                .remove(self.key(run_hashes.group, run_hashes.size, displaced), slot);
        }
    }

    /// Returns the hashes of a run in a group; creates them if there are none.
    fn find_or_add_run_hashes(&mut self, run: u32, group: u32, size: BlockSize) -> u32 {
        if let Some(run_hashes) = self.run_hashes.find(run, group) {
            return run_hashes;
        }
        let number = self.run_hashes.add(RunHashes::new(run, group, size));
        let filed = self.groups.attach_run_hashes(group, number);
        self.run_hashes
            .change(number, |run_hashes| run_hashes.filed = filed);
        number
    }
}

fn stretches(run_hashes: &RunHashes) -> impl Iterator<Item = NamedStretch> {
    let (group, size) = (run_hashes.group, run_hashes.size);
    run_hashes.stretches().map(move |(at, names)| NamedStretch {
        group,
        size,
        at,
        names,
    })
}
