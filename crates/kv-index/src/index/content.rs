//! What the index holds: totals, changes, snapshots, dumps.

use std::io::{self, Read, Write};

use kv_blocks::Target;

use super::KvIndex;
use crate::{
    ChangeFeed, DumpCursor, DumpRow, ExportCursor, ExportedBlocks, IndexStats, LoadSummary,
    SaveSummary, SnapshotError, TargetDigest,
    index_copy::{CopyEnd, IndexCopy, RunCopies},
    snapshot,
    state::{LoadRule, PieceToCopy},
};

impl KvIndex {
    /// Items that [`KvIndex::save`] copies under one hold of the lock: some hundred microseconds.
    pub const ITEMS_PER_HOLD: usize = 8 << 10;

    /// Returns the confirmed blocks of a target per tier, in the order of [`kv_blocks::Tier::ALL`];
    /// a block in two tiers counts in both.
    pub fn blocks_per_tier(&self, target: Target) -> [u64; 4] {
        self.with(|state, _| state.blocks_per_tier(target))
    }

    /// Subscribes to the changes from now on; `None` after the index was abandoned. While there is
    /// a subscriber, each change takes some microseconds more. [`KvIndex::load`] publishes no
    /// changes.
    pub fn subscribe(&self) -> Option<ChangeFeed> {
        self.with(|state, _| Some(state.subscribe()))
    }

    /// Returns the next stretches that `selected` targets hold, each after the blocks in front of
    /// it;
    /// `None` after the last. Begin with `ExportCursor::default()` and go on until then.
    ///
    /// Each call takes the lock for about four thousand blocks, plus the blocks in front of them
    /// that no selected target holds; the lock is free in between. To build another index that ends
    /// with the same content, also while this one changes: [`KvIndex::subscribe`] first; after each
    /// piece take all pending changes, and leave out of the piece every block of a target and tier
    /// that any change so far was about, except for the position that it gives to other blocks;
    /// then apply the piece, then the changes, and remove the blocks that were added for their
    /// position alone.
    pub fn export(
        &self,
        cursor: &mut ExportCursor,
        selected: &dyn Fn(Target) -> bool,
    ) -> Option<Vec<ExportedBlocks>> {
        loop {
            let exported = self.with(|state, core| state.export(core, cursor, selected))?;
            if !exported.is_empty() {
                return Some(exported);
            }
        }
    }

    /// Returns totals.
    pub fn stats(&self) -> IndexStats {
        self.with(|state, _| state.stats())
    }

    /// Returns digests of every target and tier that holds a block, in the order of targets and
    /// tiers.
    ///
    /// Reads every block once, under the lock: updates wait, about 5 ns a block; lookups do not.
    pub fn digest(&self) -> Vec<TargetDigest> {
        self.with(|state, core| state.digest(core))
    }

    /// Writes the confirmed content, for [`KvIndex::load`] and [`KvIndex::restore`];
    /// `docs/snapshot-format.md` has the format. Contains cache salts in clear, so `to` must be
    /// readable by its owner only (mode 0600).
    ///
    /// See [`KvIndex::save_in_pieces`].
    ///
    /// # Errors
    ///
    /// The errors of `to`; the bytes written so far are no snapshot then.
    pub fn save(&self, to: &mut dyn Write) -> io::Result<SaveSummary> {
        self.save_in_pieces(to, Self::ITEMS_PER_HOLD, &mut || {})
    }

    /// Like [`KvIndex::save`]; calls `between` after each hold of the lock.
    ///
    /// The content is first copied into memory, about as many bytes as are written. Each hold of the
    /// lock copies about `items_per_hold` blocks, engine hashes and holders, or one whole run;
    /// updates go on between two of them, and the runs that they change are copied again. The last
    /// hold completes the copy, which is the content at that instant. Nothing is written to `to`
    /// before.
    ///
    /// # Errors
    ///
    /// The errors of `to`; the bytes written so far are no snapshot then.
    pub fn save_in_pieces(
        &self,
        to: &mut dyn Write,
        items_per_hold: usize,
        between: &mut dyn FnMut(),
    ) -> io::Result<SaveSummary> {
        let (copy, end) = {
            let _one_at_a_time = self.saving.lock();
            self.copy(items_per_hold, between)?
        };
        copy.write(&end, self.scheme, to)
    }

