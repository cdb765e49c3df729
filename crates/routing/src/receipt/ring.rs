//! The latest receipts.

use std::{
    collections::{HashMap, VecDeque},
    mem::{size_of, size_of_val},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{Attempt, DecisionId, Receipt};
use crate::{DecisionsSection, Policy, ScoredCandidate};

/// A filter of a list of receipts; an unset field matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiptFilter {
    /// The winner's worker.
    pub worker: Option<Arc<str>>,
    /// The tenant.
    pub tenant: Option<Arc<str>>,
    /// The policy that decided.
    pub policy: Option<Policy>,
}

impl ReceiptFilter {
    fn passes(&self, receipt: &Receipt) -> bool {
        self.worker
            .as_ref()
            .is_none_or(|worker| receipt.worker() == Some(worker))
            && self
                .tenant
                .as_ref()
                .is_none_or(|tenant| receipt.request.tenant == *tenant)
            && self.policy.is_none_or(|policy| receipt.policy() == policy)
    }
}

/// The latest receipts. When it is full, by number or by bytes, the oldest is dropped.
///
/// Readers get shared values: a receipt that changes while it is read is copied first.
#[derive(Debug)]
pub struct ReceiptRing {
    section: DecisionsSection,
    receipts: Mutex<StoredReceipts>,
}

#[derive(Debug, Default)]
struct StoredReceipts {
    /// Oldest first, each with its estimated size.
    receipts: VecDeque<(Arc<Receipt>, usize)>,
    /// Number of the oldest receipt; numbers grow by one per push.
    first: u64,
    numbers: HashMap<DecisionId, u64>,
    bytes: usize,
}

impl ReceiptRing {
    /// Creates an empty ring.
    pub fn new(section: DecisionsSection) -> Self {
        Self {
            section,
            receipts: Mutex::default(),
        }
    }

    /// Adds `receipt` as the newest.
    pub fn push(&self, receipt: Receipt) {
        let size = size(&receipt);
        let stored = &mut *self.receipts.lock();
        let number = stored.first + stored.receipts.len() as u64;
        stored.numbers.insert(receipt.id, number);
        stored.receipts.push_back((Arc::new(receipt), size));
        stored.bytes += size;
        stored.trim(&self.section);
    }

    /// Returns the receipt with this id, if it is still stored.
    pub fn get(&self, id: DecisionId) -> Option<Arc<Receipt>> {
        let stored = self.receipts.lock();
        let position = stored.position(id)?;
        stored
            .receipts
            .get(position)
            .map(|(receipt, _)| Arc::clone(receipt))
    }

    /// Returns the newest `limit` receipts that pass `filter`, newest first.
    pub fn list(&self, filter: &ReceiptFilter, limit: usize) -> Vec<Arc<Receipt>> {
        let stored = self.receipts.lock();
        let newest_first = stored.receipts.iter().rev().map(|(receipt, _)| receipt);
        newest_first
            .filter(|receipt| filter.passes(receipt))
            .take(limit)
            .cloned()
            .collect()
    }

    /// Changes a stored receipt under the lock; false if it is no longer stored.
    pub fn update(&self, id: DecisionId, change: impl FnOnce(&mut Receipt)) -> bool {
        let stored = &mut *self.receipts.lock();
        let Some(position) = stored.position(id) else {
            return false;
        };
        let Some((receipt, counted)) = stored.receipts.get_mut(position) else {
            return false;
        };
        let receipt = Arc::make_mut(receipt);
        change(receipt);
        // The id finds the receipt, so it must not change.
        receipt.id = id;
        let before = std::mem::replace(counted, size(receipt));
        stored.bytes = stored.bytes - before + *counted;
        stored.trim(&self.section);
        true
    }

    /// Returns the number of stored receipts.
    pub fn len(&self) -> usize {
        self.receipts.lock().receipts.len()
    }

    /// Returns whether no receipt is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the estimated bytes of all stored receipts.
    pub fn bytes(&self) -> usize {
        self.receipts.lock().bytes
    }
}

impl Receipt {
    /// Returns the estimated bytes of the receipt in memory.
    pub fn bytes(&self) -> usize {
        size(self)
    }
}

impl StoredReceipts {
    fn position(&self, id: DecisionId) -> Option<usize> {
        let number = self.numbers.get(&id)?;
        usize::try_from(number - self.first).ok()
    }

    fn trim(&mut self, section: &DecisionsSection) {
        while self.receipts.len() > section.ring_entries || self.bytes > section.ring_bytes {
            let Some((oldest, size)) = self.receipts.pop_front() else {
                return;
            };
            // An id that was pushed twice refers to the latest one.
            if self.numbers.get(&oldest.id) == Some(&self.first) {
                self.numbers.remove(&oldest.id);
            }
            self.bytes -= size;
            self.first += 1;
        }
    }
}

/// Returns the bytes of one receipt: the struct, the heap memory that only it owns, and its share
/// of the tables around it. Names of workers, models and tenants are shared and not counted.
fn size(receipt: &Receipt) -> usize {
    const TABLES: usize = 64;
    let rows = receipt.decision().map_or(0, |decision| {
        size_of_val(decision) + decision.candidates.capacity() * size_of::<ScoredCandidate>()
    });
    let excluded = size_of_val(receipt.excluded());
    let attempts = receipt.attempts.capacity() * size_of::<Attempt>();
    TABLES
        + size_of::<Receipt>()
        + rows
        + excluded
        + receipt.request.id.len()
        + attempts
        + receipt.rewrites.capacity() * size_of::<&str>()
}
