//! Copies the confirmed content for a snapshot, piece by piece.

use std::{collections::HashMap, ops::ControlFlow};

use kv_blocks::{SequenceHash, Tier};

use super::{IndexState, targets::OwnBlockSize};
use crate::{
    index_copy::{CopyEnd, RunCopies, RunIdentity},
    lookup::SharedIndex,
    report::count,
    runs::NO_RUN,
    snapshot::{HolderRecord, MemberRecord, NameStretch, ParentLink, TargetRecord},
};

/// Content of a written snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveSummary {
    /// Targets that are registered or hold blocks.
    pub targets: u64,
    /// Namespaces with blocks in them.
    pub namespaces: u64,
    /// Distinct blocks with a holder.
    pub blocks: u64,
    /// Pairs of block and target.
    pub memberships: u64,
    /// Length of the snapshot, bytes. An index with a smaller memory budget refuses it.
    pub bytes: u64,
}

/// Items that visiting a run costs beside its own.
const RUN_ITEMS: usize = 16;

/// Which part of the content to copy next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceToCopy {
    /// The run to continue with.
    pub(crate) from: u32,
    /// Items to copy, about.
    pub(crate) room: usize,
    /// Whether the copy ends only between batches: not while one is applied in part.
    pub(crate) whole_batches: bool,
}

impl IndexState {
    /// Begins a copy; ends one that was not completed.
    pub(crate) fn begin_copy(&mut self) {
        self.writer.changed.reset();
        self.names.changed().reset();
        for state in self.targets.states() {
            state.copies.begin_save();
        }
    }

    /// Copies the next items: first the runs from `from` on, then those that have changed since they
    /// were copied, then the counted blocks of targets. Returns the run to continue with, or, if
    /// nothing is left to copy, the rest of the content at this instant.
    pub(crate) fn copy_piece(
        &mut self,
        core: &SharedIndex,
        piece: &mut RunCopies,
        to_copy: PieceToCopy,
    ) -> Result<CopyEnd, u32> {
        let (mut next, mut room) = (to_copy.from, to_copy.room);
        while room > 0 {
            let run = if next < self.writer.runs() {
                next += 1;
                next - 1
            } else if let Some(changed) = self.take_changed() {
                changed
            } else if self.copy_counted(piece, room).is_break()
                || to_copy.whole_batches
                    && self.targets.states().any(|state| state.is_within_batch())
            {
                break;
            } else {
                let end = self.copy_end();
                self.begin_copy();
                return Ok(end);
            };
            let items = self.copy_run(core, piece, run) + RUN_ITEMS;
            room = room.saturating_sub(items);
        }
        self.writer.changed.note_copied(next);
        self.names.changed().note_copied(next);
        Err(next)
    }

    fn take_changed(&mut self) -> Option<u32> {
        let run = self.writer.changed.take();
        run.or_else(|| self.names.changed().take())
    }

    /// Copies the counted blocks of targets of which the copy has others or none. Breaks when
    /// `room` items are copied.
    fn copy_counted(&mut self, piece: &mut RunCopies, mut room: usize) -> ControlFlow<()> {
        for (slot, state) in (0..).zip(self.targets.slots_mut()) {
            let Some(blocks) = state.as_mut().and_then(|state| state.copies.take_unsaved()) else {
                continue;
            };
            let items = blocks.len();
            piece.add_counted(slot, blocks);
            match room.checked_sub(items) {
                Some(left) => room = left,
                None => return ControlFlow::Break(()),
            }
        }
        ControlFlow::Continue(())
    }

    /// Copies a run. Returns the number of copied items.
    fn copy_run(&mut self, core: &SharedIndex, piece: &mut RunCopies, run: u32) -> usize {
        let Some(space) = self.writer.space(run) else {
            piece.add_freed(run);
            return 0;
        };
        let start = piece.start();
        piece.add_space(space, &self.namespaces.get(space).namespace);
        piece
            .hashes
            .extend(self.writer.hashes_of(core, run).map(SequenceHash));
        let holders = &mut piece.holders;
        self.writer.each_holder(core, run, |span| {
            holders.push(HolderRecord {
                slot: span.slot,
                tier: Tier::ALL[span.tier as usize],
                start: span.start,
                end: span.end,
            });
        });
        for mut stretch in self.names.all_names_of(run) {
            piece.names.push(NameStretch {
                group: stretch.group,
                size: stretch.size,
                at: stretch.at,
                count: count(stretch.names.len()),
            });
            piece.engine.append(&mut stretch.names);
        }
        let head = core.heads.get(&core.body, run);
        let parent = (head.parent() != NO_RUN).then(|| ParentLink {
            run: head.parent(),
            attach: head.attach(),
        });
        piece.complete(
            start,
            RunIdentity {
                run,
                space,
                parent,
                depth: head.depth(),
                touched: self.writer.touched(run),
            },
        )
    }

    fn copy_end(&self) -> CopyEnd {
        CopyEnd {
            targets: self.target_records(),
            removals: self.removals(),
            blocks: self.writer.block_count(),
            memberships: self.counts.memberships,
        }
    }

    fn removals(&self) -> HashMap<u32, u64> {
        let slots = self.targets.iter().map(|(_, slot)| slot);
        let copies = slots.map(|slot| (slot, &self.targets.get(slot).copies));
        let counted = copies.filter(|(_, copies)| !copies.is_empty());
        counted
            .map(|(slot, copies)| (slot, copies.removals()))
            .collect()
    }

    fn target_records(&self) -> Vec<TargetRecord> {
        let members: HashMap<u32, MemberRecord> = self
            .names
            .members()
            .map(|of| {
                (
                    of.member,
                    MemberRecord {
                        group: of.group,
                        common: of.common,
                        proven: of.proven,
                    },
                )
            })
            .collect();
        let mut slots: Vec<u32> = self.targets.iter().map(|(_, slot)| slot).collect();
        slots.retain(|slot| {
            self.targets.get(*slot).model.is_some() || self.targets.get(*slot).block_count > 0
        });
        slots.sort_unstable();
        let record = |slot| {
            let owner = self.targets.get(slot);
            TargetRecord {
                slot,
                target: owner.target,
                model: owner.model.clone(),
                block_size: owner.block_size.map(OwnBlockSize::size),
                block_sizes: self.names.sizes(slot).to_vec(),
                member: members.get(&slot).copied(),
                position: self.position_to_save(slot),
            }
        };
        slots.into_iter().map(record).collect()
    }
}