    fn copy(
        &self,
        items_per_hold: usize,
        between: &mut dyn FnMut(),
    ) -> io::Result<(IndexCopy, CopyEnd)> {
        let (mut copy, mut piece) = (IndexCopy::default(), RunCopies::default());
        let (mut next, mut repeats) = (0, 0_usize);
        self.with(|state, _| state.begin_copy());
        loop {
            // Changes never outrun the copy for ever, since the pieces grow.
            let room = items_per_hold.max(1) << (repeats / REPEATS_PER_ROOM).min(24);
            let to_copy = PieceToCopy {
                from: next,
                room,
                // A batch that is being applied is complete soon.
                whole_batches: repeats < REPEATS_PER_ROOM,
            };
            let copied = self
                .with(|state, core| Some(state.copy_piece(core, &mut piece, to_copy)))
                .ok_or_else(given_up)?;
            between();
            copy.append(&mut piece);
            match copied {
                Ok(end) => return Ok((copy, end)),
                Err(reached) => {
                    repeats += usize::from(reached == next);
                    next = reached;
                }
            }
        }
    }

    /// Loads the content that [`KvIndex::save`] wrote, and registers its targets; a target that is
    /// already registered for another model gets none of it. All of it is credited at once. Content
    /// without room is left out and counted as shed.
    ///
    /// Everything is read and checked before the lock is taken; meanwhile the content takes memory
    /// of its own, bounded by the memory budget as the bytes read are. Then updates wait for some
    /// 200 to 400 ns a block, lookups do not.
    ///
    /// # Errors
    ///
    /// A snapshot is loaded as a whole or refused: see [`SnapshotError`]. An index with blocks in
    /// it refuses every snapshot.
    pub fn load(&self, from: &mut dyn Read) -> Result<LoadSummary, SnapshotError> {
        self.load_by(from, LoadRule::CreditAll)
    }

    /// Loads what an earlier process saved, as [`KvIndex::load`] does, except that engines may have
    /// changed their caches since: only targets whose stream has a position get their blocks, and
    /// lookups credit them only after [`KvIndex::confirm`]. [`KvIndex::resume_position`] has the
    /// position at which the target's stream must continue; without that, [`KvIndex::retire`] drops
    /// the blocks.
    ///
    /// # Errors
    ///
    /// Those of [`KvIndex::load`].
    pub fn restore(&self, from: &mut dyn Read) -> Result<LoadSummary, SnapshotError> {
        self.load_by(from, LoadRule::AwaitProof)
    }

    fn load_by(&self, from: &mut dyn Read, rule: LoadRule) -> Result<LoadSummary, SnapshotError> {
        let (scheme, limit) = self
            .with(|state, _| Some(state.loadable()))
            .ok_or_else(given_up)??;
        let content = snapshot::read(from, scheme, limit)?;
        self.with(|state, core| {
            let loaded = state.load(core, &content, rule);
            self.streams.note_load(&state.shared_tiers_in_use());
            Some(loaded)
        })
        .ok_or_else(given_up)?
    }

    /// Returns the next confirmed memberships, in no particular order; `None` after the last. Begin
    /// with `DumpCursor::default()` and go on until then.
    ///
    /// Each call takes the lock for about a thousand rows (all of one block come together) and
    /// releases it, so a dump in pieces is not one instant: a membership that exists from beginning
    /// to end comes exactly once, one that changes meanwhile may come or not.
    pub fn dump(&self, cursor: &mut DumpCursor) -> Option<Vec<DumpRow>> {
        loop {
            let rows = self.with(|state, core| state.dump(core, cursor))?;
            if !rows.is_empty() {
                return Some(rows);
            }
        }
    }
}

/// Pieces with nothing but changed runs after which pieces become twice as large.
const REPEATS_PER_ROOM: usize = 1024;

/// Returns the error of an abandoned index.
fn given_up() -> io::Error {
    io::Error::other(
        "the index was given up after a panic in it, which was logged: start the router again",
    )
}
