//! Reproducible pseudo-random numbers.

/// A stream of numbers: splitmix64.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a stream. Streams of different purposes are independent.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut mixed = Self(seed ^ purpose.rotate_left(32));
        Self(mixed.next())
    }

    /// Returns a number of the full range.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = self.0;
        let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Returns a number from 0 (included) to 1 (not included).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number from 0 to below `end`; 0 if that is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        let scaled = (u128::from(self.next()) * u128::from(end)) >> 64;
        // Less than `end`, which is a u64.
        u64::try_from(scaled).unwrap_or(0)
    }
}
