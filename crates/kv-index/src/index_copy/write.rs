//! Writes a complete copy as a snapshot.
//!
//! Blocks that were only expected are left out, unless a block behind them is held: then they are
//! saved without a holder, so that no chain is broken.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    io::{self, Write},
};

use kv_blocks::HashScheme;

use super::{CopyEnd, IndexCopy, RunCopy};
use crate::{
    namespaces::NamespaceId,
    report::count,
    snapshot::{CopyRecord, HolderRecord, NameStretch, NamespaceRecord, RunRecord, SnapshotWriter},
    state::SaveSummary,
};

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

/// The slots and hash groups that records may refer to.
struct SavedNumbers {
    slots: HashSet<u32>,
    groups: HashSet<u32>,
    /// The copies in each run, in the order of their slots.
    copies: HashMap<u32, Vec<CopyRecord>>,
}

impl IndexCopy {
    /// Writes the content: the most recently used runs first, but parents before their children.
    pub(crate) fn write(
        self,
        end: &CopyEnd,
        scheme: HashScheme,
        to: &mut dyn Write,
    ) -> io::Result<SaveSummary> {
        let members = end.targets.iter().filter_map(|target| target.member);
        let numbers = SavedNumbers {
            slots: end.targets.iter().map(|target| target.slot).collect(),
            groups: members.map(|member| member.group).collect(),
            copies: self.copies_by_run(end),
        };
        let mut file = SnapshotWriter::new(to, scheme)?;
        for target in &end.targets {
            file.target(target)?;
        }
        let mut spaces = HashMap::new();
        for chosen in self.choose(&numbers) {
            if let Some(copy) = self.latest(chosen.run) {
                let number = self.write_space(&mut file, &mut spaces, copy.space)?;
                self.write_run(&mut file, copy, (chosen.blocks, number), &numbers)?;
            }
        }
        Ok(SaveSummary {
            targets: end.targets.len() as u64,
            namespaces: spaces.len() as u64,
            blocks: end.blocks,
            memberships: end.memberships,
            bytes: file.finish()?,
        })
    }

    fn copies_by_run(&self, end: &CopyEnd) -> HashMap<u32, Vec<CopyRecord>> {
        let mut by_run: HashMap<u32, Vec<CopyRecord>> = HashMap::new();
        for target in &end.targets {
            let removals = end.removals.get(&target.slot).copied().unwrap_or(0);
            for counted in self.counted.get(&target.slot).into_iter().flatten() {
                by_run
                    .entry(counted.block.run)
                    .or_default()
                    .push(CopyRecord {
                        slot: target.slot,
                        at: counted.block.at,
                        spare: counted.spare,
                        lapses_after: counted.lapses.map(|at| at.saturating_sub(removals)),
                    });
            }
        }
        by_run
    }

    fn choose(&self, numbers: &SavedNumbers) -> Vec<RunToSave> {
        let mut known = vec![RunToSave::default(); self.latest.len()];
        let mut runs: Vec<&RunCopy> = (0..count(self.latest.len()))
            .filter_map(|run| self.latest(run))
            .collect();
        // A child run is deeper than its parent.
        runs.sort_unstable_by_key(|copy| Reverse((copy.depth, copy.run)));
        for copy in runs {
            let RunToSave {
                blocks, touched, ..
            } = known[copy.run as usize];
            let holders = self.copies.holders[copy.holders.clone()].iter();
            let held = holders.filter(|holder| numbers.slots.contains(&holder.slot));
            let blocks = held.map(|holder| holder.end).fold(blocks, u32::max);
            if blocks == 0 {
                continue;
            }
            let touched = touched.max(copy.touched);
            known[copy.run as usize] = RunToSave {
                run: copy.run,
                blocks,
                depth: copy.depth,
                touched,
            };
            if let Some(link) = copy.parent {
                let parent = &mut known[link.run as usize];
                parent.blocks = parent.blocks.max(link.attach);
                parent.touched = parent.touched.max(touched);
            }
        }
        known.retain(|chosen| chosen.blocks > 0);
        known.sort_unstable_by_key(|chosen| (Reverse(chosen.touched), chosen.depth, chosen.run));
        known
    }

    fn write_space(
        &self,
        file: &mut SnapshotWriter<'_>,
        known: &mut HashMap<NamespaceId, u32>,
        id: NamespaceId,
    ) -> io::Result<u32> {
        if let Some(number) = known.get(&id) {
            return Ok(*number);
        }
        let number = count(known.len());
        let namespace = self
            .spaces
            .get(&id)
            .expect("each copied run comes with its namespace");
        file.space(&NamespaceRecord {
            number,
            namespace: (**namespace).clone(),
        })?;
        known.insert(id, number);
        Ok(number)
    }

    fn write_run(
        &self,
        file: &mut SnapshotWriter<'_>,
        copy: &RunCopy,
        (blocks, space): (u32, u32),
        numbers: &SavedNumbers,
    ) -> io::Result<()> {
        let hashes = &self.copies.hashes[copy.hashes.clone()];
        let held = self.copies.holders[copy.holders.clone()].iter();
        let held = held.filter(|holder| numbers.slots.contains(&holder.slot));
        let holders: Vec<HolderRecord> = held.copied().collect();
        let (mut names, mut engine) = (Vec::new(), Vec::new());
        let mut rest = &self.copies.engine[copy.engine.clone()];
        for stretch in &self.copies.names[copy.names.clone()] {
            let (own, others) = rest.split_at(stretch.count as usize);
            rest = others;
            // A name may belong to a block that is only expected now.
            let count = stretch.count.min(blocks.saturating_sub(stretch.at));
            if count > 0 && numbers.groups.contains(&stretch.group) {
                names.push(NameStretch { count, ..*stretch });
                engine.extend_from_slice(&own[..count as usize]);
            }
        }
        file.run(&RunRecord {
            id: copy.run,
            space,
            parent: copy.parent,
            depth: copy.depth,
            hashes: &hashes[..blocks as usize],
            holders: &holders,
            names: &names,
            engine: &engine,
            copies: numbers.copies.get(&copy.run).map_or(&[], Vec::as_slice),
        })
    }
}
