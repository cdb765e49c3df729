//! Hash groups and their members.

use std::collections::HashMap;

use kv_blocks::BlockSize;

/// Maximum block sizes of one member: its own, and those of the stores attached to it.
pub(super) const MAX_BLOCK_SIZES: usize = 8;

/// A target as a member of a hash group.
#[derive(Debug)]
pub(super) struct GroupMember {
    pub(super) family: u32,
    /// The key of its initial group.
    common: u32,
    /// Never used twice: hashes that a slot announced before it was cleared belong to an earlier
    /// epoch.
    pub(super) stint: u64,
    pub(super) proven: bool,
    /// Whether it has left a group: it then leaves the next one for a group of its own.
    pub(super) split: bool,
    sizes: Vec<BlockSize>,
}

impl GroupMember {
    pub(super) fn sizes(&self) -> &[BlockSize] {
        &self.sizes
    }

    /// Returns whether hashes of blocks of this size are accepted; those of the first few sizes
    /// are.
    pub(super) fn admits(&mut self, size: BlockSize) -> bool {
        if self.sizes.contains(&size) {
            return true;
        }
        let room = self.sizes.len() < MAX_BLOCK_SIZES;
        if room {
            self.sizes.push(size);
        }
        room
    }
}

/// Members whose engines give the same content the same hash.
#[derive(Debug, Default)]
struct HashGroup {
    /// The key of an initial group.
    common: Option<u32>,
    members: u32,
    run_hashes: Vec<u32>,
}

/// All members and groups.
#[derive(Debug, Default)]
pub(super) struct HashGroups {
    /// By slot.
    members: Vec<Option<GroupMember>>,
    groups: Vec<HashGroup>,
    free: Vec<u32>,
    initial_groups: HashMap<u32, u32>,
    /// Groups without members, until their hashes are freed.
    emptied_groups: Vec<u32>,
    epochs: u64,
    run_hash_slots: u64,
}

impl HashGroups {
    pub(super) fn member(&self, slot: u32) -> Option<&GroupMember> {
        self.members.get(slot as usize)?.as_ref()
    }

    pub(super) fn member_mut(&mut self, slot: u32) -> Option<&mut GroupMember> {
        self.members.get_mut(slot as usize)?.as_mut()
    }

    /// Records that a member's engine gives the same content the same hash as another member's.
    pub(super) fn prove(&mut self, slot: u32) {
        if let Some(member) = self.member_mut(slot) {
            member.proven = true;
        }
    }

    /// Returns all members by slot, with whether they are in an initial group.
    pub(super) fn members(&self) -> impl Iterator<Item = (u32, &GroupMember, bool)> {
        let common = |member: &GroupMember| self.groups[member.family as usize].common.is_some();
        (0..).zip(&self.members).filter_map(move |(slot, member)| {
            Some((slot, member.as_ref()?, common(member.as_ref()?)))
        })
    }

    /// Adds a slot as a member of the initial group of `common`; an existing member starts again.
    pub(super) fn join(&mut self, slot: u32, common: u32) {
        self.leave(slot);
        let family = self
            .initial_groups
            .get(&common)
            .copied()
            .unwrap_or_else(|| self.found(Some(common)));
        self.groups[family as usize].members += 1;
        self.epochs += 1;
        let (stint, sizes) = (self.epochs, Vec::new());
        let at = slot as usize;
        if self.members.len() <= at {
            self.members.resize_with(at + 1, || None);
        }
        self.members[at] = Some(GroupMember {
            family,
            common,
            stint,
            proven: false,
            split: false,
            sizes,
        });
    }

    /// Returns the key of a member's initial group.
    pub(super) fn common(&self, slot: u32) -> Option<u32> {
        self.member(slot).map(|member| member.common)
    }

    pub(super) fn leave(&mut self, slot: u32) {
        let Some(member) = self.members.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        self.leave_family(member.family);
    }

    /// Moves a member to a group, or to a new one. Returns the group.
    pub(super) fn move_to(&mut self, slot: u32, family: Option<u32>) -> Option<u32> {
        let old = self.member(slot)?.family;
        let family = family.unwrap_or_else(|| self.found(None));
        self.groups[family as usize].members += 1;
        self.leave_family(old);
        self.member_mut(slot)?.family = family;
        Some(family)
    }

    pub(super) fn is_alone(&self, family: u32) -> bool {
        self.groups[family as usize].members == 1
    }

    /// Returns whether a group has members.
    pub(super) fn has_members(&self, family: u32) -> bool {
        self.groups[family as usize].members > 0
    }

    /// Adds the hashes of a run to a group; returns their index in the group's list.
    pub(super) fn attach_run_hashes(&mut self, family: u32, sheet: u32) -> u32 {
        let sheets = &mut self.groups[family as usize].run_hashes;
        let before = sheets.capacity();
        sheets.push(sheet);
        self.run_hash_slots = self.run_hash_slots + sheets.capacity() as u64 - before as u64;
        u32::try_from(sheets.len() - 1).expect("there are fewer sheets than blocks")
    }

    /// Removes the entry at an index from the list; returns the entry that takes its place.
    pub(super) fn detach_run_hashes(&mut self, family: u32, place: u32) -> Option<u32> {
        let sheets = &mut self.groups[family as usize].run_hashes;
        sheets.swap_remove(place as usize);
        sheets.get(place as usize).copied()
    }

    /// Returns run hashes to free, of a group without members.
    pub(super) fn next_unused_run_hashes(&mut self) -> Option<u32> {
        loop {
            let family = *self.emptied_groups.last()?;
            let ended = &mut self.groups[family as usize];
            if let Some(sheet) = ended.run_hashes.last() {
                return Some(*sheet);
            }
            self.run_hash_slots -= ended.run_hashes.capacity() as u64;
            *ended = HashGroup::default();
            self.free.push(family);
            self.emptied_groups.pop();
        }
    }

    /// Returns the heap bytes.
    pub(super) fn bytes(&self) -> u64 {
        let sizes = MAX_BLOCK_SIZES * size_of::<BlockSize>();
        let members = self.members.len() * (size_of::<Option<GroupMember>>() + sizes);
        let families =
            self.groups.capacity() * (size_of::<HashGroup>() + 2 * size_of::<(u32, u32)>());
        (members + families) as u64 + self.run_hash_slots * size_of::<u32>() as u64
    }

    fn found(&mut self, common: Option<u32>) -> u32 {
        let family = self.free.pop().unwrap_or_else(|| {
            self.groups.push(HashGroup::default());
            u32::try_from(self.groups.len() - 1).expect("there are fewer families than members")
        });
        self.groups[family as usize].common = common;
        if let Some(common) = common {
            self.initial_groups.insert(common, family);
        }
        family
    }

    fn leave_family(&mut self, number: u32) {
        let family = &mut self.groups[number as usize];
        family.members -= 1;
        if family.members > 0 {
            return;
        }
        if let Some(common) = family.common.take() {
            self.initial_groups.remove(&common);
        }
        self.emptied_groups.push(number);
    }
}
