//! The initial state, piece by piece, merged with the changes that happen meanwhile.
//!
//! [`KvIndex::export`] has the rule: follow first; after each piece take all pending changes; send
//! only the unchanged part of the piece; then the changes. So no block is sent as stored after its
//! removal, none twice, and none is left out.
//!
//! One thing may come too early: blocks that a worker stores behind blocks that it lacks itself,
//! while the workers that have those are still to be sent. A reader that requires whole chains
//! cannot place them, and credits less until they are stored again.

use std::sync::Arc;

use kv_blocks::Tier;
use kv_index::{BlockChange, ChangeFeed, ChangeKind, ExportCursor, ExportedBlocks, KvIndex};

use super::{changed_blocks::ChangedBlocks, names::SubscriberNames, query::Format};

/// Limit of changes, and of their blocks, while a piece is read. With more of them the subscriber
/// has fallen behind.
const MOST_CHANGES: usize = 16_384;
const MOST_BLOCKS: usize = 1 << 18;

/// Tier of a block that is announced for a moment only, so that others find their place behind it.
/// Readers that count copies count those on the device.
const LENT: Tier = Tier::Remote;

/// Progress of the initial state.
#[derive(Debug)]
pub(super) struct SnapshotCursor {
    place: ExportCursor,
    touched: ChangedBlocks,
    format: Format,
    /// Blocks of the initial state sent so far, counted per tier.
    pub(super) blocks: u64,
}

/// One piece.
#[derive(Debug)]
pub(super) enum SnapshotPiece {
    /// Changes to send in this order.
    Some(Vec<Arc<BlockChange>>),
    /// The initial state is complete; these changes follow it.
    Last(Vec<Arc<BlockChange>>),
    /// Changes came faster than they could be sent, and are lost.
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

    /// Returns the next piece. Takes the index's lock, and some milliseconds.
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
        // Last: blocks that depend on them may have come with the changes.
        told.extend(back);
        SnapshotPiece::Some(told)
    }

    /// Takes all pending changes; `None`: too many.
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
                // The changes decide whether the block is stored. Until then others may depend on
                // it.
                self.lend(index, stretch, told, back);
            } else {
                self.blocks += stretch.hashes.len() as u64;
                told.push(Arc::new(stretch));
            }
        }
    }

    /// Announces blocks so that others find their place behind them, and removes them again.
    fn lend(
        &self,
        index: &KvIndex,
        part: BlockChange,
        told: &mut Vec<Arc<BlockChange>>,
        back: &mut Vec<Arc<BlockChange>>,
    ) {
        // An event per block does not name the block before, so it needs no such announcement.
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
