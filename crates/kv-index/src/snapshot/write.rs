//! Writes a snapshot.

use std::io::{self, Write};

use kv_blocks::{BlockSize, HashScheme, Namespace, PromptIdentity, Tier};

use super::{
    CopyRecord, HolderRecord, MAX_RUN_BLOCKS, NamespaceRecord, RecordCounts, RunRecord,
    TargetRecord,
    page::{PageWriter, too_long},
    records::kind,
};

/// Maximum holders in one record, so that the run of a thousand targets does not make a page of
/// megabytes.
const HOLDERS_IN_A_RECORD: usize = 4096;

/// A snapshot in progress. Namespaces, targets and parents are written before the runs that name
/// them. Readers refuse a snapshot that is not [finished](SnapshotWriter::finish).
pub(crate) struct SnapshotWriter<'w> {
    pages: PageWriter<'w>,
    counts: RecordCounts,
}

impl<'w> SnapshotWriter<'w> {
    pub(crate) fn new(to: &'w mut dyn Write, scheme: HashScheme) -> io::Result<Self> {
        let mut pages = PageWriter::new(to)?;
        pages.record(|page| {
            let (code, seed) = match scheme {
                HashScheme::Xxh3 { seed } => (1, seed),
                HashScheme::Fnv1a => (2, 0),
            };
            page.extend([kind::HEAD, code]);
            u64s(page, &[seed]);
            Ok(())
        })?;
        Ok(Self {
            pages,
            counts: RecordCounts::default(),
        })
    }

    pub(crate) fn space(&mut self, space: &NamespaceRecord) -> io::Result<()> {
        self.counts.spaces += 1;
        let Namespace {
            model,
            lora,
            salt,
            block_size,
            identity,
        } = &space.namespace;
        self.pages.record(|page| {
            page.push(kind::SPACE);
            u32s(page, &[space.number, block_size.tokens()]);
            page.push(match identity {
                PromptIdentity::Tokens => 0,
                PromptIdentity::TextPrefix => 1,
            });
            text(page, model)?;
            optional_text(page, lora.as_deref())?;
            optional_text(page, salt.as_deref())
        })
    }

    pub(crate) fn target(&mut self, record: &TargetRecord) -> io::Result<()> {
        self.counts.targets += 1;
        let TargetRecord {
            slot,
            target,
            model,
            block_size,
            block_sizes,
            member,
            position,
        } = record;
        self.pages.record(|page| {
            page.push(kind::TARGET);
            u32s(page, &[*slot, target.worker.0, target.rank.0]);
            optional_text(page, model.as_deref())?;
            // No size is 0.
            u32s(page, &[block_size.map_or(0, BlockSize::tokens)]);
            u32s(
                page,
                &[length("the block sizes of a target", block_sizes.len())?],
            );
            for size in block_sizes {
                u32s(page, &[size.tokens()]);
            }
            page.push(u8::from(member.is_some()));
            if let Some(member) = member {
                u32s(page, &[member.group]);
                page.extend([u8::from(member.common), u8::from(member.proven)]);
            }
            page.push(u8::from(position.is_some()));
            if let Some(position) = position {
                u64s(page, &[position.batch.seq, position.batch.digest]);
                page.push(u8::from(position.within_next));
            }
            Ok(())
        })
    }

    pub(crate) fn run(&mut self, run: &RunRecord<'_>) -> io::Result<()> {
        check(run).map_err(|message| io::Error::new(io::ErrorKind::InvalidInput, message))?;
        self.counts.runs += 1;
        self.counts.blocks += run.hashes.len() as u64;
        self.pages.record(|page| {
            page.push(kind::RUN);
            u32s(page, &[run.id, run.space]);
            page.push(u8::from(run.parent.is_some()));
            if let Some(parent) = run.parent {
                u32s(page, &[parent.run, parent.attach]);
            }
            u32s(page, &[run.depth, length("a run", run.hashes.len())?]);
            words(page, run.hashes, |hash| hash.0);
            Ok(())
        })?;
        // Most blocks have several holders, and most of those hold the same range.
        let stretch = |record: &HolderRecord| (record.start, record.end, record.tier);
        let mut holders = run.holders.to_vec();
        holders.sort_unstable_by_key(|record| (stretch(record), record.slot));
        for alike in holders.chunk_by(|one, next| stretch(one) == stretch(next)) {
            alike
                .chunks(HOLDERS_IN_A_RECORD)
                .try_for_each(|some| self.holders(some))?;
        }
        for (stretch, names) in run.named() {
            self.counts.names += names.len() as u64;
            self.pages.record(|page| {
                page.push(kind::NAMES);
                let count = length("a stretch of names", names.len())?;
                u32s(
                    page,
                    &[stretch.group, stretch.size.tokens(), stretch.at, count],
                );
                words(page, names, |name| name.0);
                Ok(())
            })?;
        }
        run.copies
            .chunk_by(|one, next| one.slot == next.slot)
            .try_for_each(|of_slot| self.copies(of_slot))
    }

