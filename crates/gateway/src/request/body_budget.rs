//! Buffered request bodies and whole replies, and the budget for them, in total and per holder: the
//! client's address, and its tenant where there are several.
//!
//! Bytes count as they arrive. So that no client can lock others out, a share of the budget is
//! reserved for small bodies, a share for other addresses, and a share for other tenants:
//!
//! | at most | one tenant | one address | all |
//! |---|---|---|---|
//! | bodies that are not small, and replies | 1/2 | 3/4 | 7/8 |
//! | all bodies and replies | 5/8 | 7/8 | all |
//!
//! of `server.max_held_bytes`, and never less than one body of `server.max_body_bytes`. A tenant has
//! less than an address, because all tenants may come from one: that of a proxy. A whole reply counts
//! for those that get it: a client that does not read its replies leaves room for small bodies.
//!
//! **Invariant**: the count is the sum over all live [`BodyPermit`]s, so a holder without bodies has
//! no entry. The bytes of a body and of its copies count for as long as they exist.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use dialect::{ApiError, ErrorCode};
use net::server::PeerAddress;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;

use crate::{memory::SMALL_BODY, metrics::BUFFERED_BYTES};

/// `Retry-After` if the budget is used up, in seconds.
const RETRY_S: u32 = 1;
/// Bytes that count from the head on where a length is announced: so a body this small is refused
/// before the client sends it.
const ANNOUNCED_PART: u64 = 16 * 1024;

/// The bytes of all buffered bodies and whole replies.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    state: Mutex<BudgetState>,
    gauge: Gauge,
}

#[derive(Debug, Default)]
struct BudgetState {
    all: BufferedBytes,
    /// Bounded by the number of requests, and of replies that are not written yet: it has entries only
    /// for holders with buffered bytes.
    holders: HashMap<BodyHolder, BufferedBytes>,
}

/// Whose bytes are counted beside those of all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum BodyHolder {
    Address(PeerAddress),
    /// The name of a tenant.
    Tenant(Arc<str>),
}

/// The sender of a body: each of its holders must have room for it.
#[derive(Clone, Debug)]
pub(crate) struct BodySender {
    pub(crate) peer: PeerAddress,
    /// The name of its tenant; `None`: there are no others, or the route needs no key.
    pub(crate) tenant: Option<Arc<str>>,
}

impl BodySender {
    fn holders(&self) -> impl Iterator<Item = BodyHolder> {
        let tenant = self.tenant.clone().map(BodyHolder::Tenant);
        std::iter::once(BodyHolder::Address(self.peer)).chain(tenant)
    }
}

/// The buffered bytes of one holder, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BufferedBytes {
    total: u64,
    /// Bytes of bodies that are not small.
    large: u64,
}

impl BufferedBytes {
    fn of_body(bytes: u64, large: bool) -> Self {
        Self {
            total: bytes,
            large: if large { bytes } else { 0 },
        }
    }

    /// Returns the sum with `old` replaced by `new`.
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

/// The configured limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    /// `server.max_held_bytes`.
    pub(crate) max_buffered: u64,
    /// `server.max_body_bytes`.
    pub(crate) max_body: u64,
}

impl BodyLimits {
    /// Returns the largest size of a small body.
    fn small(self) -> u64 {
        SMALL_BODY.min(self.max_body / 8)
    }

    fn of_all(self) -> BufferedBytes {
        self.all_but(0)
    }

    fn of_one(self, holder: &BodyHolder) -> BufferedBytes {
        match holder {
            BodyHolder::Address(_) => self.all_but(1),
            BodyHolder::Tenant(_) => self.all_but(3),
        }
    }

    /// Returns `max_buffered` less so many eighths, of which large bodies leave one more to small
    /// ones. It is at least one body of the largest allowed size, which must fit when there are no
    /// others.
    fn all_but(self, eighths: u64) -> BufferedBytes {
        let less = |eighths: u64| {
            let rest = self.max_buffered - self.max_buffered / 8 * eighths;
            rest.max(self.max_body.min(self.max_buffered))
        };
        BufferedBytes {
            total: less(eighths),
            large: less(eighths + 1),
        }
    }
}

