//! Reads a snapshot as untrusted input.

use std::{
    collections::{HashMap, HashSet},
    io::Read,
    sync::Arc,
};

use kv_blocks::{DpRank, HashScheme, Namespace, PromptIdentity, Target, Tier, WorkerId};

use super::{
    HoldingRecord, MAX_RUN_BLOCKS, MemberRecord, NameStretch, NamespaceRecord, ParentLink,
    RecordCounts, SnapshotContent, SnapshotError, TargetRecord, content::SnapshotRun,
    cursor::Cursor, page::PageReader, records::kind,
};

type ReadResult = Result<(), SnapshotError>;

/// Reads and checks a whole snapshot of an index with this `scheme`. `limit`: maximum bytes of the
/// snapshot, which also bounds its memory, see [`SnapshotContent`].
pub(crate) fn read(
    from: &mut dyn Read,
    scheme: HashScheme,
    limit: u64,
) -> Result<SnapshotContent, SnapshotError> {
    let mut pages = PageReader::open(from, limit)?;
    let mut loading = SnapshotReader::default();
    let mut page = pages.next()?;
    head(&mut page, scheme)?;
    loop {
        while !page.is_at_end() {
            if loading.record(&mut page)? == AfterRecord::End {
                loading.content.bytes = pages.finish()?;
                return Ok(loading.content);
            }
        }
        page = pages.next()?;
    }
}

fn head(page: &mut Cursor<'_>, expected: HashScheme) -> ReadResult {
    let first = page.u8()?;
    if first != kind::HEAD {
        return Err(page.damaged(format!(
            "a first record of kind {first}, expected {}",
            kind::HEAD
        )));
    }
    let (code, seed) = (page.u8()?, page.u64()?);
    let found = match (code, seed) {
        (1, seed) => HashScheme::Xxh3 { seed },
        (2, 0) => HashScheme::Fnv1a,
        _ => {
            return Err(page.damaged(format!(
                "hash scheme {code} with seed {seed}, expected 1, or 2 with seed 0"
            )));
        }
    };
    if found == expected {
        Ok(())
    } else {
        Err(SnapshotError::Scheme { found, expected })
    }
}

#[derive(PartialEq)]
enum AfterRecord {
    GoOn,
    End,
}

/// The content read so far, and the numbers to which later records may refer.
#[derive(Default)]
struct SnapshotReader {
    content: SnapshotContent,
    spaces: HashSet<u32>,
    namespaces: HashSet<Namespace>,
    slots: HashSet<u32>,
    targets: HashSet<Target>,
    families: HashSet<u32>,
    /// Position in `content.runs` by run id.
    runs: HashMap<u32, usize>,
}

impl SnapshotReader {
    fn record(&mut self, page: &mut Cursor<'_>) -> Result<AfterRecord, SnapshotError> {
        match page.u8()? {
            kind::SPACE => self.space(page)?,
            kind::TARGET => self.target(page)?,
            kind::RUN => self.run(page)?,
            kind::HOLDERS => self.holders(page)?,
            kind::NAMES => self.names(page)?,
            kind::END => {
                self.end(page)?;
                return Ok(AfterRecord::End);
            }
            other => {
                let expected = format!("{} to {}", kind::SPACE, kind::END);
                return Err(page.damaged(format!("a record of kind {other}, expected {expected}")));
            }
        }
        Ok(AfterRecord::GoOn)
    }

