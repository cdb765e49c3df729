//! Who goes by which names.

use std::collections::HashMap;

use kv_blocks::BlockSize;

/// Block sizes one member may announce: its own, and those of the stores attached to it.
pub(super) const MAX_BLOCK_SIZES: usize = 8;

/// A target as far as names go.
#[derive(Debug)]
pub(super) struct GroupMember {
    pub(super) family: u32,
    /// The key of the family it starts in.
    common: u32,
    /// Never used twice: what a slot announced before it was cleared is another's.
    pub(super) stint: u64,
    pub(super) proven: bool,
    /// Whether it has left a family: it then leaves the next one for a family of its own.
    pub(super) split: bool,
    sizes: Vec<BlockSize>,
}

impl GroupMember {
    pub(super) fn sizes(&self) -> &[BlockSize] {
        &self.sizes
    }

    /// Whether names of blocks of this size can be taken; the first few sizes can.
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

/// Members whose engines call the same content the same.
#[derive(Debug, Default)]
struct HashGroup {
    /// The key, of a family that new members start in.
    common: Option<u32>,
    members: u32,
    run_hashes: Vec<u32>,
}

/// All members and families.
#[derive(Debug, Default)]
pub(super) struct HashGroups {
    /// By slot.
    members: Vec<Option<GroupMember>>,
    groups: Vec<HashGroup>,
    free: Vec<u32>,
    initial_groups: HashMap<u32, u32>,
    /// Families whose last member left, until their sheets are gone.
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

    /// All members by slot, with whether they are in the family they started in.
    pub(super) fn members(&self) -> impl Iterator<Item = (u32, &GroupMember, bool)> {
        let common = |member: &GroupMember| self.groups[member.family as usize].common.is_some();
        (0..).zip(&self.members).filter_map(move |(slot, member)| {
            Some((slot, member.as_ref()?, common(member.as_ref()?)))
        })
    }

    /// Takes a slot in, anew if it is there already, as a member of the common family of `common`.
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

    /// The key of the family a member started in.
    pub(super) fn common(&self, slot: u32) -> Option<u32> {
        self.member(slot).map(|member| member.common)
    }

    pub(super) fn leave(&mut self, slot: u32) {
        let Some(member) = self.members.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        self.leave_family(member.family);
    }

    /// Moves a member to a family, or to a new one. Returns which.
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

    /// Whether it has members.
    pub(super) fn has_members(&self, family: u32) -> bool {
        self.groups[family as usize].members > 0
    }

    /// Notes a sheet of a family; returns its place in the list.
    pub(super) fn attach_run_hashes(&mut self, family: u32, sheet: u32) -> u32 {
        let sheets = &mut self.groups[family as usize].run_hashes;
        let before = sheets.capacity();
        sheets.push(sheet);
        self.run_hash_slots = self.run_hash_slots + sheets.capacity() as u64 - before as u64;
        u32::try_from(sheets.len() - 1).expect("there are fewer sheets than blocks")
    }

    /// Takes the sheet at a place from the list; returns the one that stands there now.
    pub(super) fn detach_run_hashes(&mut self, family: u32, place: u32) -> Option<u32> {
        let sheets = &mut self.groups[family as usize].run_hashes;
        sheets.swap_remove(place as usize);
        sheets.get(place as usize).copied()
    }

    /// A sheet to be freed, of a family that nobody is in any more.
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

    /// Heap bytes.
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
