//! What the index holds: totals, changes, snapshots, dumps.

use std::io::{self, Read, Write};

use kv_blocks::Target;

use super::KvIndex;
use crate::{
    ChangeFeed, DumpCursor, DumpRow, ExportCursor, ExportedBlocks, IndexStats, LoadSummary,
    SaveSummary, SnapshotError, TargetDigest, snapshot,
};

impl KvIndex {
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

    /// Writes the confirmed content, for [`KvIndex::load`]; `docs/snapshot-format.md` has the
    /// format. Contains cache salts in clear, so `to` must be readable by its owner only (mode
    /// 0600).
    ///
    /// The lock is held while the content is assembled in memory, about as many bytes as are
    /// written: updates wait for some 40 ns a block, lookups do not. It is free again before the
    /// first write to `to`.
    ///
    /// # Errors
    ///
    /// The errors of `to`; the bytes written so far are no snapshot then.
    pub fn save(&self, to: &mut dyn Write) -> io::Result<SaveSummary> {
        let mut file = Vec::new();
        let saved = self
            .with(|state, core| Some(state.save(core, &mut file)))
            .ok_or_else(given_up)??;
        to.write_all(&file)?;
        to.flush()?;
        Ok(saved)
    }

    /// Loads the content that [`KvIndex::save`] wrote, and registers its targets; a target that is
    /// already registered for another model gets none of it. Content without room is left out and
    /// counted as shed.
    ///
    /// Everything is read and checked before the lock is taken; meanwhile the content takes memory
    /// of its own, bounded by the memory budget as the bytes read are. Then updates wait for some
    /// 300 to 700 ns a block, lookups do not.
    ///
    /// # Errors
    ///
    /// A snapshot is loaded as a whole or refused: see [`SnapshotError`]. An index with blocks in
    /// it refuses every snapshot.
    pub fn load(&self, from: &mut dyn Read) -> Result<LoadSummary, SnapshotError> {
        let (scheme, limit) = self
            .with(|state, _| Some(state.loadable()))
            .ok_or_else(given_up)??;
        let content = snapshot::read(from, scheme, limit)?;
        self.with(|state, core| {
            let loaded = state.load(core, &content);
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

/// Returns the error of an abandoned index.
fn given_up() -> io::Error {
    io::Error::other(
        "the index was given up after a panic in it, which was logged: start the router again",
    )
}
