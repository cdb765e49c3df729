//! Keys of blocks that enter or leave the table together.

use crate::{lookup::SharedIndex, table::TableKey};

/// Distance in blocks at which a key's own line is prefetched.
const FAR: usize = 32;
/// Distance in blocks at which that line has arrived and names the other lines to prefetch.
const NEAR: usize = 14;

/// Keys of many blocks, with their lines prefetched some steps ahead of their use.
pub(super) struct KeyPrefetch<F> {
    keys: [TableKey; FAR],
    count: usize,
    key: F,
}

impl<F: Fn(usize) -> TableKey> KeyPrefetch<F> {
    pub(super) fn new(core: &SharedIndex, count: usize, key: F) -> Self {
        let mut ahead = Self {
            keys: [TableKey::NONE; FAR],
            count,
            key,
        };
        (0..count.min(FAR)).for_each(|number| ahead.request(core, number));
        (0..count.min(NEAR))
            .for_each(|number| core.table.prefetch_further(&core.body, ahead.keys[number]));
        ahead
    }

    #[inline]
    fn request(&mut self, core: &SharedIndex, number: usize) {
        let key = (self.key)(number);
        core.table.prefetch(&core.body, key);
        self.keys[number % FAR] = key;
    }

    /// Returns key `number`; the keys are taken in order.
    #[inline]
    pub(super) fn next(&mut self, core: &SharedIndex, number: usize) -> TableKey {
        let key = self.keys[number % FAR];
        if number + FAR < self.count {
            self.request(core, number + FAR);
        }
        if number + NEAR < self.count {
            core.table
                .prefetch_further(&core.body, self.keys[(number + NEAR) % FAR]);
        }
        key
    }
}
