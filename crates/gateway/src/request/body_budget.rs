//! How many bytes of request bodies are held, of all clients and of each address.
//!
//! Bytes count as they arrive. So that no client can keep others out, a part of all bytes is left to small bodies, and a
//! part to other addresses:
//!
//! | at most | one address | all |
//! |---|---|---|
//! | bodies that are not small | 3/4 | 7/8 |
//! | all bodies | 7/8 | all |
//!
//! of `server.max_held_bytes`, and never less than one body of `server.max_body_bytes`.
//!
//! **Invariant**: what is counted is what the [`Room`]s that live have, so an address without bodies has no entry.

use std::{collections::HashMap, sync::Arc};

use dialect::{ApiError, ErrorCode};
use net::server::PeerAddress;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;

use crate::{memory::SMALL_BODY, metrics::HELD_BYTES};

/// When to come back if bodies have too many bytes together.
const RETRY_S: u32 = 1;
/// Bytes that count from the head on where a length is announced: a body that small is refused before it is sent.
const ANNOUNCED_PART: u64 = 16 * 1024;

/// The bytes of all bodies that are held.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    state: Mutex<BudgetState>,
    gauge: Gauge,
}

#[derive(Debug, Default)]
struct BudgetState {
    all: HeldBytes,
    /// Bounded by the number of connections: only addresses that hold bytes are in it.
    peers: HashMap<PeerAddress, HeldBytes>,
}

/// What somebody holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeldBytes {
    total: u64,
    /// Those of bodies that are not small.
    large: u64,
}

impl HeldBytes {
    fn of_body(bytes: u64, large: bool) -> Self {
        Self {
            total: bytes,
            large: if large { bytes } else { 0 },
        }
    }

    /// The same with `new` in place of `old`.
    fn changed(self, old: Self, new: Self) -> Self {
        Self {
            total: self.total - old.total + new.total,
            large: self.large - old.large + new.large,
        }
    }

    fn fit(self, most: Self) -> bool {
        self.total <= most.total && self.large <= most.large
    }
}

/// The limits in force.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    /// `server.max_held_bytes`.
    pub(crate) max_held: u64,
    /// `server.max_body_bytes`.
    pub(crate) max_body: u64,
}

impl BodyLimits {
    /// Bodies up to this are small, whatever the largest may be.
    fn small(self) -> u64 {
        SMALL_BODY.min(self.max_body / 8)
    }

    fn of_all(self) -> HeldBytes {
        HeldBytes {
            total: self.max_held,
            large: self.all_but(8),
        }
    }

    fn of_one_address(self) -> HeldBytes {
        HeldBytes {
            total: self.all_but(8),
            large: self.all_but(4),
        }
    }

    /// All but one part in so many. A body that is not too long must fit beside no others.
    fn all_but(self, parts: u64) -> u64 {
        (self.max_held - self.max_held / parts).max(self.max_body.min(self.max_held))
    }
}

impl BodyBudget {
    /// Nothing is held yet; `gauge` shows what is.
    pub(crate) fn new(gauge: Gauge) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            gauge,
        })
    }

    /// Room for a body of `peer` that is about to come. One that would not fit as it is announced is refused at once, but
    /// room is taken for little of it: the rest counts as it arrives.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        peer: PeerAddress,
        announced: Option<u64>,
        limits: BodyLimits,
    ) -> Result<BodyPermit, ApiError> {
        let mut room = self.empty(peer);
        let Some(announced) = announced else {
            return Ok(room);
        };
        room.large = announced > limits.small();
        if announced > ANNOUNCED_PART {
            room.take(announced, limits, ReserveMode::Nothing)?;
        }
        room.take(announced.min(ANNOUNCED_PART), limits, ReserveMode::Bytes)?;
        Ok(room)
    }

    /// Room for nothing.
    pub(crate) fn empty(self: &Arc<Self>, peer: PeerAddress) -> BodyPermit {
        BodyPermit {
            bytes: 0,
            large: false,
            peer,
            budget: Arc::clone(self),
        }
    }
}

impl BudgetState {
    fn change(&mut self, peer: PeerAddress, old: HeldBytes, new: HeldBytes) -> u64 {
        self.all = self.all.changed(old, new);
        let of_peer = self
            .peers
            .get(&peer)
            .copied()
            .unwrap_or_default()
            .changed(old, new);
        if of_peer == HeldBytes::default() {
            self.peers.remove(&peer);
        } else {
            self.peers.insert(peer, of_peer);
        }
        self.all.total
    }

