//! The standing state, piece by piece, with the changes that come in between.
//!
//! [`KvIndex::standing`] has the rule: follow first; after each piece take every change there is; of the piece only what no
//! change was about; then the changes. So nothing is told as held after it went, nothing twice, and nothing is left out.
//!
//! One thing may come too early: what a worker stores behind blocks that it does not hold itself, while those of others who
//! do are yet to be told. A reader that keeps whole chains cannot place it, and credits less until it is stored again.

use std::sync::Arc;

use kv_blocks::Tier;
use kv_index::{BlockChange, ChangeFeed, ChangeKind, ExportCursor, ExportedBlocks, KvIndex};

use super::{changed_blocks::ChangedBlocks, names::SubscriberNames, query::Format};

/// Changes that may come while a piece is being read, and their blocks. With more of them the subscriber has fallen behind.
const MOST_CHANGES: usize = 16_384;
const MOST_BLOCKS: usize = 1 << 18;

/// Where that is told to be for a moment which only gives others their place. Whoever counts copies counts those on the device.
const LENT: Tier = Tier::Remote;

/// How far it has come.
#[derive(Debug)]
pub(super) struct SnapshotCursor {
    place: ExportCursor,
    touched: ChangedBlocks,
    format: Format,
    /// Blocks of the standing state told so far, each tier counting.
    pub(super) blocks: u64,
}

/// One piece.
#[derive(Debug)]
pub(super) enum SnapshotPiece {
    /// To be told in this order.
    Some(Vec<Arc<BlockChange>>),
    /// The standing state is told; these changes come behind it.
    Last(Vec<Arc<BlockChange>>),
    /// Changes came faster than they could be told, and are lost.
    Lost,
}

impl SnapshotCursor {
    pub(super) fn new(format: Format) -> Self {
        Self {
            place: ExportCursor::default(),
            touched: ChangedBlocks::default(),
            format,
            blocks: 0,
        }
    }

    /// The next piece. Takes the index's lock, and some milliseconds.
    pub(super) fn next(
        &mut self,
        index: &KvIndex,
        names: &SubscriberNames,
        changes: &mut ChangeFeed,
    ) -> SnapshotPiece {
        let piece = index.export(&mut self.place, &|target| names.wanted(target).is_some());
        let Some(since) = self.drain(index, changes) else {
            return SnapshotPiece::Lost;
        };
        let Some(piece) = piece else {
            return SnapshotPiece::Last(since);
        };
        let (mut told, mut back) = (Vec::new(), Vec::new());
        for standing in piece {
            self.tell(index, standing, &mut told, &mut back);
        }
        told.extend(since);
        // Last: what hangs on it may have come with the changes.
        told.extend(back);
        SnapshotPiece::Some(told)
    }

    /// Every change there is.
    fn drain(
        &mut self,
        index: &KvIndex,
        changes: &mut ChangeFeed,
    ) -> Option<Vec<Arc<BlockChange>>> {
        let (mut all, mut blocks) = (Vec::new(), 0);
        loop {
            let taken = changes.take(MOST_CHANGES).ok()?;
            if taken.is_empty() {
                return Some(all);
            }
            for change in taken {
                blocks += change.hashes.len();
                if !self.touched.record(index, &change)
                    || blocks > MOST_BLOCKS
                    || all.len() == MOST_CHANGES
                {
                    return None;
                }
                all.push(change);
            }
        }
    }

    fn tell(
        &mut self,
        index: &KvIndex,
        ExportedBlocks { change: held, lead }: ExportedBlocks,
        told: &mut Vec<Arc<BlockChange>>,
        back: &mut Vec<Arc<BlockChange>>,
    ) {
        for part in lead {
            self.lend(index, part, told, back);
        }
        for (stretch, touched) in self.touched.cut(index, held) {
            if touched {
                // The changes tell whether it is held. Till then others may hang on it.
                self.lend(index, stretch, told, back);
            } else {
                self.blocks += stretch.hashes.len() as u64;
                told.push(Arc::new(stretch));
            }
        }
    }

    /// Tells of blocks so that others find their place behind them, and takes that back.
    fn lend(
        &self,
        index: &KvIndex,
        part: BlockChange,
        told: &mut Vec<Arc<BlockChange>>,
        back: &mut Vec<Arc<BlockChange>>,
    ) {
        // An event per block says nothing of the block before, so nobody could need that.
        if self.format == Format::Continuum {
            return;
        }
        let lent = BlockChange {
            tier: LENT,
            kind: ChangeKind::Stored { elsewhere: false },
            ..part
        };
        let taken_back = BlockChange {
            kind: ChangeKind::Removed { elsewhere: false },
            ..lent.clone()
        };
        back.extend(
            self.touched
                .not_stored(index, taken_back)
                .into_iter()
                .map(Arc::new),
        );
        told.push(Arc::new(lent));
    }
}