impl BodyBudget {
    /// Creates an empty budget; `gauge` shows its bytes.
    pub(crate) fn new(gauge: Gauge) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            gauge,
        })
    }

    /// Reserves space for a body of `sender` before it arrives. A body whose announced length does
    /// not fit is refused at once, but only a small part of that length counts now: the rest counts
    /// as it arrives.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        sender: BodySender,
        announced: Option<u64>,
        limits: BodyLimits,
    ) -> Result<BodyPermit, ApiError> {
        let mut permit = self.empty(sender, limits);
        let Some(announced) = announced else {
            return Ok(permit);
        };
        permit.large = announced > limits.small();
        if announced > ANNOUNCED_PART {
            permit.take(announced, ReserveMode::Nothing)?;
        }
        permit.take(announced.min(ANNOUNCED_PART), ReserveMode::Bytes)?;
        Ok(permit)
    }

    /// Returns a permit of zero bytes, which grows within `limits`.
    pub(crate) fn empty(self: &Arc<Self>, sender: BodySender, limits: BodyLimits) -> BodyPermit {
        BodyPermit {
            bytes: 0,
            large: false,
            sender,
            limits,
            budget: Arc::clone(self),
        }
    }
}

impl BudgetState {
    fn of_one(&self, holder: &BodyHolder) -> BufferedBytes {
        self.holders.get(holder).copied().unwrap_or_default()
    }

    fn change(&mut self, sender: &BodySender, old: BufferedBytes, new: BufferedBytes) -> u64 {
        self.all = self.all.changed(old, new);
        for holder in sender.holders() {
            let of_holder = self.of_one(&holder).changed(old, new);
            if of_holder == BufferedBytes::default() {
                self.holders.remove(&holder);
            } else {
                self.holders.insert(holder, of_holder);
            }
        }
        self.all.total
    }

    fn fits(
        &self,
        sender: &BodySender,
        old: BufferedBytes,
        new: BufferedBytes,
        limits: BodyLimits,
    ) -> bool {
        let has_room = |holder: BodyHolder| {
            let of_holder = self.of_one(&holder).changed(old, new);
            of_holder.fit(limits.of_one(&holder))
        };
        self.all.changed(old, new).fit(limits.of_all()) && sender.holders().all(has_room)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReserveMode {
    Bytes,
    /// Only checks whether the bytes would fit.
    Nothing,
}

/// One body's share of the budget. Dropping it returns the bytes.
#[derive(Debug)]
pub(crate) struct BodyPermit {
    bytes: u64,
    large: bool,
    sender: BodySender,
    limits: BodyLimits,
    budget: Arc<BodyBudget>,
}

impl BodyPermit {
    /// Grows the permit to `bytes` in total; announced bytes are already counted.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> Result<(), ApiError> {
        if bytes <= self.bytes {
            return Ok(());
        }
        self.take(bytes, ReserveMode::Bytes)
    }

    fn take(&mut self, bytes: u64, take: ReserveMode) -> Result<(), ApiError> {
        let limits = self.limits;
        let large = self.large || bytes > limits.small();
        let (old, new) = (
            BufferedBytes::of_body(self.bytes, self.large),
            BufferedBytes::of_body(bytes, large),
        );
        let mut state = self.budget.state.lock();
        // Zero bytes always fit.
        if bytes > 0 && !state.fits(&self.sender, old, new, limits) {
            return Err(refusal(bytes, limits));
        }
        if take == ReserveMode::Bytes {
            self.budget
                .gauge
                .set(signed(state.change(&self.sender, old, new)));
            (self.bytes, self.large) = (bytes, large);
        }
        Ok(())
    }

    /// Sets the permit to `bytes` without a check: the bytes already exist.
    pub(crate) fn set(&mut self, bytes: u64) {
        if bytes == self.bytes {
            return;
        }
        let (old, new) = (
            BufferedBytes::of_body(self.bytes, self.large),
            BufferedBytes::of_body(bytes, self.large),
        );
        let mut state = self.budget.state.lock();
        self.budget
            .gauge
            .set(signed(state.change(&self.sender, old, new)));
        self.bytes = bytes;
    }

    /// Returns a second permit of `bytes`, without a check.
    pub(crate) fn reserve_extra(&self, bytes: u64) -> Self {
        let mut permit = self.budget.empty(self.sender.clone(), self.limits);
        permit.large = self.large;
        permit.set(bytes);
        permit
    }

    /// Returns the bytes of a reply, which keep this permit until the last clone of them is dropped:
    /// also while they wait in the connection's buffer for a client that does not read.
    pub(crate) fn hold(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(CountedReply {
            bytes,
            _permit: self,
        })
    }
}

/// A whole reply, with its share of the budget.
struct CountedReply {
    bytes: Bytes,
    _permit: BodyPermit,
}

impl AsRef<[u8]> for CountedReply {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A request's body, with its share of the budget.
#[derive(Debug)]
pub(crate) struct BufferedBody {
    bytes: Bytes,
    permit: BodyPermit,
}

impl BufferedBody {
    /// Creates a body whose permit is granted.
    pub(crate) fn new(bytes: Bytes, mut permit: BodyPermit) -> Self {
        permit.set(bytes.len() as u64);
        Self { bytes, permit }
    }