    fn fits(&self, peer: PeerAddress, old: HeldBytes, new: HeldBytes, limits: BodyLimits) -> bool {
        let of_peer = self.peers.get(&peer).copied().unwrap_or_default();
        self.all.changed(old, new).fit(limits.of_all())
            && of_peer.changed(old, new).fit(limits.of_one_address())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReserveMode {
    Bytes,
    /// Only looks whether they would fit.
    Nothing,
}

/// Room for a body. Dropping it gives the room back.
#[derive(Debug)]
pub(crate) struct BodyPermit {
    bytes: u64,
    large: bool,
    peer: PeerAddress,
    budget: Arc<BodyBudget>,
}

impl BodyPermit {
    /// The body has so many bytes by now. Those that were announced have room already.
    pub(crate) fn grow_to(&mut self, bytes: u64, limits: BodyLimits) -> Result<(), ApiError> {
        if bytes <= self.bytes {
            return Ok(());
        }
        self.take(bytes, limits, ReserveMode::Bytes)
    }

    fn take(&mut self, bytes: u64, limits: BodyLimits, take: ReserveMode) -> Result<(), ApiError> {
        let large = self.large || bytes > limits.small();
        let (old, new) = (
            HeldBytes::of_body(self.bytes, self.large),
            HeldBytes::of_body(bytes, large),
        );
        let mut state = self.budget.state.lock();
        // Room for nothing is always there.
        if bytes > 0 && !state.fits(self.peer, old, new, limits) {
            return Err(refusal(bytes, limits));
        }
        if take == ReserveMode::Bytes {
            self.budget
                .gauge
                .set(signed(state.change(self.peer, old, new)));
            (self.bytes, self.large) = (bytes, large);
        }
        Ok(())
    }

    /// The room is for so many bytes from now on, whether they fit or not: they are there.
    pub(crate) fn set(&mut self, bytes: u64) {
        if bytes == self.bytes {
            return;
        }
        let (old, new) = (
            HeldBytes::of_body(self.bytes, self.large),
            HeldBytes::of_body(bytes, self.large),
        );
        let mut state = self.budget.state.lock();
        self.budget
            .gauge
            .set(signed(state.change(self.peer, old, new)));
        self.bytes = bytes;
    }

    /// Room for so many bytes beside these, whether they fit or not.
    pub(crate) fn reserve_extra(&self, bytes: u64) -> Self {
        let mut room = self.budget.empty(self.peer);
        room.large = self.large;
        room.set(bytes);
        room
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        self.set(0);
    }
}

fn refusal(bytes: u64, limits: BodyLimits) -> ApiError {
    ApiError::new(
        ErrorCode::Overloaded,
        format!(
            "a request body of {bytes} bytes or more does not fit beside those of the running requests \
             (server.max_held_bytes is {}, of which a part is left to small bodies and to other clients): try again",
            limits.max_held
        ),
    )
    .with_retry_after(RETRY_S)
    .because(HELD_BYTES)
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const LIMITS: BodyLimits = BodyLimits {
        max_held: 800,
        max_body: 80,
    };
    const ONE: PeerAddress = PeerAddress::V6(1);
    const OTHER: PeerAddress = PeerAddress::V6(2);

    fn budget() -> (Arc<BodyBudget>, Gauge) {
        let gauge = Gauge::default();
        (BodyBudget::new(gauge.clone()), gauge)
    }

    /// As many bodies of so many bytes as have room.
    fn fill(budget: &Arc<BodyBudget>, peer: PeerAddress, bytes: u64) -> Vec<BodyPermit> {
        let body = || {
            let mut room = budget.reserve(peer, None, LIMITS)?;
            room.grow_to(bytes, LIMITS).map(|()| room)
        };
        std::iter::from_fn(|| body().ok()).take(1000).collect()
    }

    #[test]
    #[contract("F76", "I7")]
    fn bodies_have_room_up_to_the_limit_and_give_it_back() {
        let (budget, gauge) = budget();
        let small = fill(&budget, ONE, 10);
        assert_eq!(gauge.get(), 700, "an eighth is left to other addresses");
        let refused = budget
            .reserve(ONE, Some(1), LIMITS)
            .expect_err("one byte too many");
        assert_eq!(
            (refused.status, refused.counted_as(), refused.retry_after()),
            (503, "held_bytes", Some(1))
        );
        assert!(
            budget.reserve(ONE, Some(0), LIMITS).is_ok(),
            "nothing always fits"
        );
        let others = fill(&budget, OTHER, 10);
        assert_eq!(gauge.get(), 800);
        drop((small, others));
        assert_eq!((gauge.get(), budget.state.lock().peers.len()), (0, 0));
    }

    #[test]
    #[contract("F76", "S33")]
    fn large_bodies_leave_room_for_small_ones_and_for_other_addresses() {
        let (budget, gauge) = budget();
        let _large = fill(&budget, ONE, 20);
        assert_eq!(gauge.get(), 600);
        let small = fill(&budget, ONE, 10);
        assert_eq!(gauge.get(), 700, "of the same address");
        drop(small);
        let _others = fill(&budget, OTHER, 20);
        assert_eq!(gauge.get(), 700);
        let _small = fill(&budget, OTHER, 10);
        assert_eq!(gauge.get(), 800);
    }

    #[test]
    #[contract("F76")]
    fn what_is_announced_is_looked_at_and_takes_little_room() {
        let (budget, gauge) = budget();
        let limits = BodyLimits {
            max_held: 800 << 10,
            max_body: 400 << 10,
        };
        let silent: Vec<_> = (0..13)
            .map(|_| budget.reserve(ONE, Some(400 << 10), limits).expect("room"))
            .collect();
        assert_eq!(gauge.get(), 13 * (16 << 10));
        let refused = budget.reserve(ONE, Some(400 << 10), limits).err();
        assert_eq!(
            refused.map(|error| error.status),
            Some(503),
            "it would not fit any more"
        );
        drop(silent);
        let mut room = budget.reserve(ONE, Some(400 << 10), limits).expect("room");
        assert!(room.grow_to(1, limits).is_ok());
        assert_eq!(gauge.get(), 16 << 10);
        assert!(room.grow_to(400 << 10, limits).is_ok());
        assert_eq!(gauge.get(), 400 << 10);
    }

    #[test]
    fn the_longest_body_fits_beside_no_others() {
        let (budget, _) = budget();
        let limits = BodyLimits {
            max_held: 800,
            max_body: 800,
        };
        let mut room = budget.reserve(ONE, Some(800), limits).expect("room");
        assert!(room.grow_to(800, limits).is_ok());
        assert!(budget.reserve(ONE, Some(1), limits).is_err());
    }
}
