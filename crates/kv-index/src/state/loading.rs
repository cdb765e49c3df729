//! Loads a snapshot into an empty index.
//!
//! The snapshot was checked as a whole before. Content without room is left out and counted as
//! shed; the most recently used runs come first, so the oldest are left out.

use std::collections::HashMap;

use kv_blocks::HashScheme;

use super::{
    IndexState,
    targets::{OwnBlockSize, hash_group},
};
use crate::{
    SnapshotError,
    copies::CountedBlock,
    engine_hashes::{GroupMembership, NamedStretch},
    lookup::SharedIndex,
    namespaces::RunNamespace,
    runs::{TierSpan, tier_number},
    snapshot::{ParentLink, RunRecord, SnapshotContent, TargetRecord},
    table::{BlockRef, NoFreeLines},
    writer::ChainPart,
};

/// Content loaded from a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSummary {
    /// Targets of the snapshot that are registered now.
    pub targets: u64,
    /// Namespaces with blocks in them.
    pub namespaces: u64,
    /// Distinct blocks with a holder.
    pub blocks: u64,
    /// Pairs of block and target.
    pub memberships: u64,
    /// Blocks of the snapshot that were left out, or evicted again, for lack of room.
    pub shed: u64,
    /// Length of the snapshot, bytes.
    pub bytes: u64,
}

/// When loaded blocks are credited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadRule {
    /// At once.
    CreditAll,
    /// Once the target's stream has proven that it continues at the saved position. Targets without
    /// a position get no blocks.
    AwaitProof,
}

/// Bytes that a block or an engine hash takes at most, in runs of a few blocks.
const BYTES_PER_BLOCK: u64 = 64;

/// Map from a snapshot's numbers to those of the index.
#[derive(Debug, Default)]
struct NumberMap {
    namespaces: HashMap<u32, RunNamespace>,
    slots: HashMap<u32, u32>,
    /// A member of each hash group.
    members: HashMap<u32, u32>,
    runs: HashMap<u32, u32>,
}

impl IndexState {
    /// Returns the hash scheme and the maximum bytes of loadable snapshots.
    pub(crate) fn loadable(&self) -> Result<(HashScheme, u64), SnapshotError> {
        match self.writer.blocks() {
            0 => Ok((self.settings.scheme, self.settings.memory_budget)),
            blocks => Err(SnapshotError::NotEmpty { blocks }),
        }
    }

    /// Loads a snapshot.
    pub(crate) fn load(
        &mut self,
        core: &SharedIndex,
        content: &SnapshotContent,
        rule: LoadRule,
    ) -> Result<LoadSummary, SnapshotError> {
        self.loadable()?;
        let shed = self.counts.shed;
        let mut numbers = NumberMap::default();
        for record in content.targets() {
            self.load_target(core, record, rule, &mut numbers);
        }
        for record in content.spaces() {
            numbers
                .namespaces
                .insert(record.number, self.namespaces.enter(&record.namespace));
        }
        self.reserve_for(core, content);
        // Runs with blocks at their end that may have no holder.
        let mut ragged = Vec::new();
        let mut touched = content.runs().len() as u64;
        for record in content.runs() {
            match self.load_run(core, &record, &mut numbers, touched) {
                Ok((run, reach)) if (reach as usize) < record.hashes.len() => ragged.push(run),
                Ok(_) => {}
                Err(NoFreeLines) => self.counts.shed += record.hashes.len() as u64,
            }
            touched -= 1;
        }
        for home in numbers.namespaces.values() {
            self.namespaces.release(home.id);
        }
        while let Some(run) = ragged.pop() {
            self.writer.release(core, run);
        }
        self.apply_effects();
        self.stay_within_budget(core);
        Ok(LoadSummary {
            targets: numbers.slots.len() as u64,
            namespaces: self.namespaces.len() as u64,
            blocks: self.writer.block_count(),
            memberships: self.counts.memberships,
            shed: self.counts.shed - shed,
            bytes: content.bytes(),
        })
    }

    /// Enlarges the tables for the content, if there is room for it beyond doubt.
    fn reserve_for(&mut self, core: &SharedIndex, content: &SnapshotContent) {
        let (blocks, hashes) = content.sizes();
        if (blocks + hashes) * BYTES_PER_BLOCK < self.settings.memory_budget {
            self.writer.reserve(core, blocks);
            self.names.reserve(hashes);
        }
    }

