//! An estimate of the number of distinct keys, in a fixed amount of memory.
//!
//! HyperLogLog over keys that are uniform already: the first bits of a key choose a register, which
//! stores the longest run of leading zeroes in the rest of a key. The estimate is the "improved"
//! one of O. Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017), section
//! 3: no table of corrections, and no range in which it is biased.
//!
//! **Invariant**: a repeated key changes nothing.

use std::sync::atomic::{AtomicU8, Ordering};

/// Bits of a key that choose its register.
const BITS: u32 = 16;
/// Registers. The standard error is 1.04 / sqrt(2^16) = 0.41 %, so 2 % is nearly five of them.
const REGISTERS: usize = 1 << BITS;
/// Remaining bits, and so the longest run; registers store one more.
const REST: usize = (u64::BITS - BITS) as usize;

/// Estimates the number of distinct keys; always 64 KiB. Shared without a lock.
#[derive(Debug)]
pub(crate) struct Sketch(Box<[AtomicU8]>);

impl Default for Sketch {
    fn default() -> Self {
        Self((0..REGISTERS).map(|_| AtomicU8::new(0)).collect())
    }
}

impl Sketch {
    /// Records a key, which has to be a hash: every bit of it counts.
    pub(crate) fn record(&self, key: u64) {
        // Ends the run after the remaining bits at the latest.
        let rest = (key << BITS) | (1 << (BITS - 1));
        let run = u8::try_from(rest.leading_zeros() + 1).unwrap_or(u8::MAX);
        let register = (key >> (u64::BITS - BITS)) as usize;
        self.0[register].fetch_max(run, Ordering::Relaxed);
    }

    /// Returns the number of distinct keys, within 2 % (of small numbers: within one or two).
    pub(crate) fn estimate(&self) -> u64 {
        let mut registers_at = [0u32; REST + 2];
        for register in &*self.0 {
            registers_at[usize::from(register.load(Ordering::Relaxed)).min(REST + 1)] += 1;
        }
        let all = REGISTERS as f64;
        let mut z = all * tau(1.0 - f64::from(registers_at[REST + 1]) / all);
        for registers in registers_at[1..=REST].iter().rev() {
            z = 0.5 * (z + f64::from(*registers));
        }
        z += all * sigma(f64::from(registers_at[0]) / all);
        // Infinite while every register is empty: then the estimate is 0.
        let estimate = all * all / (2.0 * std::f64::consts::LN_2 * z);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rounded and not negative"
        )]
        let rounded = estimate.round() as u64;
        rounded
    }
}

/// Returns the contribution of empty registers: x + sum of x^(2^k) * 2^(k-1) over k from 1.
fn sigma(mut x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut weight, mut sum) = (1.0, x);
    loop {
        x *= x;
        let before = sum;
        sum += x * weight;
        weight += weight;
        if sum.to_bits() == before.to_bits() {
            return sum;
        }
    }
}

/// Returns the contribution of full registers: a third of 1 - x - sum of (1 - x^(2^-k))^2 * 2^-k
/// over k from 1.
fn tau(mut x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut weight, mut sum) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = sum;
        weight *= 0.5;
        sum -= (1.0 - x).powi(2) * weight;
        if sum.to_bits() == before.to_bits() {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use proptest::prelude::*;

    use super::*;

    /// Keys that look like hashes: the finaliser of splitmix64 over a counter, a bijection, so that
    /// all differ.
    fn key(seed: u64, n: u64) -> u64 {
        let mut z = seed.wrapping_add(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn error(estimate: u64, truth: u64) -> f64 {
        (estimate as f64 - truth as f64).abs() / truth as f64
    }

    #[test]
    #[contract("CK67")]
    fn an_empty_sketch_estimates_zero_and_repeated_keys_count_once() {
        let sketch = Sketch::default();
        assert_eq!(sketch.estimate(), 0);
        for n in 0..50 {
            sketch.record(key(7, n));
            sketch.record(key(7, n / 2));
        }
        assert_eq!(sketch.estimate(), 50);
    }

    #[test]
    fn keys_of_all_ones_and_all_zeroes_are_recorded() {
        let sketch = Sketch::default();
        [0, u64::MAX, 1, 1 << 48]
            .into_iter()
            .for_each(|key| sketch.record(key));
        assert_eq!(
            sketch.estimate(),
            3,
            "0 and 1 differ in their last bit alone, behind the longest run but one"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

        /// The sketch is read at every power of two on the way, so that no magnitude is skipped. Of a
        /// few keys up to three may share a register with others by chance.
        #[test]
        #[contract("CK67")]
        fn the_estimate_is_within_two_percent_at_every_magnitude(seed in any::<u64>(), most in 100_000_u64..600_000) {
            let sketch = Sketch::default();
            for n in 0..most {
                sketch.record(key(seed, n));
                let seen = n + 1;
                if seen >= 64 && (seen.is_power_of_two() || seen == most) {
                    let estimate = sketch.estimate();
                    let close = error(estimate, seen) <= 0.02 || estimate.abs_diff(seen) <= 3;
                    prop_assert!(close, "{estimate} for {seen}");
                }
            }
        }
    }
}
