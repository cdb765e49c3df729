//! Runs, with their holders and names.

use kv_blocks::Tier;

use super::{ReadResult, SnapshotReader};
use crate::snapshot::{
    CopyRecord, HolderRecord, MAX_RUN_BLOCKS, NameStretch, ParentLink, SnapshotError,
    content::SnapshotRun, cursor::Cursor,
};

impl SnapshotReader {
    pub(super) fn run(&mut self, page: &mut Cursor<'_>) -> ReadResult {
        self.close(page)?;
        let (id, space) = (page.u32()?, page.u32()?);
        let parent = if page.flag()? {
            Some(ParentLink {
                run: page.u32()?,
                attach: page.u32()?,
            })
        } else {
            None
        };
        let (depth, count) = (page.u32()?, page.u32()?);
        if !self.spaces.contains(&space) {
            return Err(page.damaged(format!(
                "run {id} in namespace {space}, expected one that came before"
            )));
        }
        let expected_depth =
            parent.map_or(Ok(0), |parent| self.depth_behind(page, id, space, parent))?;
        if u64::from(depth) != expected_depth {
            return Err(page.damaged(format!(
                "run {id} at depth {depth}, expected {expected_depth}"
            )));
        }
        if count == 0 || count as usize > MAX_RUN_BLOCKS {
            return Err(page.damaged(format!(
                "run {id} of {count} blocks, expected 1 to {MAX_RUN_BLOCKS}"
            )));
        }
        let content = &mut self.content;
        if self.runs.insert(id, content.runs.len()).is_some() {
            return Err(page.damaged(format!("run {id} a second time, expected another id")));
        }
        let first = content.hashes.len();
        page.sequence_hashes(count, &mut content.hashes)?;
        let hashes = first..content.hashes.len();
        let (holders, names, engine, copies) = (
            content.holders.len(),
            content.names.len(),
            content.engine.len(),
            content.copies.len(),
        );
        content.runs.push(SnapshotRun {
            id,
            space,
            parent,
            depth,
            hashes,
            holders: holders..holders,
            names: names..names,
            engine: engine..engine,
            copies: copies..copies,
        });
        Ok(())
    }

    /// Returns the number of blocks in front of a run that continues `parent`.
    fn depth_behind(
        &self,
        page: &Cursor<'_>,
        id: u32,
        space: u32,
        parent: ParentLink,
    ) -> Result<u64, SnapshotError> {
        let ParentLink { run, attach } = parent;
        let Some(found) = self
            .runs
            .get(&run)
            .map(|position| &self.content.runs[*position])
        else {
            return Err(page.damaged(format!(
                "run {id} continues run {run}, expected one that came before"
            )));
        };
        if found.space != space {
            let other = found.space;
            return Err(page.damaged(format!(
                "run {id} in namespace {space} continues run {run}, expected {other}"
            )));
        }
        let length = found.hashes.len();
        if attach == 0 || attach as usize > length {
            return Err(page.damaged(format!(
                "run {id} behind {attach} blocks of run {run}, expected 1 to {length}"
            )));
        }
        Ok(u64::from(found.depth) + u64::from(attach))
    }

    pub(super) fn holders(&mut self, page: &mut Cursor<'_>) -> ReadResult {
        let (start, end) = (page.u32()?, page.u32()?);
        let tier = match page.u8()? {
            0 => Tier::Device,
            1 => Tier::Host,
            2 => Tier::Disk,
            3 => Tier::Remote,
            other => return Err(page.damaged(format!("tier {other}, expected 0 to 3"))),
        };
        self.inside_run(page, "held", u64::from(start), u64::from(end))?;
        for _ in 0..page.u32()? {
            let slot = page.u32()?;
            if !self.slots.contains(&slot) {
                return Err(page.damaged(format!(
                    "a holder in slot {slot}, expected one that came before"
                )));
            }
            self.content.holders.push(HolderRecord {
                slot,
                tier,
                start,
                end,
            });
        }
        Ok(())
    }

