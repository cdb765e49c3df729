//! Throttling of wrong keys by client address.
//!
//! A right key is accepted whatever its address has sent before, so clients behind one address cost
//! each other nothing: only a request whose key was found wrong or missing comes here.
//!
//! **Invariant**: at most [`MOST_ADDRESSES`] addresses are remembered; the one without a wrong key
//! for the longest time is forgotten first.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use kv_blocks::Moment;
use lru::LruCache;
use parking_lot::Mutex;

use super::PeerAddress;

/// Wrong keys of an address without a wait; each further run of as many doubles its wait.
const STEP: u32 = 10;
/// Longest wait. After each time this long without a wrong key a step is forgiven.
const LONGEST: Duration = Duration::from_secs(60);
/// Most wrong keys that count: the first ones with the longest wait.
const MOST_COUNTED: u32 = 8 * STEP;
/// Most addresses.
const MOST_ADDRESSES: usize = 16_384;

/// The wrong keys of each client address of a listener.
#[derive(Debug)]
pub struct KeyThrottle {
    addresses: Mutex<LruCache<PeerAddress, WrongKeys>>,
    throttled: AtomicU64,
}

/// The wrong keys of one address.
#[derive(Clone, Copy, Debug)]
struct WrongKeys {
    count: u32,
    last: Moment,
    /// End of the wait after the last one.
    until: Moment,
}

impl Default for KeyThrottle {
    fn default() -> Self {
        // Bound: `MOST_ADDRESSES`, enforced after every insertion.
        Self {
            addresses: Mutex::new(LruCache::unbounded()),
            throttled: AtomicU64::new(0),
        }
    }
}

impl KeyThrottle {
    /// Records a wrong key. Returns the seconds to wait, if it came before the end of the wait after
    /// an earlier one.
    pub fn record_wrong_key(&self, peer: PeerAddress, now: Moment) -> Option<u32> {
        let mut addresses = self.addresses.lock();
        let earlier = addresses.get(&peer).copied();
        let next = WrongKeys::after(earlier, now);
        addresses.put(peer, next);
        if addresses.len() > MOST_ADDRESSES {
            addresses.pop_lru();
        }
        drop(addresses);
        let was_waiting = earlier.is_some_and(|earlier| now < earlier.until);
        self.count(was_waiting.then(|| next.wait(now)))
    }

    /// Returns the seconds that a request without a key has to wait, if its address has to.
    pub fn wait_without_key(&self, peer: PeerAddress, now: Moment) -> Option<u32> {
        let known = self.addresses.lock().peek(&peer).copied();
        let waiting = known.filter(|known| now < known.until);
        self.count(waiting.map(|known| known.wait(now)))
    }

    /// Returns the number of requests that had to wait.
    pub fn throttled(&self) -> u64 {
        self.throttled.load(Relaxed)
    }

    fn count(&self, wait: Option<u32>) -> Option<u32> {
        if wait.is_some() {
            self.throttled.fetch_add(1, Relaxed);
        }
        wait
    }
}

impl WrongKeys {
    /// Returns the state after one more wrong key.
    fn after(earlier: Option<Self>, now: Moment) -> Self {
        let left = earlier.map_or(0, |earlier| earlier.left(now));
        let count = (left + 1).min(MOST_COUNTED);
        Self {
            count,
            last: now,
            until: now + delay(count),
        }
    }

    /// Returns how many wrong keys still count.
    fn left(self, now: Moment) -> u32 {
        let steps = now.since(self.last).as_secs() / LONGEST.as_secs();
        let forgiven = u32::try_from(steps)
            .unwrap_or(u32::MAX)
            .saturating_mul(STEP);
        self.count.saturating_sub(forgiven)
    }

    /// Returns the rest of the wait in whole seconds, rounded up.
    fn wait(self, now: Moment) -> u32 {
        let rest = self.until.since(now);
        let seconds = rest.as_secs() + u64::from(rest.subsec_nanos() > 0);
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }
}

