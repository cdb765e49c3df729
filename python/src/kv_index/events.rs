//! The content of an index as JSON rows, in the form of `GET /admin/kv-index/dump`.

use std::sync::Arc;

use api::KvIndexDumpRow;
use kv_blocks::{DpRank, SequenceHash, Tier};
use kv_index::{DumpCursor, KvIndex};
use parking_lot::RwLock;

use super::{checked_rank, worker_table::WorkerTable};

/// A block to store.
#[derive(Debug)]
pub(super) struct BlockRow {
    pub(super) worker: Arc<str>,
    pub(super) rank: DpRank,
    pub(super) tier: Tier,
    pub(super) parent: Option<SequenceHash>,
    pub(super) hash: SequenceHash,
}

/// Returns all rows as one JSON array; the locks are free between its pieces.
pub(super) fn dump(index: &KvIndex, workers: &RwLock<WorkerTable>) -> serde_json::Result<String> {
    let (mut cursor, mut rows) = (DumpCursor::default(), Vec::new());
    while let Some(piece) = index.dump(&mut cursor) {
        let workers = workers.read();
        for row in piece {
            let Some(worker) = workers.name(row.target.worker) else {
                continue;
            };
            rows.push(KvIndexDumpRow {
                model: Arc::clone(&row.namespace.model),
                lora: None,
                salt: None,
                block_size: row.namespace.block_size.tokens(),
                worker: Some(worker),
                dp_rank: row.target.rank.0,
                tier: row.tier.as_str().into(),
                depth: row.depth,
                hash: row.hash.to_string(),
                parent: row.parent.map(|parent| parent.to_string()),
            });
        }
    }
    serde_json::to_string(&rows)
}

/// Returns the blocks of a text without LoRA adapter and salt, parents first; an error message if
/// the text is no array of rows, or not all rows are of one model and of this block size.
pub(super) fn rows(
    text: &str,
    model: Option<&str>,
    block_size: u32,
) -> Result<Vec<BlockRow>, String> {
    let mut rows = KvIndexDumpRow::read_all(text)?;
    rows.retain(|row| {
        row.lora.is_none() && row.salt.is_none() && model.is_none_or(|model| *row.model == *model)
    });
    if let Some(first) = rows.first()
        && let Some(other) = rows.iter().find(|row| row.model != first.model)
    {
        return Err(format!(
            "text has blocks of the models {:?} and {:?}: expected one, name it with model=",
            first.model, other.model
        ));
    }
    rows.sort_by_key(|row| row.depth);
    rows.into_iter()
        .filter_map(|row| block(row, block_size).transpose())
        .collect()
}

/// Returns the block of a row; `None`: its worker had left.
fn block(row: KvIndexDumpRow, block_size: u32) -> Result<Option<BlockRow>, String> {
    let Some(worker) = row.worker else {
        return Ok(None);
    };
    if row.block_size != block_size {
        return Err(format!(
            "text has blocks of {} tokens: expected {block_size}, the block size of this index",
            row.block_size
        ));
    }
    let tier = Tier::ALL
        .into_iter()
        .find(|tier| tier.as_str() == row.tier)
        .ok_or_else(|| format!("text has a block in an unknown tier: {:?}", row.tier))?;
    Ok(Some(BlockRow {
        worker,
        rank: checked_rank(row.dp_rank.into())?,
        tier,
        parent: row.parent.as_deref().map(hash).transpose()?,
        hash: hash(&row.hash)?,
    }))
}

fn hash(text: &str) -> Result<SequenceHash, String> {
    Some(text)
        .filter(|text| text.len() == 16)
        .and_then(|text| u64::from_str_radix(text, 16).ok())
        .map(SequenceHash)
        .ok_or_else(|| {
            let shown: String = text.chars().take(64).collect();
            format!("text has a hash {shown:?}: expected 16 hex digits")
        })
}
