//! Identifiers and per-request randomness.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use http::{HeaderMap, HeaderValue};
use proxy::headers::REQUEST_ID;

/// Generates ids. All of them come from one counter through a keyed permutation, so no id repeats in
/// a process's life, and who knows some cannot compute others: ids of reservations and of transfers
/// between engines must not be guessed.
#[derive(Debug)]
pub(crate) struct IdGenerator {
    permutation: KeyedPermutation,
    /// Seed of the random numbers of decisions.
    seed: u64,
    next: AtomicU64,
    /// Random numbers drawn for decisions.
    random_count: AtomicU64,
}

impl IdGenerator {
    /// Creates a generator seeded by the system's randomness.
    pub(crate) fn new() -> Self {
        Self {
            permutation: KeyedPermutation::new([runtime::random(), runtime::random()]),
            seed: runtime::random(),
            next: AtomicU64::new(0),
            random_count: AtomicU64::new(0),
        }
    }

    /// Returns a number that no other call returns; also usable as a random draw.
    pub(crate) fn next_number(&self) -> u64 {
        self.permutation
            .apply(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the random number of one decision. It has its own series, so other draws do not
    /// advance it.
    pub(crate) fn next_random(&self) -> u64 {
        self.random_number(self.random_count.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number that [`IdGenerator::next_random`] returns next, so that a dry run shows
    /// the decision that would follow.
    pub(crate) fn peek_random(&self) -> u64 {
        self.random_number(self.random_count.load(Ordering::Relaxed))
    }

    fn random_number(&self, number: u64) -> u64 {
        mix(mix(self.seed).wrapping_add(number.wrapping_mul(STRIDE)))
    }

    /// Returns the client's request id if it is usable, else a new one.
    pub(crate) fn request_id(&self, headers: &HeaderMap) -> Arc<str> {
        let named = headers.get(REQUEST_ID).and_then(usable);
        named.map_or_else(
            || format!("req-{:016x}", self.next_number()).into(),
            Arc::from,
        )
    }
}

/// Accepts 1 to 128 visible ASCII characters: nothing that could break a header, a log line or a
/// page.
fn usable(value: &HeaderValue) -> Option<&str> {
    if is_usable(value.as_bytes()) {
        value.to_str().ok()
    } else {
        None
    }
}

/// Returns whether an id is 1 to 128 visible ASCII characters.
pub(crate) fn is_usable(id: &[u8]) -> bool {
    (1..=128).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

/// Rounds of the permutation.
const ROUNDS: usize = 27;

/// A permutation of 64 bits under a key of 128: the block cipher Speck64/128 (Beaulieu and others,
/// 2013), since ciphers in use have blocks of 128 bits.
#[derive(Debug)]
struct KeyedPermutation([u32; ROUNDS]);

impl KeyedPermutation {
    fn new([high, low]: [u64; 2]) -> Self {
        let [l2, l1] = halves(high);
        let [l0, mut key] = halves(low);
        let mut rest = [l0, l1, l2];
        let mut keys = [0; ROUNDS];
        for (round, slot) in (0_u32..).zip(&mut keys) {
            *slot = key;
            let [first, second, third] = rest;
            let next = key.wrapping_add(first.rotate_right(8)) ^ round;
            key = key.rotate_left(3) ^ next;
            rest = [second, third, next];
        }
        Self(keys)
    }

    fn apply(&self, block: u64) -> u64 {
        let [mut x, mut y] = halves(block);
        for key in self.0 {
            x = x.rotate_right(8).wrapping_add(y) ^ key;
            y = y.rotate_left(3) ^ x;
        }
        u64::from(x) << 32 | u64::from(y)
    }
}

/// Returns the upper and the lower half.
#[expect(clippy::cast_possible_truncation, reason = "both halves are taken")]
fn halves(block: u64) -> [u32; 2] {
    [(block >> 32) as u32, block as u32]
}

/// Spaces the inputs of `mix`, so that they differ in many bits.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64: a bijection on 64 bits.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_permutation_is_that_of_the_published_vector() {
        let permutation = KeyedPermutation::new([0x1b1a_1918_1312_1110, 0x0b0a_0908_0302_0100]);
        assert_eq!(
            permutation.apply(0x3b72_6574_7475_432d),
            0x8c6f_a548_454e_028b
        );
    }

    /// With a public mixing function, one id gave the counter behind it, and so all later ids.
    #[test]
    fn ids_of_two_generators_have_nothing_in_common() {
        let (one, other) = (IdGenerator::new(), IdGenerator::new());
        let step = |ids: &IdGenerator| ids.next_number() ^ ids.next_number();
        assert_ne!(step(&one), step(&other));
        assert_ne!(one.next_number(), other.next_number());
    }

    #[test]
    fn no_id_repeats() {
        let ids = IdGenerator::new();
        let drawn: HashSet<u64> = (0..10_000).map(|_| ids.next_number()).collect();
        assert_eq!(drawn.len(), 10_000);
    }

    #[test]
    fn the_peeked_random_number_is_the_next_one_whatever_else_is_drawn() {
        let ids = IdGenerator::new();
        for _ in 0..100 {
            let next = ids.peek_random();
            ids.next_number();
            assert_eq!((ids.peek_random(), ids.next_random()), (next, next));
            assert_ne!(ids.peek_random(), next);
        }
    }

    #[test]
    fn a_client_id_is_accepted_only_if_it_cannot_break_a_line() {
        let ids = IdGenerator::new();
        let with = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(value).unwrap());
            ids.request_id(&headers)
        };
        assert_eq!(&*with(b"my-id-1"), "my-id-1");
        for bad in [
            b"".as_slice(),
            b"two words",
            b"tab\there",
            &[0xe4; 4],
            &[b'a'; 129],
        ] {
            let made = with(bad);
            assert!(made.starts_with("req-") && made.len() == 20, "{made}");
        }
    }
}