/// Returns the wait after this many wrong keys: 0, then 1 s, 2 s, 4 s and so on.
fn delay(count: u32) -> Duration {
    match count.saturating_sub(1) / STEP {
        0 => Duration::ZERO,
        step => Duration::from_secs(1 << (step - 1).min(31)).min(LONGEST),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use contract_id::contract;

    use super::*;

    const ONE: PeerAddress = PeerAddress::V6(1);
    const OTHER: PeerAddress = PeerAddress::V6(2);

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    /// Records wrong keys at one moment; returns the last answer.
    fn record(throttle: &KeyThrottle, peer: PeerAddress, keys: u32, now: Moment) -> Option<u32> {
        let answers = (0..keys).map(|_| throttle.record_wrong_key(peer, now));
        answers.last().flatten()
    }

    #[test]
    #[contract("S13")]
    fn the_wait_doubles_with_every_ten_wrong_keys_up_to_a_minute() {
        let throttle = KeyThrottle::default();
        // The eleventh begins the first wait; it came before any.
        assert_eq!(record(&throttle, ONE, 11, at(1)), None);
        for (further, seconds) in [
            (1, 1),
            (8, 1),
            (1, 2),
            (9, 2),
            (1, 4),
            (10, 8),
            (10, 16),
            (10, 32),
            (10, 60),
            (1000, 60),
        ] {
            let wait = record(&throttle, ONE, further, at(1));
            assert_eq!(wait, Some(seconds), "{further}");
        }
    }

    #[test]
    #[contract("S13")]
    fn a_wrong_key_after_the_wait_is_told_so_and_begins_another() {
        let throttle = KeyThrottle::default();
        record(&throttle, ONE, 11, at(0));
        assert_eq!(throttle.record_wrong_key(ONE, at(1)), None);
        assert_eq!(throttle.record_wrong_key(ONE, at(1)), Some(1));
        assert_eq!(throttle.throttled(), 1);
    }

    #[test]
    #[contract("S13")]
    fn a_request_without_a_key_waits_for_the_rest_and_adds_nothing() {
        let throttle = KeyThrottle::default();
        assert_eq!(throttle.wait_without_key(ONE, at(0)), None);
        record(&throttle, ONE, 41, at(0));
        let later = at(0) + Duration::from_millis(5500);
        for _ in 0..100 {
            assert_eq!(throttle.wait_without_key(ONE, later), Some(3));
        }
        assert_eq!(throttle.wait_without_key(ONE, at(8)), None);
        assert_eq!(throttle.wait_without_key(OTHER, at(0)), None);
    }

    #[test]
    #[contract("S13")]
    fn each_quiet_minute_forgives_ten_wrong_keys() {
        for (minutes, expected) in [(0, 8), (1, 4), (2, 2), (3, 1)] {
            let throttle = KeyThrottle::default();
            record(&throttle, ONE, 40, at(0));
            let later = at(minutes * 60);
            throttle.record_wrong_key(ONE, later);
            let wait = throttle.wait_without_key(ONE, later);
            assert_eq!(wait, Some(expected), "{minutes}");
        }
        let throttle = KeyThrottle::default();
        record(&throttle, ONE, 1000, at(0));
        assert_eq!(
            record(&throttle, ONE, 11, at(8 * 60)),
            None,
            "all is forgiven"
        );
    }

    #[test]
    #[contract("S13")]
    fn an_address_pays_for_no_other_and_the_table_is_bounded() {
        let throttle = KeyThrottle::default();
        record(&throttle, ONE, 50, at(0));
        assert_eq!(throttle.record_wrong_key(OTHER, at(0)), None);
        let many = u32::try_from(2 * MOST_ADDRESSES).unwrap();
        for address in 0..many {
            let address = PeerAddress::V4(Ipv4Addr::from_bits(address));
            throttle.record_wrong_key(address, at(0));
            // It goes on guessing, so others are forgotten before it.
            assert!(throttle.record_wrong_key(ONE, at(0)).is_some());
        }
        assert_eq!(throttle.addresses.lock().len(), MOST_ADDRESSES);
    }
}
