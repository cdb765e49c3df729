//! Copies the confirmed content for a snapshot, piece by piece.

use std::collections::HashMap;

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

impl IndexState {
    /// Begins a copy; ends one that was not completed.
    pub(crate) fn begin_copy(&mut self) {
        self.writer.changed.reset();
        self.names.changed().reset();
    }

    /// Copies the next runs, about `room` items: first those from run `from` on, then those that
    /// have changed since they were copied. Returns the run to continue with, or, if nothing is
    /// left to copy, the rest of the content at this instant.
    pub(crate) fn copy_piece(
        &mut self,
        core: &SharedIndex,
        piece: &mut RunCopies,
        from: u32,
        room: usize,
    ) -> Result<CopyEnd, u32> {
        let (mut next, mut room) = (from, room);
        while room > 0 {
            let run = if next < self.writer.runs() {
                next += 1;
                next - 1
            } else if let Some(changed) = self.take_changed() {
                changed
            } else {
                self.begin_copy();
                return Ok(self.copy_end());
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
            blocks: self.writer.block_count(),
            memberships: self.counts.memberships,
        }
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
