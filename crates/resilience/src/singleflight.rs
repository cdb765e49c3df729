//! One piece of work at a time per key.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

/// The flights of all keys. Requests for one key at one time share a `T`, such as a lock, or a cell
/// for the result of one of them; a cancelled request leaves, and the others go on.
#[derive(Debug)]
pub struct Singleflight<K, T>(Mutex<HashMap<K, Weak<T>>>);

/// No flight, whatever the keys are.
impl<K, T> Default for Singleflight<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, T: Default> Singleflight<K, T> {
    /// Joins the flight of `key`, or begins one; it ends when its last member drops the value.
    pub fn join(&self, key: K) -> Arc<T> {
        let mut flights = self.0.lock();
        if let Some(shared) = flights.get(&key).and_then(Weak::upgrade) {
            return shared;
        }
        flights.retain(|_, shared| shared.strong_count() > 0);
        let shared = Arc::default();
        flights.insert(key, Arc::downgrade(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flight_ends_with_its_last_member_and_not_before() {
        let flights = Singleflight::<u32, Mutex<u32>>::default();
        let (first, second) = (flights.join(1), flights.join(1));
        *first.lock() = 7;
        drop(first);
        let third = flights.join(1);
        drop(second);
        assert_eq!((*third.lock(), *flights.join(2).lock()), (7, 0));
        drop(third);
        assert_eq!(*flights.join(1).lock(), 0);
        assert_eq!(flights.0.lock().len(), 1, "flights that ended are removed");
    }
}
