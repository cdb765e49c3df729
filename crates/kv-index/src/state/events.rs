//! What a target's stream says: stored, removed, cleared.

use std::sync::Arc;

use kv_blocks::{EngineHash, Identity, Namespace, Removed, SequenceHash, Stored, Target, Tier};

use super::{ALIAS_BYTES, BLOCK_BYTES, COPY_BYTES, MEMBERSHIP_BYTES, State};
use crate::{
    Applied,
    blocks::{BlockKey, Place},
    copies::Copies,
    owner::{Alias, Name, OwnerId},
    spaces::SpaceId,
};

/// What the first block of an event hangs on.
struct Origin {
    space: SpaceId,
    parent: Option<SequenceHash>,
    depth: u32,
}

impl State {
    pub(crate) fn store(&mut self, target: Target, stored: &Stored) -> Applied {
        let all = count(stored.hashes.len());
        let size = stored.block_size;
        let refused = Applied { ignored: all, ..Applied::default() };
        let Some(owner) = self.owners.find(target) else { return refused };
        let fits = stored.tokens.len() == stored.hashes.len().saturating_mul(size.len());
        if !fits || self.owners.get(owner).model.is_none() || !self.owners.get_mut(owner).admits(size) {
            return refused;
        }
        let Some(origin) = self.origin(owner, stored) else {
            self.orphans += u64::from(all);
            return Applied { orphans: all, ..Applied::default() };
        };

        let mut applied = 0;
        let Origin { space, mut parent, mut depth } = origin;
        let device = stored.tier == Tier::Device;
        if let Some(hash) = parent.filter(|_| device) {
            self.copies(owner, |copies| copies.believe(BlockKey { space, hash }));
        }
        let mut repeats = parent.is_none();
        for (name, tokens) in stored.hashes.iter().zip(stored.tokens.chunks_exact(size.len())) {
            let hash = self.settings.scheme.extend(parent, tokens);
            let alias = Alias { key: BlockKey { space, hash }, depth };
            if !self.make_room(owner, (*name, size), alias) {
                // The rest would be out of reach behind this one.
                self.shed += u64::from(all - applied);
                break;
            }
            let new = self.hold(owner, (*name, size), alias, parent, stored.tier);
            repeats &= !new;
            if device && !new {
                self.store_again(owner, alias.key, repeats);
            }
            applied += 1;
            parent = Some(hash);
            depth = depth.saturating_add(1);
        }
        self.spaces.leave(space);
        Applied { applied, orphans: 0, ignored: all - applied }
    }

    pub(crate) fn remove(&mut self, target: Target, removed: &Removed) -> Applied {
        let mut done = Applied::default();
        let owner = self.owners.find(target);
        for name in &removed.hashes {
            if let Some(owner) = owner.filter(|_| removed.tier == Tier::Device) {
                self.copies(owner, Copies::note_removal);
            }
            let known = owner.is_some_and(|owner| self.remove_named(owner, *name, removed.tier));
            *(if known { &mut done.applied } else { &mut done.ignored }) += 1;
        }
        if let Some(owner) = owner {
            while let Some((key, name)) = self.copies(owner, Copies::lapsed) {
                self.lapse(owner, key, name);
            }
        }
        done
    }

    /// A target's stream may have lost removals: no block counts as held more than once from now on, and
    /// what is on trust is over.
    pub(crate) fn hole(&mut self, target: Target) {
        let Some(owner) = self.owners.find(target) else { return };
        for (key, name) in self.copies(owner, Copies::doubt) {
            self.lapse(owner, key, name);
        }
    }

    fn lapse(&mut self, owner: OwnerId, key: BlockKey, name: Name) {
        self.leave_tier(owner, key, Tier::Device);
        self.depart(owner, key, name);
    }

