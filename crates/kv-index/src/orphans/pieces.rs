//! The waiting pieces of stores, with their keys.

use super::{
    Orphans,
    waiting_store::{ByParent, PIECE_BYTES, WaitingStore},
};

impl Orphans {
    pub(super) fn add_piece(&mut self, store: u64, start: u32, end: u32) {
        if let Some(entry) = self.piece_entry(store, start).filter(|_| start < end)
            && let Some(waiting) = self.stores.get_mut(&store)
        {
            waiting.pieces.insert(start, end);
            self.by_parent.insert(entry);
            self.bytes += PIECE_BYTES as u64;
        }
    }

    /// Returns the end of the piece.
    pub(super) fn take_piece(&mut self, store: u64, start: u32) -> Option<u32> {
        let entry = self.piece_entry(store, start)?;
        let end = self.stores.get_mut(&store)?.pieces.remove(&start)?;
        self.by_parent.remove(&entry);
        self.bytes -= PIECE_BYTES as u64;
        Some(end)
    }

    fn piece_entry(&self, store: u64, start: u32) -> Option<ByParent> {
        let waiting = self.stores.get(&store)?;
        let (slot, scope) = (waiting.slot, waiting.late.scope());
        Some(ByParent {
            slot,
            parent: waiting.parent(start)?,
            scope,
            store,
            start,
        })
    }

    pub(super) fn free_if_done(&mut self, store: u64) {
        if self
            .stores
            .get(&store)
            .is_some_and(|waiting| waiting.pieces.is_empty())
        {
            self.drop_store(store);
        }
    }

    pub(super) fn forget(&mut self, is_removed: impl Fn(&WaitingStore) -> bool) {
        let stores = self
            .stores
            .iter()
            .filter(|(_, waiting)| is_removed(waiting));
        for store in stores.map(|(store, _)| *store).collect::<Vec<_>>() {
            self.drop_store(store);
        }
    }

    pub(super) fn drop_store(&mut self, store: u64) {
        let Some(waiting) = self.stores.get(&store) else {
            return;
        };
        for (start, end) in &waiting.pieces {
            for at in *start..*end {
                self.by_number.remove(&waiting.by_number(store, at));
            }
        }
        for start in waiting.pieces.keys().copied().collect::<Vec<_>>() {
            self.take_piece(store, start);
        }
        if let Some(waiting) = self.stores.remove(&store) {
            self.bytes -= waiting.bytes();
        }
    }
}