    /// Ends the snapshot. Returns its bytes.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        let RecordCounts {
            spaces,
            targets,
            runs,
            blocks,
            holders,
            names,
            copies,
        } = self.counts;
        self.pages.record(|page| {
            page.push(kind::END);
            u64s(
                page,
                &[spaces, targets, runs, blocks, holders, names, copies],
            );
            Ok(())
        })?;
        self.pages.finish()
    }

    /// Writes holders of the same range.
    fn holders(&mut self, holders: &[HolderRecord]) -> io::Result<()> {
        let Some(HolderRecord {
            tier, start, end, ..
        }) = holders.first()
        else {
            return Ok(());
        };
        self.counts.holders += holders.len() as u64;
        self.pages.record(|page| {
            page.push(kind::HOLDERS);
            u32s(page, &[*start, *end]);
            page.push(tier_code(*tier));
            u32s(page, &[length("the holders of a run", holders.len())?]);
            for record in holders {
                u32s(page, &[record.slot]);
            }
            Ok(())
        })
    }

    /// Writes how often one holder has blocks.
    fn copies(&mut self, copies: &[CopyRecord]) -> io::Result<()> {
        let Some(CopyRecord { slot, .. }) = copies.first() else {
            return Ok(());
        };
        self.counts.copies += copies.len() as u64;
        self.pages.record(|page| {
            page.push(kind::COPIES);
            u32s(page, &[*slot, length("the copies of a run", copies.len())?]);
            for record in copies {
                u32s(page, &[record.at]);
                page.extend([record.spare, u8::from(record.lapses_after.is_some())]);
                u64s(page, record.lapses_after.as_slice());
            }
            Ok(())
        })
    }
}

/// Refuses a run that would not be equal after reading.
fn check(run: &RunRecord<'_>) -> Result<(), String> {
    let RunRecord {
        id,
        hashes,
        names,
        engine,
        ..
    } = run;
    if hashes.is_empty() || hashes.len() > MAX_RUN_BLOCKS {
        return Err(format!(
            "run {id} for a snapshot has {} blocks, expected 1 to {MAX_RUN_BLOCKS}",
            hashes.len()
        ));
    }
    let named: u64 = names.iter().map(|stretch| u64::from(stretch.count)).sum();
    if named != engine.len() as u64 {
        return Err(format!(
            "run {id} for a snapshot has {} names, expected the {named} of its stretches",
            engine.len()
        ));
    }
    Ok(())
}

fn tier_code(tier: Tier) -> u8 {
    match tier {
        Tier::Device => 0,
        Tier::Host => 1,
        Tier::Disk => 2,
        Tier::Remote => 3,
    }
}

fn u32s(page: &mut Vec<u8>, numbers: &[u32]) {
    for number in numbers {
        page.extend_from_slice(&number.to_le_bytes());
    }
}

fn u64s(page: &mut Vec<u8>, numbers: &[u64]) {
    words(page, numbers, |number| *number);
}

fn words<T>(page: &mut Vec<u8>, items: &[T], word: impl Fn(&T) -> u64) {
    let start = page.len();
    page.resize(start + items.len() * 8, 0);
    let (chunks, _) = page[start..].as_chunks_mut();
    for (chunk, item) in chunks.iter_mut().zip(items) {
        *chunk = word(item).to_le_bytes();
    }
}

fn optional_text(page: &mut Vec<u8>, it: Option<&str>) -> io::Result<()> {
    page.push(u8::from(it.is_some()));
    it.map_or(Ok(()), |it| text(page, it))
}

fn text(page: &mut Vec<u8>, it: &str) -> io::Result<()> {
    u32s(page, &[length("a text", it.len())?]);
    page.extend_from_slice(it.as_bytes());
    Ok(())
}

fn length(what: &str, length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| too_long(what, length))
}