    /// Where an event's first block hangs, with one use of its namespace; `None` for an orphan.
    fn origin(&mut self, owner: OwnerId, stored: &Stored) -> Option<Origin> {
        let holder = self.owners.get(owner);
        let Some(parent) = stored.parent else {
            let namespace = Namespace {
                model: holder.model.clone()?,
                lora: stored.lora.clone(),
                salt: stored.salt.clone(),
                block_size: stored.block_size,
                identity: Identity::Tokens,
            };
            return Some(Origin { space: self.spaces.enter(namespace), parent: None, depth: 0 });
        };
        let alias = *holder.aliases.get(&(parent, stored.block_size))?;
        // Adapter and salt are inherited. An event that names others contradicts its parent: the names were mixed up.
        let namespace = &self.spaces.get(alias.key.space).namespace;
        let contradicts = |own: &Option<Arc<str>>, inherited| own.is_some() && own != inherited;
        if contradicts(&stored.lora, &namespace.lora) || contradicts(&stored.salt, &namespace.salt) {
            return None;
        }
        self.spaces.keep(alias.key.space);
        Some(Origin { space: alias.key.space, parent: Some(alias.key.hash), depth: alias.depth.saturating_add(1) })
    }

    /// Returns whether the owner did not hold the block in that tier before.
    fn hold(&mut self, owner: OwnerId, name: Name, alias: Alias, parent: Option<SequenceHash>, tier: Tier) -> bool {
        let key = alias.key;
        match self.owners.get_mut(owner).aliases.insert(name, alias) {
            Some(old) if old.key == key => {}
            Some(old) => {
                // The name now means another block: nothing can remove the old one any more, so it goes now.
                self.spaces.keep(key.space);
                self.leave_all_tiers(owner, old.key);
                self.spaces.leave(old.key.space);
            }
            None => {
                self.aliases += 1;
                self.spaces.keep(key.space);
            }
        }
        let change = self.blocks.insert(key, Place { parent, depth: alias.depth }, owner, tier);
        if change.block {
            self.spaces.keep(key.space);
        }
        if change.tier {
            let mixed = self.mixed(key);
            let content = &mut self.owners.get_mut(owner).content[tier.index()];
            content.blocks += 1;
            content.digest = content.digest.wrapping_add(mixed);
        }
        if self.owners.get(owner).trusted && self.predictions.remove(key, owner) {
            self.spaces.leave(key.space);
        }
        change.tier
    }

    /// A block the owner holds on its device was announced once more: as a repetition, or as a copy of its own.
    fn store_again(&mut self, owner: OwnerId, key: BlockKey, repeats: bool) {
        if repeats || self.bytes() + COPY_BYTES > self.settings.memory_budget {
            self.copies(owner, |copies| copies.believe(key));
        } else {
            self.copies(owner, |copies| copies.add(key));
        }
    }

    /// Returns whether the owner had a block by that name in that tier.
    fn remove_named(&mut self, owner: OwnerId, name: EngineHash, tier: Tier) -> bool {
        let mut any = false;
        for (size, alias) in self.owners.get(owner).named(name) {
            if tier == Tier::Device && self.take_copy(owner, alias.key, (name, size)) {
                any = true;
                continue;
            }
            any |= self.leave_tier(owner, alias.key, tier);
            self.depart(owner, alias.key, (name, size));
        }
        any
    }

    /// Returns whether there was more than one copy.
    fn take_copy(&mut self, owner: OwnerId, key: BlockKey, name: Name) -> bool {
        let held = self.owners.get(owner).content[Tier::Device.index()].blocks;
        self.copies(owner, |copies| copies.take(key, name, held))
    }

    /// The name of a block that is gone is kept for a while, in place of an older one.
    fn depart(&mut self, owner: OwnerId, key: BlockKey, name: Name) {
        if self.holds(owner, key) {
            return;
        }
        let Some(oldest) = self.owners.get_mut(owner).depart(name) else { return };
        let alias = self.owners.get(owner).aliases.get(&oldest).copied();
        if alias.is_some_and(|alias| !self.holds(owner, alias.key)) {
            self.drop_name(owner, oldest);
        }
    }

    /// Whether one block more fits the budget; unconfirmed entries make room for confirmed ones.
    fn make_room(&mut self, owner: OwnerId, name: Name, alias: Alias) -> bool {
        let known = self.owners.get(owner).aliases.get(&name).is_some_and(|known| known.key == alias.key);
        if known && self.holds(owner, alias.key) {
            return true;
        }
        let most = BLOCK_BYTES + MEMBERSHIP_BYTES + ALIAS_BYTES;
        while self.bytes() + most > self.settings.memory_budget {
            if !self.drop_oldest_prediction() {
                return false;
            }
        }
        true
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
