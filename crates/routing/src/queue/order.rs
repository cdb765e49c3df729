//! The order in which queued requests are bound: one pure function of a request's properties.
//!
//! The age of a request counts by the time of its arrival and not by the time waited, so a key
//! stays constant while time passes: a queue can be an ordered structure with this key.

use std::cmp::{Ordering, Reverse};

use kv_blocks::Moment;

/// The inputs of a request's rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OrderTerms {
    /// The higher band goes first.
    pub(crate) priority: i32,
    /// Work that the request's tenant has received, over its share. There is one tenant: always 0.
    pub(crate) tenant_virtual_ms: f64,
    /// When it arrived.
    pub(crate) since: Moment,
    /// Latest time at which it is bound: its slack is the time that is left until then.
    pub(crate) until: Moment,
    /// Estimated time to compute the uncached tokens.
    pub(crate) uncached_ms: f64,
}

/// A rank in the order: the lesser is bound first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OrderKey {
    /// Without slack: ordered by the due time, whatever the priority and length.
    Overdue(Moment),
    /// With slack: by priority band, then by the tenant's work, then by length less a share of the
    /// time waited.
    Waiting(Reverse<i32>, Milliseconds, Milliseconds),
}

impl OrderTerms {
    /// Returns the rank at `now`; each millisecond waited makes up for `ageing` milliseconds of
    /// prefill.
    pub(crate) fn key(&self, now: Moment, ageing: f64) -> OrderKey {
        if now >= self.until {
            OrderKey::Overdue(self.until)
        } else {
            self.waiting_key(ageing)
        }
    }

    /// Returns the rank while there is slack, which does not depend on the time.
    pub(crate) fn waiting_key(&self, ageing: f64) -> OrderKey {
        let length = Milliseconds(aged_ms(self.since, self.uncached_ms, ageing));
        OrderKey::Waiting(
            Reverse(self.priority),
            Milliseconds(self.tenant_virtual_ms),
            length,
        )
    }
}

/// Returns the length with the arrival added: the difference in time waited between two requests is
/// constant.
fn aged_ms(since: Moment, uncached_ms: f64, ageing: f64) -> f64 {
    uncached_ms + ageing * since.since_start().as_secs_f64() * 1e3
}

/// Milliseconds that one step of priority makes up for in an engine's queue: eight months at the
/// default ageing.
const PRIORITY_MS: f64 = 1e9;

/// Returns the order among requests with slack as one number, which an engine compares with those
/// of all its requests.
pub(crate) fn engine_priority(priority: i32, since: Moment, ageing: f64, uncached_ms: f64) -> i64 {
    let ms = aged_ms(since, uncached_ms, ageing) - PRIORITY_MS * f64::from(priority);
    // A float cast saturates at the ends of the range.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "milliseconds are exact enough"
    )]
    let number = ms as i64;
    number
}

/// A number of milliseconds with a total order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Milliseconds(f64);

impl PartialEq for Milliseconds {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Milliseconds {}

impl PartialOrd for Milliseconds {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Milliseconds {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const AGEING: f64 = 0.2;

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    #[test]
    fn the_engine_priority_has_the_order_of_the_queue() {
        let rank_of =
            |priority, at_s, uncached_ms| engine_priority(priority, at(at_s), AGEING, uncached_ms);
        assert!(
            rank_of(0, 10, 20.0) < rank_of(0, 10, 300.0),
            "the shorter first"
        );
        // Each second waited makes up for 200 ms.
        assert!(
            rank_of(0, 10, 300.0) < rank_of(0, 12, 20.0),
            "the one that has waited long enough first"
        );
        assert!(rank_of(0, 11, 20.0) < rank_of(0, 10, 300.0));
        assert!(
            rank_of(1, 1_000_000, 1e6) < rank_of(0, 0, 0.0),
            "priority before all"
        );
        assert!(rank_of(-1, 0, 0.0) > rank_of(0, 1_000_000, 1e6));
    }

    fn terms() -> impl Strategy<Value = OrderTerms> {
        (
            -2i32..3,
            0.0f64..3.0,
            0u64..100,
            0u64..100,
            prop_oneof![0.0f64..1e6, Just(f64::NAN), Just(f64::INFINITY)],
        )
            .prop_map(|(priority, tenant_virtual_ms, since, wait, uncached_ms)| {
                OrderTerms {
                    priority,
                    tenant_virtual_ms: tenant_virtual_ms.floor(),
                    since: at(since),
                    until: at(since + wait),
                    uncached_ms,
                }
            })
    }

    proptest! {
        #[test]
        fn the_order_is_total_and_stable_while_there_is_slack(
            (one, two, three) in (terms(), terms(), terms()),
            (early, late) in (0u64..200, 0u64..200),
        ) {
            let key = |terms: &OrderTerms, now| terms.key(at(now), AGEING);
            for now in [early, late] {
                let (a, b, c) = (key(&one, now), key(&two, now), key(&three, now));
                prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
                prop_assert!(!(a <= b && b <= c) || a <= c);
            }
            let slack = |terms: &OrderTerms| at(early.max(late)) < terms.until;
            if slack(&one) && slack(&two) {
                prop_assert_eq!(key(&one, early).cmp(&key(&two, early)), key(&one, late).cmp(&key(&two, late)));
            }
        }

        #[test]
        fn overdue_requests_go_first_in_order_of_their_deadline(one in terms(), two in terms(), now in 0u64..200) {
            let (a, b) = (one.key(at(now), AGEING), two.key(at(now), AGEING));
            match (at(now) >= one.until, at(now) >= two.until) {
                (true, false) => prop_assert!(a < b),
                (true, true) => prop_assert_eq!(a.cmp(&b), one.until.cmp(&two.until)),
                _ => {}
            }
        }
    }
}
