//! Speculative entries: blocks expected on a target because a request was sent there.

use std::time::Duration;

use kv_blocks::{Namespace, SequenceHash, Target};

use super::{
    IndexState, SpeculationId, SpeculationKind, budget::EvictionEffort,
    speculative_entries::SpeculativeEntry,
};
use crate::{
    lookup::SharedIndex,
    runs::{BlockRange, EXPECTED, SpeculativeBlocks},
    table::{BlockRef, NoFreeLines},
    writer::{ChainPart, RunHolder},
};

/// A chain of blocks that a target is expected to hold for some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedChain<'a> {
    pub(crate) kind: SpeculationKind,
    pub(crate) namespace: &'a Namespace,
    /// The block in front of the chain; without it in the index, nothing is expected.
    pub(crate) parent: Option<SequenceHash>,
    pub(crate) hashes: &'a [SequenceHash],
    /// The beginning of that time, in nanoseconds.
    pub(crate) since: u64,
    pub(crate) ttl: Duration,
}

/// Progress of a speculative entry that is being made.
struct SpeculationProgress {
    slot: u32,
    generation: u64,
    expires: u64,
    /// The entry so far. Its first expiry is `expires`, or later if blocks are renewed.
    entry: SpeculativeEntry,
    last: Option<BlockRef>,
    done: usize,
    effort: EvictionEffort,
}

impl IndexState {
    /// Adds a speculative entry for a chain on a target, for longer than its time if a loss may
    /// prevent its confirmation.
    pub(crate) fn speculate(
        &mut self,
        core: &SharedIndex,
        target: Target,
        expected: ExpectedChain<'_>,
    ) -> SpeculationId {
        self.sweep_expired(core, expected.since);
        let Some(slot) = self.slot(core, target) else {
            return SpeculationId::default();
        };
        let namespace = self.namespaces.enter(expected.namespace);
        let parent = expected
            .parent
            .map(|parent| self.writer.find(core, namespace.key, parent.0));
        if parent == Some(None) {
            self.namespaces.release(namespace.id);
            return SpeculationId::default();
        }
        let max = self.settings.prediction_max_blocks;
        let most = usize::try_from(max).unwrap_or(usize::MAX);
        let chain = ChainPart {
            namespace,
            parent: None,
            hashes: &expected.hashes[..expected.hashes.len().min(most)],
        };
        let mut next = SpeculationProgress {
            slot,
            generation: self.speculative.next_generation(),
            expires: self.expiry(slot, expected),
            entry: SpeculativeEntry {
                kind: expected.kind,
                ends: u64::MAX,
                runs: Vec::new(),
                blocks: 0,
            },
            last: parent.flatten(),
            done: 0,
            effort: EvictionEffort::default(),
        };
        self.writer.pin(next.last);
        self.expect_chain(core, chain, &mut next);
        self.namespaces.release(namespace.id);
        let (generation, blocks) = (next.generation, next.entry.blocks);
        self.speculative.add(generation, next.entry);
        self.release_pin(core);
        self.prune_for(core, generation, blocks);
        self.stay_within_budget(core);
        SpeculationId {
            generation: if blocks > 0 { generation } else { 0 },
        }
    }

    /// Returns when an entry of a slot expires.
    fn expiry(&self, slot: u32, expected: ExpectedChain<'_>) -> u64 {
        let ttl = if self.targets.get(slot).torn {
            expected.ttl.max(self.settings.unconfirmed_ttl)
        } else {
            expected.ttl
        };
        let nanoseconds = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        expected.since.saturating_add(nanoseconds)
    }

    /// Adds the blocks of a chain to an entry, stretch by stretch, as far as there is room.
    fn expect_chain(
        &mut self,
        core: &SharedIndex,
        chain: ChainPart<'_>,
        next: &mut SpeculationProgress,
    ) {
        while next.done < chain.hashes.len() {
            match self.expect_stretch(core, chain, next) {
                Ok(Some(blocks)) => {
                    next.last = Some(blocks.last());
                    next.done += blocks.count() as usize;
                    next.effort = EvictionEffort::default();
                    self.writer.pin(next.last);
                }
                Ok(None) => break,
                Err(NoFreeLines) => {
                    let made = self.make_room(core, Some(next.generation), &mut next.effort);
                    if made.is_err() {
                        break;
                    }
                }
            }
        }
    }

    /// Adds the next stretch of a chain; `None` if the chain has another parent. Without room,
    /// nothing of the stretch is expected.
    fn expect_stretch(
        &mut self,
        core: &SharedIndex,
        chain: ChainPart<'_>,
        next: &mut SpeculationProgress,
    ) -> Result<Option<BlockRange>, NoFreeLines> {
        let rest = ChainPart {
            parent: next.last,
            hashes: &chain.hashes[next.done..],
            ..chain
        };
        let Ok(known) = self.writer.locate(core, rest) else {
            return Ok(None);
        };
        let (slot, generation, expires) = (next.slot, next.generation, next.expires);
        let (blocks, new, ends) = if let Some(blocks) = known {
            let trusted = self.targets.get(slot).is_credited();
            let expected = SpeculativeBlocks {
                span: blocks.span_of(slot, EXPECTED),
                expires,
                generation,
            };
            let (new, ends) = self
                .writer
                .add_speculative(core, blocks.run, expected, trusted)?;
            (blocks, new, ends)
        } else {
            let part = ChainPart {
                hashes: next.effort.part(rest.hashes),
                ..rest
            };
            let holder = RunHolder::Expected {
                slot,
                expires,
                generation,
            };
            let blocks = self.make(core, part, holder)?;
            (blocks, blocks.count(), expires)
        };
        if new > 0 {
            next.entry.blocks += u64::from(new);
            next.entry.runs.push(blocks.run);
            next.entry.ends = next.entry.ends.min(ends);
        }
        Ok(Some(blocks))
    }
}
