//! Prefixes in parts, each with its own lock.

use std::collections::HashMap;

use parking_lot::RwLock;

use super::entry::PrefixEntry;
use crate::PrefixHash;

pub(super) type PrefixShard = HashMap<PrefixHash, PrefixEntry>;

/// Prefixes in one part of a full table: a hash map doubles at 1,792 of them, and this leaves room
/// for uneven parts.
const PART: usize = 1_600;

/// A table in parts. Readers share the lock of one part; a writer that visits all of them locks one
/// part at a time.
#[derive(Debug)]
pub(super) struct ShardedTable {
    shards: Box<[RwLock<PrefixShard>]>,
}

impl ShardedTable {
    pub(super) fn new(max_entries: usize) -> Self {
        let shards = (max_entries / PART).clamp(16, 8_192);
        Self {
            shards: (0..shards).map(|_| RwLock::default()).collect(),
        }
    }

    pub(super) fn shard(&self, prefix: &PrefixHash) -> &RwLock<PrefixShard> {
        &self.shards[prefix.spread(self.shards.len())]
    }

    pub(super) fn shards(&self) -> &[RwLock<PrefixShard>] {
        &self.shards
    }
}
