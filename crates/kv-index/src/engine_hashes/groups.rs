//! Hash groups and their members.

use std::collections::HashMap;

use kv_blocks::BlockSize;

/// Maximum block sizes of one member: its own, and those of the stores attached to it.
pub(super) const MAX_BLOCK_SIZES: usize = 8;

/// A target as a member of a hash group.
#[derive(Debug)]
pub(super) struct GroupMember {
    pub(super) group: u32,
    /// The key of its initial group.
    common: u32,
    /// Never used twice: hashes that a slot announced before it was cleared belong to an earlier
    /// epoch.
    pub(super) epoch: u64,
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
        let common = |member: &GroupMember| self.groups[member.group as usize].common.is_some();
        (0..).zip(&self.members).filter_map(move |(slot, member)| {
            Some((slot, member.as_ref()?, common(member.as_ref()?)))
        })
    }

    /// Adds a slot as a member of the initial group of `common`; an existing member starts again.
    pub(super) fn join(&mut self, slot: u32, common: u32) {
        self.remove_member(slot);
        let group = self
            .initial_groups
            .get(&common)
            .copied()
            .unwrap_or_else(|| self.create_group(Some(common)));
        self.groups[group as usize].members += 1;
        self.epochs += 1;
        let (epoch, sizes) = (self.epochs, Vec::new());
        let at = slot as usize;
        if self.members.len() <= at {
            self.members.resize_with(at + 1, || None);
        }
        self.members[at] = Some(GroupMember {
            group,
            common,
            epoch,
            proven: false,
            split: false,
            sizes,
        });
    }

    /// Returns the key of a member's initial group.
    pub(super) fn common(&self, slot: u32) -> Option<u32> {
        self.member(slot).map(|member| member.common)
    }

    pub(super) fn remove_member(&mut self, slot: u32) {
        let Some(member) = self.members.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        self.leave_group(member.group);
    }

    /// Moves a member to a group, or to a new one. Returns the group.
    pub(super) fn move_to(&mut self, slot: u32, group: Option<u32>) -> Option<u32> {
        let old = self.member(slot)?.group;
        let group = group.unwrap_or_else(|| self.create_group(None));
        self.groups[group as usize].members += 1;
        self.leave_group(old);
        self.member_mut(slot)?.group = group;
        Some(group)
    }

    pub(super) fn is_alone(&self, group: u32) -> bool {
        self.groups[group as usize].members == 1
    }

    /// Returns whether a group has members.
    pub(super) fn has_members(&self, group: u32) -> bool {
        self.groups[group as usize].members > 0
    }

    /// Adds the hashes of a run to a group; returns their index in the group's list.
    pub(super) fn attach_run_hashes(&mut self, group: u32, run_hashes: u32) -> u32 {
        let list = &mut self.groups[group as usize].run_hashes;
        let before = list.capacity();
        list.push(run_hashes);
        self.run_hash_slots = self.run_hash_slots + list.capacity() as u64 - before as u64;
        u32::try_from(list.len() - 1).expect("there are fewer run hashes than blocks")
    }

    /// Removes the entry at an index from the list; returns the entry that takes its place.
    pub(super) fn detach_run_hashes(&mut self, group: u32, index: u32) -> Option<u32> {
        let list = &mut self.groups[group as usize].run_hashes;
        list.swap_remove(index as usize);
        list.get(index as usize).copied()
    }

    /// Returns run hashes to free, of a group without members.
    pub(super) fn next_unused_run_hashes(&mut self) -> Option<u32> {
        loop {
            let group = *self.emptied_groups.last()?;
            let ended = &mut self.groups[group as usize];
            if let Some(run_hashes) = ended.run_hashes.last() {
                return Some(*run_hashes);
            }
            self.run_hash_slots -= ended.run_hashes.capacity() as u64;
            *ended = HashGroup::default();
            self.free.push(group);
            self.emptied_groups.pop();
        }
    }

    /// Returns the heap bytes.
    pub(super) fn bytes(&self) -> u64 {
        let sizes = MAX_BLOCK_SIZES * size_of::<BlockSize>();
        let members = self.members.len() * (size_of::<Option<GroupMember>>() + sizes);
        let groups =
            self.groups.capacity() * (size_of::<HashGroup>() + 2 * size_of::<(u32, u32)>());
        (members + groups) as u64 + self.run_hash_slots * size_of::<u32>() as u64
    }

    fn create_group(&mut self, common: Option<u32>) -> u32 {
        let group = self.free.pop().unwrap_or_else(|| {
            self.groups.push(HashGroup::default());
            u32::try_from(self.groups.len() - 1).expect("there are fewer groups than members")
        });
        self.groups[group as usize].common = common;
        if let Some(common) = common {
            self.initial_groups.insert(common, group);
        }
        group
    }

    fn leave_group(&mut self, number: u32) {
        let group = &mut self.groups[number as usize];
        group.members -= 1;
        if group.members > 0 {
            return;
        }
        if let Some(common) = group.common.take() {
            self.initial_groups.remove(&common);
        }
        self.emptied_groups.push(number);
    }
}
