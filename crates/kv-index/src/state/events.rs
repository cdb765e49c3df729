//! What a target's stream says: stored, removed, cleared.

use std::sync::Arc;

use kv_blocks::{EngineHash, Identity, Namespace, Removed, SequenceHash, Stored, Target, Tier};

use super::{ALIAS_BYTES, BLOCK_BYTES, MEMBERSHIP_BYTES, State};
use crate::{
    Applied,
    blocks::{BlockKey, Place},
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
        for (name, tokens) in stored.hashes.iter().zip(stored.tokens.chunks_exact(size.len())) {
            let hash = self.settings.scheme.extend(parent, tokens);
            let alias = Alias { key: BlockKey { space, hash }, depth };
            if !self.make_room(owner, (*name, size), alias) {
                // The rest would be out of reach behind this one.
                self.shed += u64::from(all - applied);
                break;
            }
            self.hold(owner, (*name, size), alias, parent, stored.tier);
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
            let known = owner.is_some_and(|owner| self.remove_named(owner, *name, removed.tier));
            *(if known { &mut done.applied } else { &mut done.ignored }) += 1;
        }
        done
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

    fn hold(&mut self, owner: OwnerId, name: Name, alias: Alias, parent: Option<SequenceHash>, tier: Tier) {
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
        if self.predictions.remove(key, owner) {
            self.spaces.leave(key.space);
        }
    }

    /// Returns whether the owner had a block by that name in that tier.
    fn remove_named(&mut self, owner: OwnerId, name: EngineHash, tier: Tier) -> bool {
        let mut any = false;
        for (size, alias) in self.owners.get(owner).named(name) {
            any |= self.leave_tier(owner, alias.key, tier);
            if !self.holds(owner, alias.key)
                && let Some(oldest) = self.owners.get_mut(owner).depart(name, size)
            {
                let alias = self.owners.get(owner).aliases.get(&oldest).copied();
                if alias.is_some_and(|alias| !self.holds(owner, alias.key)) {
                    self.drop_name(owner, oldest);
                }
            }
        }
        any
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
