//! The order in which queued requests are bound: one pure function of a request's properties.
//!
//! The age of a request counts by the time of its arrival and not by the time waited, so a key
//! does not change with time: a queue can be an ordered structure with this key. What changes it is
//! an event: a request of its tenant is bound or ends (`tenant_order` moves the tenant's requests
//! together), or its estimate is refreshed.

use std::cmp::{Ordering, Reverse};

use kv_blocks::Moment;

/// The inputs of a request's rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OrderTerms {
    /// The higher band goes first.
    pub(crate) priority: i32,
    /// Where the request starts in the work of its tenant's programs.
    pub(crate) program_start_ms: f64,
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
    /// With slack: by priority band, then by the work that the tenant has received, over its
    /// weight, then by length less a share of the time waited.
    Waiting(Reverse<i32>, Milliseconds, Milliseconds),
}

/// The part of a rank that is the request's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestRank {
    pub(crate) band: Reverse<i32>,
    /// Its length, and where it starts in the work of its tenant's programs, less a share of the time
    /// waited.
    pub(crate) length: Milliseconds,
}

impl OrderTerms {
    /// Returns the rank at `now`; each millisecond waited makes up for `ageing` milliseconds of
    /// prefill. `tenant_virtual_ms`: the work that its tenant has received, over its weight.
    pub(crate) fn key(&self, now: Moment, ageing: f64, tenant_virtual_ms: f64) -> OrderKey {
        if self.is_overdue(now) {
            return OrderKey::Overdue(self.until);
        }
        let RequestRank { band, length } = self.rank(ageing);
        OrderKey::Waiting(band, Milliseconds(tenant_virtual_ms), length)
    }

    pub(crate) fn is_overdue(&self, now: Moment) -> bool {
        now >= self.until
    }

    /// Returns the part of the rank that is its own while there is slack.
    pub(crate) fn rank(&self, ageing: f64) -> RequestRank {
        let length_ms = self.uncached_ms + self.program_start_ms;
        RequestRank {
            band: Reverse(self.priority),
            length: Milliseconds(aged_ms(self.since, length_ms, ageing)),
        }
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
pub(crate) struct Milliseconds(pub(crate) f64);

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

    /// A request, and the virtual time of its tenant.
    fn terms() -> impl Strategy<Value = (OrderTerms, f64)> {
        (
            -2i32..3,
            0.0f64..3.0,
            0u64..100,
            0u64..100,
            prop_oneof![0.0f64..1e6, Just(f64::NAN), Just(f64::INFINITY)],
        )
            .prop_map(|(priority, tenant_virtual_ms, since, wait, uncached_ms)| {
                let terms = OrderTerms {
                    priority,
                    program_start_ms: 0.0,
                    since: at(since),
                    until: at(since + wait),
                    uncached_ms,
                };
                (terms, tenant_virtual_ms.floor())
            })
    }

    #[test]
    fn the_tenant_comes_after_the_priority_and_before_the_length() {
        let key = |priority, tenant_virtual_ms, uncached_ms| {
            let terms = OrderTerms {
                priority,
                program_start_ms: 0.0,
                since: at(1),
                until: at(9),
                uncached_ms,
            };
            terms.key(at(2), AGEING, tenant_virtual_ms)
        };
        assert!(key(1, 900.0, 900.0) < key(0, 0.0, 1.0));
        assert!(key(0, 10.0, 900.0) < key(0, 11.0, 1.0));
        assert!(key(0, 10.0, 1.0) < key(0, 10.0, 2.0));
    }

    proptest! {
        #[test]
        fn the_order_is_total_and_stable_while_there_is_slack(
            (one, two, three) in (terms(), terms(), terms()),
            (early, late) in (0u64..200, 0u64..200),
        ) {
            let key = |(terms, virtual_ms): &(OrderTerms, f64), now| terms.key(at(now), AGEING, *virtual_ms);
            for now in [early, late] {
                let (a, b, c) = (key(&one, now), key(&two, now), key(&three, now));
                prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
                prop_assert!(!(a <= b && b <= c) || a <= c);
            }
            let slack = |(terms, _): &(OrderTerms, f64)| at(early.max(late)) < terms.until;
            if slack(&one) && slack(&two) {
                prop_assert_eq!(key(&one, early).cmp(&key(&two, early)), key(&one, late).cmp(&key(&two, late)));
            }
        }

        #[test]
        fn overdue_requests_go_first_in_order_of_their_deadline(one in terms(), two in terms(), now in 0u64..200) {
            let key = |(terms, virtual_ms): (OrderTerms, f64)| terms.key(at(now), AGEING, virtual_ms);
            let (a, b) = (key(one), key(two));
            let (one, two) = (one.0, two.0);
            match (at(now) >= one.until, at(now) >= two.until) {
                (true, false) => prop_assert!(a < b),
                (true, true) => prop_assert_eq!(a.cmp(&b), one.until.cmp(&two.until)),
                _ => {}
            }
        }
    }
}
