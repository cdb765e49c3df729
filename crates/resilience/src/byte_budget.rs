//! The byte bound of a queue.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Bytes that the items of a queue may take together; clones share them.
///
/// An item is queued with its [`BytePermit`] and refused without one: the producer does not wait.
///
/// ```
/// use resilience::ByteBudget;
///
/// let budget = ByteBudget::new(10);
/// let permit = budget.try_take(8);
/// assert!(permit.is_some() && budget.try_take(3).is_none());
/// drop(permit);
/// assert!(budget.try_take(3).is_some());
/// ```
#[derive(Clone, Debug)]
pub struct ByteBudget {
    most: usize,
    used: Arc<AtomicUsize>,
}

impl ByteBudget {
    /// Creates a budget of `most` bytes.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            used: Arc::default(),
        }
    }

    /// Takes `bytes` of the budget; `None`: it has fewer left.
    pub fn try_take(&self, bytes: usize) -> Option<BytePermit> {
        let mut permit = self.empty_permit();
        permit.try_grow(bytes).then_some(permit)
    }

    /// Takes `bytes`, or the whole budget for an item that is larger: that one is queued alone.
    pub fn try_take_capped(&self, bytes: usize) -> Option<BytePermit> {
        self.try_take(bytes.min(self.most))
    }

    /// Returns a permit of no bytes, for an item that grows.
    pub fn empty_permit(&self) -> BytePermit {
        BytePermit {
            bytes: 0,
            budget: self.clone(),
        }
    }
}

/// One item's share of a [`ByteBudget`], until dropped.
#[derive(Debug)]
pub struct BytePermit {
    bytes: usize,
    budget: ByteBudget,
}

impl BytePermit {
    /// Takes `bytes` more. Returns false, and takes none, if the budget has fewer left.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let ByteBudget { most, used } = &self.budget;
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| sum <= most);
        let grown = used.fetch_update(Relaxed, Relaxed, fits).is_ok();
        if grown {
            self.bytes += bytes;
        }
        grown
    }
}

impl Drop for BytePermit {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_is_granted_while_the_sum_is_within_the_budget() {
        for (held, bytes, granted, capped) in [
            (0, 10, true, true),
            (0, 11, false, true),
            (4, 6, true, true),
            (4, 7, false, false),
            (4, usize::MAX, false, false),
            (10, 0, true, true),
            (10, 1, false, false),
        ] {
            let budget = ByteBudget::new(10);
            let _held = budget.try_take(held).expect("it fits");
            let what = format!("{bytes} beside {held}");
            assert_eq!(budget.try_take(bytes).is_some(), granted, "{what}");
            assert_eq!(budget.try_take_capped(bytes).is_some(), capped, "{what}");
        }
    }

    #[test]
    fn a_permit_grows_within_the_budget_and_returns_all_its_bytes() {
        let budget = ByteBudget::new(10);
        let mut permit = budget.empty_permit();
        assert!(permit.try_grow(3) && permit.try_grow(4) && !permit.try_grow(4));
        let other = budget.try_take(3).expect("it fits");
        assert!(!permit.try_grow(1));
        drop(other);
        assert!(permit.try_grow(3));
        drop(permit);
        assert!(budget.try_take(10).is_some());
    }
}
