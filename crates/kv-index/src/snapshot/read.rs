//! Reads a snapshot as untrusted input.

mod runs;

use std::{
    collections::{HashMap, HashSet},
    io::Read,
    sync::Arc,
};

use kv_blocks::{DpRank, HashScheme, Namespace, PromptIdentity, StreamPosition, Target, WorkerId};

use super::{
    MemberRecord, NamespaceRecord, PositionRecord, RecordCounts, SnapshotContent, SnapshotError,
    TargetRecord, cursor::Cursor, page::PageReader, records::kind,
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
    groups: HashSet<u32>,
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
            kind::COPIES => self.copies(page)?,
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
        let block_size = page.optional_block_size()?;
        // Collecting stops with the page, whatever the number.
        let block_sizes = (0..page.u32()?)
            .map(|_| page.block_size())
            .collect::<Result<Vec<_>, _>>()?;
        let member = if page.flag()? {
            Some(MemberRecord {
                group: page.u32()?,
                common: page.flag()?,
                proven: page.flag()?,
            })
        } else {
            None
        };
        let position = if page.flag()? {
            Some(PositionRecord {
                batch: StreamPosition {
                    seq: page.u64()?,
                    digest: page.u64()?,
                },
                within_next: page.flag()?,
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
        self.groups.extend(member.map(|member| member.group));
        self.content.targets.push(TargetRecord {
            slot,
            target,
            model,
            block_size,
            block_sizes,
            member,
            position,
        });
        Ok(())
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
            copies: page.u64()?,
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
