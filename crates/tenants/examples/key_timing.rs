//! Whether the time of a lookup tells how much of a wrong key is right: keys that are equal to the
//! right one in 0 against 31 of 32 leading bytes, in random order, compared by Welch's t.
//! `cargo run --release -p tenants --example key_timing`
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it measures and prints figures"
)]

use std::{hint::black_box, time::Instant};

use settings::Secret;
use tenants::{KeyTable, KeyVerdict, TenantEntry, TenantSecrets, Tenants, TenantsSection};

/// Trials of each kind.
const TRIALS: usize = 100_000;
/// Right keys, so that no place of the table is special.
const KEYS: usize = 1000;
/// Bytes of a key.
const LENGTH: usize = 32;
/// Value of t beyond which the two kinds count as different.
const LIMIT: f64 = 4.5;

/// The times of one kind of trials, in nanoseconds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    fn mean_and_variance(&self) -> (f64, f64) {
        let count = self.0.len() as f64;
        let mean = self.0.iter().sum::<f64>() / count;
        let squares = self.0.iter().map(|time| (time - mean).powi(2)).sum::<f64>();
        (mean, squares / (count - 1.0))
    }

    /// Returns the times up to a limit: a preempted trial takes a thousand times longer.
    fn up_to(&self, limit: f64) -> Self {
        let times = self.0.iter().copied();
        Self(times.filter(|time| *time <= limit).collect())
    }
}

/// A pseudo-random sequence (splitmix64), the same in every run.
struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn welch_t(one: &Times, other: &Times) -> f64 {
    let ((one_mean, one_variance), (other_mean, other_variance)) =
        (one.mean_and_variance(), other.mean_and_variance());
    let spread = one_variance / one.0.len() as f64 + other_variance / other.0.len() as f64;
    (one_mean - other_mean) / spread.sqrt()
}

/// Times one lookup of a right key with another byte at `place`.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a lookup")]
fn trial(table: &KeyTable, right: &[u8; LENGTH], place: usize, random: u64) -> f64 {
    let mut key = *right;
    // 1 to 127, so that the byte differs and stays ASCII.
    key[place] ^= (random % 127 + 1).to_le_bytes()[0];
    let key = black_box(key);
    let started = Instant::now();
    let verdict = black_box(table.verdict(Some(&key), 0));
    let took = started.elapsed();
    assert!(matches!(verdict, KeyVerdict::Unknown));
    took.as_nanos() as f64
}

fn draw_key(sequence: &mut Sequence) -> [u8; LENGTH] {
    [(); LENGTH].map(|()| b'a' + (sequence.next() % 26).to_le_bytes()[0])
}

fn entry(at: usize, key: &[u8; LENGTH]) -> TenantEntry {
    TenantEntry {
        key: Some(Secret::new(String::from_utf8_lossy(key))),
        ..TenantEntry::named(format!("tenant-{at}"))
    }
}

fn main() {
    let mut sequence = Sequence(1);
    let right: Vec<_> = (0..KEYS).map(|_| draw_key(&mut sequence)).collect();
    let entries = right.iter().enumerate();
    let section = TenantsSection {
        api_keys: entries.map(|(at, key)| entry(at, key)).collect(),
        ..TenantsSection::default()
    };
    let table = Tenants::new(&section, TenantSecrets::default()).table();
    let (mut none_right, mut most_right) = (Times::default(), Times::default());
    while none_right.0.len() < TRIALS || most_right.0.len() < TRIALS {
        let random = sequence.next();
        let (place, times) = match random >> 63 {
            0 => (0, &mut none_right),
            _ => (LENGTH - 1, &mut most_right),
        };
        let key = &right[usize::try_from(random >> 32 & 0xffff).unwrap_or(0) % KEYS];
        if times.0.len() < TRIALS {
            times
                .0
                .push(trial(&table, key, place, random & 0xffff_ffff));
        }
    }
    let mut all = [none_right.0.as_slice(), &most_right.0].concat();
    all.sort_unstable_by(f64::total_cmp);
    let limit = all[all.len() * 99 / 100];
    let (none_right, most_right) = (none_right.up_to(limit), most_right.up_to(limit));
    for (name, times) in [("0", &none_right), ("31", &most_right)] {
        let (mean, variance) = times.mean_and_variance();
        let (count, deviation) = (times.0.len(), variance.sqrt());
        println!("{name} bytes right: {count} trials, {mean:.2} ns, deviation {deviation:.2} ns");
    }
    let t = welch_t(&none_right, &most_right);
    let verdict = if t.abs() < LIMIT {
        "alike"
    } else {
        "different"
    };
    println!("Welch's t of the fastest 99 %: {t:.2}, {verdict} (limit {LIMIT})");
}