    pub(super) fn names(&mut self, page: &mut Cursor<'_>) -> ReadResult {
        let (group, size) = (page.u32()?, page.block_size()?);
        let (at, count) = (page.u32()?, page.u32()?);
        if !self.groups.contains(&group) {
            return Err(page.damaged(format!(
                "names in family {group}, expected one with a member"
            )));
        }
        self.inside_run(
            page,
            "named",
            u64::from(at),
            u64::from(at) + u64::from(count),
        )?;
        page.engine_hashes(count, &mut self.content.engine)?;
        self.content.names.push(NameStretch {
            group,
            size,
            at,
            count,
        });
        Ok(())
    }

    pub(super) fn copies(&mut self, page: &mut Cursor<'_>) -> ReadResult {
        let slot = page.u32()?;
        for _ in 0..page.u32()? {
            let at = page.u32()?;
            let spare = page.u8()?;
            let lapses_after = if page.flag()? {
                Some(page.u64()?)
            } else {
                None
            };
            self.inside_run(page, "counted", u64::from(at), u64::from(at) + 1)?;
            if spare == 0 && lapses_after.is_none() {
                return Err(page.damaged(format!(
                    "block {at} counted as held once by slot {slot}, expected several copies or an end of its credit"
                )));
            }
            self.content.copies.push(CopyRecord {
                slot,
                at,
                spare,
                lapses_after,
            });
        }
        Ok(())
    }

    fn inside_run(&self, page: &Cursor<'_>, what: &str, start: u64, end: u64) -> ReadResult {
        let Some(run) = self.content.runs.last() else {
            return Err(page.damaged(format!("{what} blocks in front of the first run")));
        };
        let length = run.hashes.len() as u64;
        if start < end && end <= length {
            return Ok(());
        }
        let id = run.id;
        Err(page.damaged(format!(
            "{what} blocks {start}..{end} of run {id}, expected some of 0..{length}"
        )))
    }

    /// Completes the last run: no further record belongs to it.
    pub(super) fn close(&mut self, page: &Cursor<'_>) -> ReadResult {
        let content = &mut self.content;
        let Some(run) = content.runs.last_mut() else {
            return Ok(());
        };
        run.holders.end = content.holders.len();
        run.names.end = content.names.len();
        run.engine.end = content.engine.len();
        run.copies.end = content.copies.len();
        let holders = &mut content.holders[run.holders.clone()];
        holders.sort_unstable();
        let twice = holders.array_windows().find(|[one, next]| {
            (one.slot, one.tier) == (next.slot, next.tier) && next.start < one.end
        });
        if let Some([_, HolderRecord { slot, start, .. }]) = twice {
            return Err(page.damaged(format!(
                "block {start} of run {} held twice by slot {slot}, expected once a tier",
                run.id
            )));
        }
        let copies = &mut content.copies[run.copies.clone()];
        copies.sort_unstable();
        let twice = copies
            .array_windows()
            .find(|[one, next]| (one.slot, one.at) == (next.slot, next.at));
        if let Some([_, CopyRecord { slot, at, .. }]) = twice {
            return Err(page.damaged(format!(
                "block {at} of run {} counted twice for slot {slot}, expected once",
                run.id
            )));
        }
        let not_held = copies.iter().find(|copy| !is_on_device(holders, copy));
        not_held.map_or(Ok(()), |CopyRecord { slot, at, .. }| {
            Err(page.damaged(format!(
                "copies of block {at} of run {} in slot {slot}, expected a block on its device",
                run.id
            )))
        })
    }
}

/// Returns whether the holder of a counted block has it on its device. `holders` are in the order of
/// slot, tier and start.
fn is_on_device(holders: &[HolderRecord], of: &CopyRecord) -> bool {
    let place = (of.slot, Tier::Device, of.at);
    let behind = holders.partition_point(|held| (held.slot, held.tier, held.start) <= place);
    let last = behind.checked_sub(1).map(|last| holders[last]);
    last.is_some_and(|held| (held.slot, held.tier) == (of.slot, Tier::Device) && of.at < held.end)
}