    /// Returns a second body with these bytes, counted beside the first.
    pub(crate) fn with_extra(&self, bytes: Bytes) -> Self {
        let permit = self.permit.reserve_extra(bytes.len() as u64);
        Self { bytes, permit }
    }

    /// Returns an empty permit for the reply to this body.
    pub(crate) fn reply_permit(&self) -> BodyPermit {
        let mut permit = self.permit.reserve_extra(0);
        permit.large = true;
        permit
    }

    /// Counts the bytes of a reply that exist already, if they fit: beyond the limit they would
    /// take the room of other clients.
    pub(crate) fn hold_reply(&self, bytes: Bytes) -> Bytes {
        let mut permit = self.reply_permit();
        match permit.grow_to(bytes.len() as u64) {
            Ok(()) => permit.hold(bytes),
            Err(_) => bytes,
        }
    }

    /// Returns the client's bytes; a clone shares them.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Replaces the client's bytes.
    pub(crate) fn replace(&mut self, bytes: Bytes) {
        self.permit.set(bytes.len() as u64);
        self.bytes = bytes;
    }
}

impl Clone for BufferedBody {
    fn clone(&self) -> Self {
        self.with_extra(self.bytes.clone())
    }
}

fn refusal(bytes: u64, limits: BodyLimits) -> ApiError {
    ApiError::new(
        ErrorCode::Overloaded,
        format!(
            "a request body of {bytes} bytes or more does not fit beside those of the running requests \
             (server.max_held_bytes is {}, of which parts are left to small bodies, other addresses and other tenants): try again",
            limits.max_buffered
        ),
    )
    .with_retry_after(RETRY_S)
    .because(BUFFERED_BYTES)
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const LIMITS: BodyLimits = BodyLimits {
        max_buffered: 800,
        max_body: 80,
    };
    const ONE: BodySender = BodySender {
        peer: PeerAddress::V6(1),
        tenant: None,
    };
    const OTHER: BodySender = BodySender {
        peer: PeerAddress::V6(2),
        tenant: None,
    };

    fn budget() -> (Arc<BodyBudget>, Gauge) {
        let gauge = Gauge::default();
        (BodyBudget::new(gauge.clone()), gauge)
    }

    /// A client of a tenant that has others beside it.
    fn of_tenant(name: &str, address: u64) -> BodySender {
        BodySender {
            peer: PeerAddress::V6(address),
            tenant: Some(name.into()),
        }
    }

    /// Creates permits of `bytes` each until no more fit.
    fn fill(budget: &Arc<BodyBudget>, sender: BodySender, bytes: u64) -> Vec<BodyPermit> {
        let body = || {
            let mut permit = budget.reserve(sender.clone(), None, LIMITS)?;
            permit.grow_to(bytes).map(|()| permit)
        };
        std::iter::from_fn(|| body().ok()).take(1000).collect()
    }

    #[test]
    #[contract("F76", "I7")]
    fn bodies_reserve_up_to_the_limit_and_release_it() {
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
        assert_eq!((gauge.get(), budget.state.lock().holders.len()), (0, 0));
    }

    #[test]
    #[contract("F76", "S33")]
    fn large_bodies_leave_budget_for_small_ones_and_for_other_addresses() {
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
    #[contract("F76", "S33")]
    fn a_tenant_leaves_budget_for_others_from_however_many_addresses_it_sends() {
        let (budget, gauge) = budget();
        let of_one = |bytes| {
            let bodies =
                (1..=3).flat_map(|address| fill(&budget, of_tenant("one", address), bytes));
            bodies.collect::<Vec<_>>()
        };
        let large = of_one(20);
        assert_eq!(gauge.get(), 400);
        let small = of_one(10);
        assert_eq!(gauge.get(), 500);
        // Also for one behind the address that the first tenant uses most.
        let others_large = fill(&budget, of_tenant("other", 1), 20);
        assert_eq!(gauge.get(), 700);
        let others_small = fill(&budget, of_tenant("other", 1), 10);
        assert_eq!(gauge.get(), 700, "the address has its part");
        let elsewhere = fill(&budget, of_tenant("other", 4), 10);
        assert_eq!(gauge.get(), 800);
        assert!(others_small.is_empty());
        // The bytes of bodies that end are free for either.
        drop((others_large, elsewhere));
        assert!(of_one(20).is_empty() && of_one(10).is_empty());
        drop(small);
        assert_eq!(of_one(10).len(), 10);
        drop(large);
        assert_eq!((gauge.get(), budget.state.lock().holders.len()), (0, 0));
    }

    #[test]
    #[contract("F76")]
    fn a_body_and_its_copies_count_once_for_their_tenant() {
        let (budget, gauge) = budget();
        let held = || {
            let state = budget.state.lock();
            state.of_one(&BodyHolder::Tenant("one".into())).total
        };
        let permit = budget
            .reserve(of_tenant("one", 1), Some(9), LIMITS)
            .expect("there is room");
        assert_eq!(held(), 9);
        let mut body = BufferedBody::new(Bytes::from_static(b"12345"), permit);
        assert_eq!(held(), 5);
        body.replace(Bytes::from_static(b"12"));
        let copy = body.with_extra(Bytes::from_static(b"123"));
        assert_eq!((held(), gauge.get()), (2 + 3, 2 + 3));
        drop((body, copy));
        assert_eq!((held(), gauge.get()), (0, 0));
    }

    #[test]
    #[contract("F76")]
    fn an_announced_length_is_checked_and_reserves_little() {
        let (budget, gauge) = budget();
        let limits = BodyLimits {
            max_buffered: 800 << 10,
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
        let mut permit = budget.reserve(ONE, Some(400 << 10), limits).expect("room");
        assert!(permit.grow_to(1).is_ok());
        assert_eq!(gauge.get(), 16 << 10);
        assert!(permit.grow_to(400 << 10).is_ok());
        assert_eq!(gauge.get(), 400 << 10);
    }

    #[test]
    fn the_longest_body_fits_into_an_empty_budget() {
        let (budget, _) = budget();
        let limits = BodyLimits {
            max_buffered: 800,
            max_body: 800,
        };
        let mut permit = budget.reserve(ONE, Some(800), limits).expect("room");
        assert!(permit.grow_to(800).is_ok());
        assert!(budget.reserve(ONE, Some(1), limits).is_err());
    }

    #[test]
    fn a_body_is_counted_by_its_bytes_and_not_by_its_announced_length() {
        let gauge: Gauge = Gauge::default();
        let budget = BodyBudget::new(gauge.clone());
        let limits = BodyLimits {
            max_buffered: 100,
            max_body: 100,
        };
        let permit = budget.reserve(ONE, Some(9), limits).expect("there is room");
        assert_eq!(gauge.get(), 9);
        let mut body = BufferedBody::new(Bytes::from_static(b"12345"), permit);
        assert_eq!(gauge.get(), 5);
        body.replace(Bytes::from_static(b"12"));
        let extra = body.with_extra(Bytes::from_static(b"123"));
        assert_eq!(gauge.get(), 2 + 3);
        drop((body.clone(), body, extra));
        assert_eq!(gauge.get(), 0);
    }

    #[test]
    #[contract("F76")]
    fn replies_count_until_their_last_copy_is_gone_and_leave_room_for_small_bodies() {
        let (budget, gauge) = budget();
        let body = BufferedBody::new(Bytes::new(), budget.empty(ONE, LIMITS));
        let reply = || {
            let mut permit = body.reply_permit();
            let fits = permit.grow_to(10).is_ok();
            fits.then(|| permit.hold(Bytes::from_static(b"0123456789")))
        };
        let replies: Vec<_> = std::iter::from_fn(reply).take(1000).collect();
        assert_eq!(gauge.get(), 600, "no more fit");
        let small = fill(&budget, ONE, 10);
        assert_eq!(gauge.get(), 700, "of the same address");
        drop(small);
        let copy = replies.first().cloned();
        drop((replies, body));
        assert_eq!(gauge.get(), 10);
        assert_eq!(copy.as_deref(), Some(&b"0123456789"[..]));
        drop(copy);
        assert_eq!((gauge.get(), budget.state.lock().holders.len()), (0, 0));
    }

    #[test]
    #[contract("F76")]
    fn a_reply_that_does_not_fit_takes_no_room_of_others() {
        let (budget, gauge) = budget();
        let body = BufferedBody::new(Bytes::new(), budget.empty(ONE, LIMITS));
        let first = body.hold_reply(Bytes::from(vec![0; 600]));
        let second = body.hold_reply(Bytes::from(vec![0; 600]));
        assert_eq!((first.len(), second.len(), gauge.get()), (600, 600, 600));
        drop(first);
        assert_eq!(gauge.get(), 0);
    }
}