    /// Registers a target from its record, unless it serves another model by now.
    fn load_target(
        &mut self,
        core: &SharedIndex,
        record: &TargetRecord,
        rule: LoadRule,
        numbers: &mut NumberMap,
    ) {
        if rule == LoadRule::AwaitProof && record.position.is_none() {
            return;
        }
        let Some(slot) = self.slot(core, record.target) else {
            return;
        };
        let known = &self.targets.get(slot).model;
        if known.is_some() && *known != record.model {
            return;
        }
        if let Some(position) = record.position.filter(|_| rule == LoadRule::AwaitProof) {
            self.await_proof(core, slot, position);
        }
        numbers.slots.insert(record.slot, slot);
        let owner = self.targets.get_mut(slot);
        owner.block_size = owner
            .block_size
            .or(record.block_size.map(OwnBlockSize::Shown));
        let Some(model) = &record.model else { return };
        self.targets.get_mut(slot).model = Some(model.clone());
        match record.member {
            None => self.names.join(slot, hash_group(model)),
            Some(was) => {
                let relative = numbers.members.get(&was.group).copied();
                let membership = GroupMembership {
                    member: slot,
                    group: was.group,
                    common: was.common,
                    proven: was.proven,
                };
                self.names
                    .restore_member(hash_group(model), membership, relative);
                numbers.members.entry(was.group).or_insert(slot);
            }
        }
        for size in &record.block_sizes {
            self.names.admits(slot, *size);
        }
    }

    /// Makes a run with its holders and names, behind its parent; returns its number in this index,
    /// and the end of its held blocks.
    fn load_run(
        &mut self,
        core: &SharedIndex,
        record: &RunRecord<'_>,
        numbers: &mut NumberMap,
        touched: u64,
    ) -> Result<(u32, u32), NoFreeLines> {
        self.writer.other_bytes = self.reserve_extra();
        if self.writer.over_budget(core) {
            return Err(NoFreeLines);
        }
        let behind = |parent: ParentLink| {
            // A parent without room drops the runs that hang on it.
            numbers
                .runs
                .get(&parent.run)
                .map(|run| BlockRef {
                    run: *run,
                    at: parent.attach - 1,
                })
                .ok_or(NoFreeLines)
        };
        let part = ChainPart {
            namespace: numbers.namespaces[&record.space],
            parent: record.parent.map(behind).transpose()?,
            hashes: record.hashes,
        };
        let known = record
            .holders
            .iter()
            .filter_map(|holder| Some((numbers.slots.get(&holder.slot)?, holder)));
        let mut tier_spans: Vec<TierSpan> = known
            .map(|(slot, holder)| TierSpan {
                slot: *slot,
                tier: tier_number(holder.tier),
                start: holder.start,
                end: holder.end,
            })
            .collect();
        let run = self.writer.restore(core, part, &mut tier_spans, touched)?;
        self.namespaces.add_use(part.namespace.id);
        numbers.runs.insert(record.id, run);
        let reach = tier_spans.iter().map(|span| span.end).max().unwrap_or(0);
        for spans in tier_spans.chunk_by_mut(|one, next| one.slot == next.slot) {
            self.count_spans(spans);
        }
        self.load_names(record, numbers, run);
        self.load_copies(record, numbers, run);
        Ok((run, reach))
    }

    fn load_names(&mut self, record: &RunRecord<'_>, numbers: &NumberMap, run: u32) {
        for (stretch, names) in record.named() {
            if let Some(member) = numbers.members.get(&stretch.group) {
                let stretch = NamedStretch {
                    group: stretch.group,
                    size: stretch.size,
                    at: stretch.at,
                    names: names.to_vec(),
                };
                self.names.restore_hashes(*member, run, &stretch);
            }
        }
    }

    fn load_copies(&mut self, record: &RunRecord<'_>, numbers: &NumberMap, run: u32) {
        for copy in record.copies {
            let Some(slot) = numbers.slots.get(&copy.slot) else {
                continue;
            };
            self.targets.copies(*slot, |copies| {
                let lapses = copy
                    .lapses_after
                    .map(|after| copies.removals().saturating_add(after));
                copies.restore(CountedBlock {
                    block: BlockRef { run, at: copy.at },
                    spare: copy.spare,
                    lapses,
                });
            });
        }
    }

    /// Counts the blocks of one run that one slot holds.
    fn count_spans(&mut self, spans: &mut [TierSpan]) {
        spans.sort_unstable_by_key(|span| span.start);
        let mut end = 0;
        for TierSpan {
            slot,
            tier,
            start,
            end: to,
        } in spans.iter().copied()
        {
            let new = to.saturating_sub(start.max(end));
            end = end.max(to);
            self.count(slot, tier, i64::from(to - start), i64::from(new));
        }
    }
}
