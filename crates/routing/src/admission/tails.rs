//! The ends of the prompts that ended lately: a request that continues one of them has returned.
//!
//! They outlive evictions: that prompts return must be noticed also while the caches thrash.

use std::{collections::HashMap, mem};

use foldhash::fast::FixedState;
use kv_blocks::{Moment, SequenceHash};

/// Most ends of prompts that are remembered: some 32 bytes each.
const MOST_TAILS: usize = 65_536;

/// The namespace and the last span of a prompt.
pub(super) type TailKey = (u64, SequenceHash);

/// Until when a request that continues a prompt counts as returned, in two generations: when the
/// young one has half of the limit, the old one is dropped.
#[derive(Debug, Default)]
pub(super) struct Tails {
    young: HashMap<TailKey, Moment, FixedState>,
    old: HashMap<TailKey, Moment, FixedState>,
}

impl Tails {
    pub(super) fn insert(&mut self, key: TailKey, until: Moment) {
        if self.young.len() >= MOST_TAILS / 2 && !self.young.contains_key(&key) {
            self.old = mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, until);
    }

    /// Removes an end and returns until when it counted.
    pub(super) fn take(&mut self, key: TailKey) -> Option<Moment> {
        self.young.remove(&key).or_else(|| self.old.remove(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_found_once_and_the_table_is_bounded() {
        let mut tails = Tails::default();
        let key = |number| (1, SequenceHash(number));
        for number in 0..10 * MOST_TAILS as u64 {
            tails.insert(key(number), Moment::START);
        }
        assert!(tails.young.len() + tails.old.len() <= MOST_TAILS);
        let latest = key(10 * MOST_TAILS as u64 - 1);
        assert_eq!(tails.take(latest), Some(Moment::START));
        assert_eq!(tails.take(latest), None);
        assert_eq!(tails.take(key(0)), None);
    }
}
