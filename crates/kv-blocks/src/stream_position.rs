//! A position in one target's event stream.

use xxhash_rust::xxh3::xxh3_64;

/// The last batch of a target's event stream that was applied. A publisher numbers its batches from
/// 0 in each life, so the number alone does not say which life it belongs to: the digest does.
///
/// ```
/// use kv_blocks::StreamPosition;
///
/// let position = StreamPosition::of(7, b"a batch");
/// assert!(position.is_at(7, b"a batch"));
/// assert!(!position.is_at(7, b"the batch of another life"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPosition {
    /// The batch's number.
    pub seq: u64,
    /// The XXH3-64 digest (seed 0) of the batch's payload; the same in every release.
    pub digest: u64,
}

impl StreamPosition {
    /// Returns the position of a batch.
    pub fn of(seq: u64, payload: &[u8]) -> Self {
        Self {
            seq,
            digest: xxh3_64(payload),
        }
    }

    /// Returns whether the batch with this number and payload is the one at this position.
    pub fn is_at(self, seq: u64, payload: &[u8]) -> bool {
        self.seq == seq && self.digest == xxh3_64(payload)
    }

    /// Returns whether another batch has this position's number: it is from another life of the
    /// publisher.
    pub fn is_contradicted_by(self, seq: u64, payload: &[u8]) -> bool {
        self.seq == seq && self.digest != xxh3_64(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::StreamPosition;

    #[test]
    fn the_digest_of_a_batch_is_the_same_in_every_release() {
        let position = StreamPosition::of(3, b"warmroute");
        assert_eq!(position.digest, 0x0ab8_46f3_1748_09e5);
    }
}