    fn space(&mut self, page: &mut Cursor<'_>) -> ReadResult {
        let number = page.u32()?;
        let block_size = page.block_size()?;
        let identity = match page.u8()? {
            0 => PromptIdentity::Tokens,
            1 => PromptIdentity::TextPrefix,
            other => {
                return Err(page.damaged(format!(
                    "namespace {number} of identity {other}, expected 0 or 1"
                )));
            }
        };
        let (model, lora, salt) = (page.text()?, page.optional_text()?, page.optional_text()?);
        let namespace = Namespace {
            model,
            lora,
            salt,
            block_size,
            identity,
        };
        if !self.spaces.insert(number) {
            return Err(page.damaged(format!(
                "namespace {number} a second time, expected another number"
            )));
        }
        if !self.namespaces.insert(namespace.clone()) {
            return Err(page.damaged(format!(
                "namespace {number} equals an earlier one, expected a different one"
            )));
        }
        self.content
            .spaces
            .push(NamespaceRecord { number, namespace });
        Ok(())
    }

    fn target(&mut self, page: &mut Cursor<'_>) -> ReadResult {
        let slot = page.u32()?;
        let target = Target {
            worker: WorkerId(page.u32()?),
            rank: DpRank(page.u32()?),
        };
        let model: Option<Arc<str>> = page.optional_text()?;
        // Collecting stops with the page, whatever the number.
        let block_sizes = (0..page.u32()?)
            .map(|_| page.block_size())
            .collect::<Result<Vec<_>, _>>()?;
        let member = if page.flag()? {
            Some(MemberRecord {
                family: page.u32()?,
                common: page.flag()?,
                proven: page.flag()?,
            })
        } else {
            None
        };
        if !self.slots.insert(slot) {
            return Err(page.damaged(format!("slot {slot} a second time, expected another one")));
        }
        if !self.targets.insert(target) {
            return Err(page.damaged(format!(
                "slot {slot} is target {target} again, expected another target"
            )));
        }
        self.families.extend(member.map(|member| member.family));
        self.content.targets.push(TargetRecord {
            slot,
            target,
            model,
            block_sizes,
            member,
        });
        Ok(())
    }

    fn run(&mut self, page: &mut Cursor<'_>) -> ReadResult {
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
        let (holders, names, engine) = (
            content.holders.len(),
            content.names.len(),
            content.engine.len(),
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

    fn holders(&mut self, page: &mut Cursor<'_>) -> ReadResult {
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
            self.content.holders.push(HoldingRecord {
                slot,
                tier,
                start,
                end,
            });
        }
        Ok(())
    }

    fn names(&mut self, page: &mut Cursor<'_>) -> ReadResult {
        let (family, size) = (page.u32()?, page.block_size()?);
        let (at, count) = (page.u32()?, page.u32()?);
        if !self.families.contains(&family) {
            return Err(page.damaged(format!(
                "names in family {family}, expected one with a member"
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
            family,
            size,
            at,
            count,
        });
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
    fn close(&mut self, page: &Cursor<'_>) -> ReadResult {
        let content = &mut self.content;
        let Some(run) = content.runs.last_mut() else {
            return Ok(());
        };
        run.holders.end = content.holders.len();
        run.names.end = content.names.len();
        run.engine.end = content.engine.len();
        let holders = &mut content.holders[run.holders.clone()];
        holders.sort_unstable();
        let twice = holders.array_windows().find(|[one, next]| {
            (one.slot, one.tier) == (next.slot, next.tier) && next.start < one.end
        });
        let Some([_, HoldingRecord { slot, start, .. }]) = twice else {
            return Ok(());
        };
        Err(page.damaged(format!(
            "block {start} of run {} held twice by slot {slot}, expected once a tier",
            run.id
        )))
    }

    fn end(&mut self, page: &mut Cursor<'_>) -> ReadResult {
        self.close(page)?;
        let written = RecordCounts {
            spaces: page.u64()?,
            targets: page.u64()?,
            runs: page.u64()?,
            blocks: page.u64()?,
            holders: page.u64()?,
            names: page.u64()?,
        };
        let read = self.content.counts();
        if written != read {
            return Err(page.damaged(format!(
                "counts {written:?}, expected those of the records, {read:?}"
            )));
        }
        if !page.is_at_end() {
            return Err(page.damaged("records follow the last one, expected none".to_owned()));
        }
        Ok(())
    }
}
