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
const PLACEHOLDER: Tier = Tier::Remote;

/// Progress of the initial state.
#[derive(Debug)]
pub(super) struct SnapshotCursor {
    cursor: ExportCursor,
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
            cursor: ExportCursor::default(),
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
        let piece = index.export(&mut self.cursor, &|target| names.name_of(target).is_some());
        let Some(since) = self.drain(index, changes) else {
            return SnapshotPiece::Lost;
        };
        let Some(piece) = piece else {
            return SnapshotPiece::Last(since);
        };
        let (mut announced, mut removals) = (Vec::new(), Vec::new());
        for exported in piece {
            self.announce(index, exported, &mut announced, &mut removals);
        }
        announced.extend(since);
        // Last: blocks that depend on them may have come with the changes.
        announced.extend(removals);
        SnapshotPiece::Some(announced)
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

    fn announce(
        &mut self,
        index: &KvIndex,
        ExportedBlocks { change, lead }: ExportedBlocks,
        announced: &mut Vec<Arc<BlockChange>>,
        removals: &mut Vec<Arc<BlockChange>>,
    ) {
        for part in lead {
            self.announce_placeholder(index, part, announced, removals);
        }
        for (stretch, touched) in self.touched.split(index, change) {
            if touched {
                // The changes decide whether the block is stored. Until then others may depend on
                // it.
                self.announce_placeholder(index, stretch, announced, removals);
            } else {
                self.blocks += stretch.hashes.len() as u64;
                announced.push(Arc::new(stretch));
            }
        }
    }

    /// Announces blocks so that others find their place behind them, and removes them again.
    fn announce_placeholder(
        &self,
        index: &KvIndex,
        part: BlockChange,
        announced: &mut Vec<Arc<BlockChange>>,
        removals: &mut Vec<Arc<BlockChange>>,
    ) {
        // An event per block does not name the block before, so it needs no such announcement.
        if self.format == Format::Continuum {
            return;
        }
        let placeholder = BlockChange {
            tier: PLACEHOLDER,
            kind: ChangeKind::Stored { elsewhere: false },
            ..part
        };
        let removal = BlockChange {
            kind: ChangeKind::Removed { elsewhere: false },
            ..placeholder.clone()
        };
        removals.extend(
            self.touched
                .not_stored(index, removal)
                .into_iter()
                .map(Arc::new),
        );
        announced.push(Arc::new(placeholder));
    }
}
