//! What a target's stream says was stored: of what namespace it is, and what it hangs on.

use std::sync::Arc;

use kv_blocks::{Identity, Namespace, SequenceHash, Stored, Target, Tier};

use super::{Books, holding::Chain};
use crate::{
    Applied,
    lookup::Core,
    orphans::{Hashed, Late, Scope},
    spaces,
    table::Spot,
    writer::Home,
};

/// What an event's first block hangs on.
enum Origin {
    /// The namespace, and the block before; `None` begins a sequence.
    Known(Home, Option<Spot>),
    /// It may come yet.
    Unknown,
    /// The event says otherwise than its parent.
    Contradicted,
}

impl Books {
    pub(crate) fn store(&mut self, core: &Core, target: Target, stored: &Stored) -> Applied {
        let refused = Applied {
            ignored: count(stored.hashes.len()),
            ..Applied::default()
        };
        let Some(slot) = self.targets.find(target) else {
            return refused;
        };
        let size = stored.block_size;
        let fits = stored.tokens.len() == stored.hashes.len().saturating_mul(size.len());
        if !fits || self.targets.get(slot).model.is_none() || !self.names.admits(slot, size) {
            return refused;
        }
        let applied = self.store_named(core, slot, stored);
        self.graft(core, slot);
        applied
    }

    /// What waited for blocks that were stored just now comes after them, and what waited for that.
    fn graft(&mut self, core: &Core, slot: u32) {
        while let Some(late) = self.arrived.pop_front() {
            match late {
                Late::Named(stored) => self.store_named(core, slot, &stored),
                Late::Hashed(hashed) => self.store_hashed(core, slot, hashed),
            };
        }
    }

    pub(super) fn note_arrivals(&mut self, chain: &Chain<'_>, done: usize) {
        if self.orphans.is_empty() {
            return;
        }
        let Chain {
            slot, home, hashes, ..
        } = *chain;
        for hash in &hashes[..done] {
            self.arrived
                .extend(self.orphans.arrived(slot, Scope::Space(home.key), hash.0));
        }
        if let Some((names, size)) = chain.names {
            for name in &names[..done] {
                self.arrived.extend(
                    self.orphans
                        .arrived(slot, Scope::Size(size.tokens()), name.0),
                );
            }
        }
    }

    fn store_named(&mut self, core: &Core, slot: u32, stored: &Stored) -> Applied {
        let all = count(stored.hashes.len());
        let (home, parent) = match self.origin(core, slot, stored) {
            Origin::Known(home, parent) => (home, parent),
            other => {
                self.orphaned += u64::from(all);
                if matches!(other, Origin::Unknown) {
                    self.orphans.keep(slot, Late::Named(stored.clone()));
                    self.stay_within_budget(core);
                }
                return Applied {
                    orphans: all,
                    ..Applied::default()
                };
            }
        };
        let mut last = parent.map(|parent| SequenceHash(self.writer.hash(core, parent)));
        let scheme = self.settings.scheme;
        let blocks = stored.tokens.chunks_exact(stored.block_size.len());
        let hashes: Vec<_> = blocks
            .map(|tokens| {
                let hash = scheme.extend(last, tokens);
                last = Some(hash);
                hash
            })
            .collect();
        let names = Some((&stored.hashes[..], stored.block_size));
        let applied = self.hold(
            core,
            &Chain {
                slot,
                tier: stored.tier,
                home,
                parent,
                hashes: &hashes,
                names,
            },
        );
        self.spaces.leave(home.id);
        applied
    }

    /// Blocks that are named by their rolling hashes.
    pub(crate) fn store_hashes(
        &mut self,
        core: &Core,
        target: Target,
        namespace: &Namespace,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        tier: Tier,
    ) -> Applied {
        let all = count(hashes.len());
        let Some(slot) = self.targets.find(target) else {
            return Applied {
                ignored: all,
                ..Applied::default()
            };
        };
        let space = spaces::key(namespace, self.secret);
        let hashed = Hashed {
            namespace: namespace.clone(),
            space,
            parent,
            hashes: hashes.to_vec(),
            tier,
        };
        let applied = self.store_hashed(core, slot, hashed);
        self.graft(core, slot);
        applied
    }

    fn store_hashed(&mut self, core: &Core, slot: u32, hashed: Hashed) -> Applied {
        let parent = match hashed
            .parent
            .map(|parent| self.writer.find(core, hashed.space, parent.0))
        {
            Some(None) => {
                let all = count(hashed.hashes.len());
                self.orphaned += u64::from(all);
                self.orphans.keep(slot, Late::Hashed(hashed));
                self.stay_within_budget(core);
                return Applied {
                    orphans: all,
                    ..Applied::default()
                };
            }
            known => known.flatten(),
        };
        let home = self.enter(&hashed.namespace);
        let (tier, hashes) = (hashed.tier, &hashed.hashes[..]);
        let applied = self.hold(
            core,
            &Chain {
                slot,
                tier,
                home,
                parent,
                hashes,
                names: None,
            },
        );
        self.spaces.leave(home.id);
        applied
    }

    /// Where an event's first block hangs, with one use of its namespace.
    fn origin(&mut self, core: &Core, slot: u32, stored: &Stored) -> Origin {
        let Some(model) = self.targets.get(slot).model.clone() else {
            return Origin::Contradicted;
        };
        let Some(parent) = stored.parent else {
            let namespace = Namespace {
                model,
                lora: stored.lora.clone(),
                salt: stored.salt.clone(),
                block_size: stored.block_size,
                identity: Identity::Tokens,
            };
            return Origin::Known(self.enter(&namespace), None);
        };
        // Another target's word for the parent is good only if the two are known to mean the same.
        let known = self.names.resolve(slot, parent, stored.block_size);
        let known = known.filter(|known| known.proven || self.writer.holds(core, known.spot, slot));
        let Some((spot, id)) =
            known.and_then(|known| Some((known.spot, self.writer.space(known.spot.run)?)))
        else {
            return Origin::Unknown;
        };
        // Adapter and salt are inherited. An event that names others contradicts its parent: the names were mixed up.
        let namespace = &self.spaces.get(id).namespace;
        let contradicts = |own: &Option<Arc<str>>, inherited| own.is_some() && own != inherited;
        if contradicts(&stored.lora, &namespace.lora)
            || contradicts(&stored.salt, &namespace.salt)
            || namespace.block_size != stored.block_size
            || namespace.model != model
        {
            return Origin::Contradicted;
        }
        self.spaces.keep(id);
        Origin::Known(self.home(id), Some(spot))
    }
}

pub(super) fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
