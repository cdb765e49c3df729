//! Writes the confirmed content to a snapshot.
//!
//! Blocks that are only expected are left out, unless a block behind them is held: then they are
//! saved without a holder, so that no chain is broken.

use std::{
    cmp::Reverse,
    collections::HashMap,
    io::{self, Write},
};

use kv_blocks::{EngineHash, SequenceHash, Tier};

use super::IndexState;
use crate::{
    lookup::SharedIndex,
    namespaces::NamespaceId,
    report::count,
    runs::{NO_RUN, TierSpan},
    snapshot::{
        self, HolderRecord, MemberRecord, NameStretch, NamespaceRecord, ParentLink, RunRecord,
        TargetRecord,
    },
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

/// A run to save.
#[derive(Clone, Copy, Debug, Default)]
struct RunToSave {
    run: u32,
    /// Number of blocks to save: up to the last one that is held or has a child.
    blocks: u32,
    depth: u32,
    /// Time of the last event for the run, or for a run that hangs on it.
    touched: u64,
}

impl IndexState {
    /// Writes the confirmed content: the most recently used runs first, but parents before their
    /// children.
    pub(crate) fn save(
        &mut self,
        core: &SharedIndex,
        to: &mut dyn Write,
    ) -> io::Result<SaveSummary> {
        let mut file = snapshot::SnapshotWriter::new(to, self.settings.scheme)?;
        let targets = self.save_targets(&mut file)?;
        let mut spaces = HashMap::new();
        for chosen in self.choose(core) {
            let Some(id) = self.writer.space(chosen.run) else {
                continue;
            };
            let number = self.save_space(&mut file, &mut spaces, id)?;
            self.save_run(core, &mut file, chosen, number)?;
        }
        Ok(SaveSummary {
            targets,
            namespaces: spaces.len() as u64,
            blocks: self.writer.block_count(),
            memberships: self.counts.memberships,
            bytes: file.finish()?,
        })
    }

    fn save_targets(&self, file: &mut snapshot::SnapshotWriter<'_>) -> io::Result<u64> {
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
        for slot in &slots {
            let owner = self.targets.get(*slot);
            file.target(&TargetRecord {
                slot: *slot,
                target: owner.target,
                model: owner.model.clone(),
                block_sizes: self.names.sizes(*slot).to_vec(),
                member: members.get(slot).copied(),
            })?;
        }
        Ok(slots.len() as u64)
    }

    fn choose(&mut self, core: &SharedIndex) -> Vec<RunToSave> {
        let mut known = vec![RunToSave::default(); self.writer.runs() as usize];
        let mut runs: Vec<(u32, u32)> = (0..self.writer.runs())
            .filter(|run| self.writer.space(*run).is_some())
            .map(|run| (core.heads.get(&core.body, run).depth(), run))
            .collect();
        // A child run is deeper than its parent.
        runs.sort_unstable_by_key(|run| Reverse(*run));
        for (depth, run) in &runs {
            let RunToSave {
                mut blocks,
                touched,
                ..
            } = known[*run as usize];
            let targets = &self.targets;
            let is_in_use = |span: &TierSpan| !targets.get(span.slot).retired;
            self.writer.each_holder(core, *run, |span| {
                blocks = if is_in_use(&span) {
                    blocks.max(span.end)
                } else {
                    blocks
                }
            });
            if blocks == 0 {
                continue;
            }
            let touched = touched.max(self.writer.touched(*run));
            known[*run as usize] = RunToSave {
                run: *run,
                blocks,
                depth: *depth,
                touched,
            };
            let head = core.heads.get(&core.body, *run);
            if head.parent() != NO_RUN {
                let parent = &mut known[head.parent() as usize];
                parent.blocks = parent.blocks.max(head.attach());
                parent.touched = parent.touched.max(touched);
            }
        }
        known.retain(|chosen| chosen.blocks > 0);
        known.sort_unstable_by_key(|chosen| (Reverse(chosen.touched), chosen.depth, chosen.run));
        known
    }

    fn save_space(
        &self,
        file: &mut snapshot::SnapshotWriter<'_>,
        known: &mut HashMap<NamespaceId, u32>,
        id: NamespaceId,
    ) -> io::Result<u32> {
        if let Some(number) = known.get(&id) {
            return Ok(*number);
        }
        let number = count(known.len());
        let namespace = (*self.namespaces.get(id).namespace).clone();
        file.space(&NamespaceRecord { number, namespace })?;
        known.insert(id, number);
        Ok(number)
    }

    fn save_run(
        &mut self,
        core: &SharedIndex,
        file: &mut snapshot::SnapshotWriter<'_>,
        chosen: RunToSave,
        space: u32,
    ) -> io::Result<()> {
        let RunToSave {
            run, blocks, depth, ..
        } = chosen;
        let head = core.heads.get(&core.body, run);
        let hashes: Vec<_> = self
            .writer
            .hashes_of(core, run)
            .take(blocks as usize)
            .map(SequenceHash)
            .collect();
        let holders = self.holders_to_save(core, run);
        let (names, engine) = self.names_to_save(run, blocks);
        let parent = (head.parent() != NO_RUN).then(|| ParentLink {
            run: head.parent(),
            attach: head.attach(),
        });
        file.run(&RunRecord {
            id: run,
            space,
            parent,
            depth,
            hashes: &hashes,
            holders: &holders,
            names: &names,
            engine: &engine,
        })
    }

    fn holders_to_save(&mut self, core: &SharedIndex, run: u32) -> Vec<HolderRecord> {
        let mut holders = Vec::new();
        let targets = &self.targets;
        self.writer.each_holder(core, run, |span| {
            if targets.get(span.slot).retired {
                return;
            }
            holders.push(HolderRecord {
                slot: span.slot,
                tier: Tier::ALL[span.tier as usize],
                start: span.start,
                end: span.end,
            });
        });
        holders
    }

    /// Returns the stretches of engine hashes of a run's first `blocks` blocks, and the hashes.
    fn names_to_save(&self, run: u32, blocks: u32) -> (Vec<NameStretch>, Vec<EngineHash>) {
        let (mut names, mut engine) = (Vec::new(), Vec::new());
        for mut stretch in self.names.names_of(run) {
            // A name may belong to a block that is only expected now.
            stretch
                .names
                .truncate(blocks.saturating_sub(stretch.at) as usize);
            let count = count(stretch.names.len());
            if count > 0 {
                names.push(NameStretch {
                    group: stretch.group,
                    size: stretch.size,
                    at: stretch.at,
                    count,
                });
                engine.append(&mut stretch.names);
            }
        }
        (names, engine)
    }
}
