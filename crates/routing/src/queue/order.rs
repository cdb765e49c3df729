//! The order in which queued requests are bound: one pure function of a request's properties.
//!
//! The age of a request counts by the time of its arrival and not by the time waited, so a key
//! does not change with time: a queue can be an ordered structure with this key. What changes it is
//! an event: a request of its tenant is bound or ends (`tenant_order` moves the tenant's requests
//! together), its estimate is refreshed, or the last moment passes at which it could begin and still
//! meet its target.

use std::{
    cmp::{Ordering, Reverse},
    time::Duration,
};

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
    /// Its target for the time to first token, if it has one.
    pub(crate) target: Option<TargetTerms>,
}

/// A target for the time to first token, as a term of the order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TargetTerms {
    /// When the request arrived at the router.
    pub(crate) arrived: Moment,
    /// When its first token is due.
    pub(crate) due: Moment,
    /// Time from its beginning on a target to its first token.
    pub(crate) needs: TtftNeeds,
    /// The request has used up its wait: it lets nobody go first for being too late.
    pub(crate) is_lapsed: bool,
}

/// Predicted time from the beginning of a request on a target to its first token, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TtftNeeds {
    /// Enough for half of such requests: whether one can meet its target still.
    pub(crate) likely_ms: f64,
    /// Enough for nine in ten: how much slack one has.
    pub(crate) cautious_ms: f64,
}

/// The slack of a request without a target when it arrives. One with a target counts as having
/// arrived earlier by what its own slack is shorter.
const SLACK_WITHOUT_TARGET: Duration = Duration::from_secs(30);

/// A rank in the order: the lesser is bound first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OrderKey {
    /// Without slack: ordered by the due time, whatever the priority and length.
    Overdue(Moment),
    /// With slack: by priority band, then by the work that the tenant has received, over its
    /// weight, then by whether its target can still be met, then by length less a share of the time
    /// waited.
    Waiting(Reverse<i32>, Milliseconds, bool, Milliseconds),
}

/// The part of a rank that is the request's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestRank {
    pub(crate) band: Reverse<i32>,
    /// It cannot meet its target any more: the others of its tenant, who can or have none, go first.
    pub(crate) is_late: bool,
    /// Its length, and where it starts in the work of its tenant's programs, less a share of the time
    /// waited.
    pub(crate) length: Milliseconds,
}

impl TtftNeeds {
    /// Returns the needs by a prediction whose errors are not known.
    pub(crate) fn exactly(ms: f64) -> Self {
        Self {
            likely_ms: ms,
            cautious_ms: ms,
        }
    }
}

impl TargetTerms {
    /// Returns the last moment at which the request can begin and is likely to meet its target.
    pub(crate) fn start_by(&self) -> Moment {
        self.before_due(self.needs.likely_ms)
    }

    /// Returns the moment so long before the first token is due.
    fn before_due(&self, ms: f64) -> Moment {
        let needs = Duration::try_from_secs_f64(ms / 1e3);
        self.due - needs.unwrap_or(Duration::MAX)
    }
}

impl OrderTerms {
    /// Returns the rank at `now`; each millisecond waited makes up for `ageing` milliseconds of
    /// prefill. `tenant_virtual_ms`: the work that its tenant has received, over its weight.
    pub(crate) fn key(&self, now: Moment, ageing: f64, tenant_virtual_ms: f64) -> OrderKey {
        if self.is_overdue(now) {
            return OrderKey::Overdue(self.until);
        }
        let RequestRank {
            band,
            is_late,
            length,
        } = self.rank(now, ageing);
        OrderKey::Waiting(band, Milliseconds(tenant_virtual_ms), is_late, length)
    }

    pub(crate) fn is_overdue(&self, now: Moment) -> bool {
        now >= self.until
    }

    /// Returns the part of the rank that is its own while there is slack.
    pub(crate) fn rank(&self, now: Moment, ageing: f64) -> RequestRank {
        let length_ms = self.uncached_ms + self.program_start_ms;
        let earlier_ms = ageing * self.urgency().as_secs_f64() * 1e3;
        RequestRank {
            band: Reverse(self.priority),
            is_late: self.start_by().is_some_and(|last| last < now),
            length: Milliseconds(aged_ms(self.since, length_ms, ageing) - earlier_ms),
        }
    }

    /// Returns the last moment at which the request can begin and is likely to meet its target, if it
    /// has one that still counts.
    pub(crate) fn start_by(&self) -> Option<Moment> {
        let target = self.target.filter(|target| !target.is_lapsed);
        target.map(|target| target.start_by())
    }

    /// Returns by how much its slack at its arrival is shorter than that of a request without a
    /// target.
    fn urgency(&self) -> Duration {
        self.target.map_or(Duration::ZERO, |target| {
            let last = target.before_due(target.needs.cautious_ms);
            SLACK_WITHOUT_TARGET.saturating_sub(last.since(self.since))
        })
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

/// The order among requests with slack, without the shares of tenants and latency targets, as one
/// number, which an engine compares with those of all its requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EnginePriority {
    /// The number of a router whose time line begins in 1970.
    ms: f64,
    ageing: f64,
}

impl EnginePriority {
    pub(crate) fn new(priority: i32, since: Moment, ageing: f64, uncached_ms: f64) -> Self {
        Self {
            ms: aged_ms(since, uncached_ms, ageing) - PRIORITY_MS * f64::from(priority),
            ageing,
        }
    }

    /// Returns the number of a router that started this long after 1970: routers in front of one
    /// engine count from the same time, whenever they started. The lowest number goes first.
    pub fn number(&self, started: Duration) -> i64 {
        let ms = self.ms + self.ageing * started.as_secs_f64() * 1e3;
        // A float cast saturates at the ends of the range.
        #[allow(
            clippy::cast_possible_truncation,
            reason = "milliseconds are exact enough"
        )]
        let number = ms as i64;
        number
    }
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
    use proptest::prelude::*;

    use super::*;

    const AGEING: f64 = 0.2;

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    #[test]
    fn the_engine_priority_has_the_order_of_the_queue() {
        let rank_of = |priority, at_s, uncached_ms| {
            EnginePriority::new(priority, at(at_s), AGEING, uncached_ms).number(Duration::ZERO)
        };
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

    #[test]
    fn routers_that_started_at_different_times_give_one_order() {
        // 2026, and two days later.
        let (long_ago, just_now) = (1_767_225_600, 1_767_398_400);
        let number = |started_s: u64, at_unix_s: u64, priority: i32, uncached_ms: f64| {
            let since = at(at_unix_s - started_s);
            EnginePriority::new(priority, since, AGEING, uncached_ms)
                .number(Duration::from_secs(started_s))
        };
        let arrival = just_now + 60;
        for priority in [-100, 0, 100] {
            assert_eq!(
                number(long_ago, arrival, priority, 20.5),
                number(just_now, arrival, priority, 20.5)
            );
        }
        // Each second waited makes up for 200 ms.
        assert!(number(long_ago, arrival, 0, 300.0) < number(just_now, arrival + 2, 0, 20.0));
        assert!(number(just_now, arrival, 0, 300.0) < number(long_ago, arrival + 2, 0, 20.0));
        assert!(number(long_ago, arrival + 1, 0, 20.0) < number(just_now, arrival, 0, 300.0));
        assert!(number(just_now, arrival + 1, 1, 300.0) < number(long_ago, arrival, 0, 20.0));
    }

    /// A target of so many seconds after an arrival, for a request that needs so long.
    fn target(since: u64, ttft: u64, needs_ms: f64) -> Option<TargetTerms> {
        Some(TargetTerms {
            arrived: at(since),
            due: at(since + ttft),
            needs: TtftNeeds::exactly(needs_ms),
            is_lapsed: false,
        })
    }

    /// A request, and the virtual time of its tenant.
    fn terms() -> impl Strategy<Value = (OrderTerms, f64)> {
        let ms = || prop_oneof![0.0f64..1e6, Just(f64::NAN), Just(f64::INFINITY)];
        let ttft = prop::option::of((0u64..100, ms()));
        (-2i32..3, 0.0f64..3.0, 0u64..100, 0u64..100, ms(), ttft).prop_map(
            |(priority, tenant_virtual_ms, since, wait, uncached_ms, ttft)| {
                let terms = OrderTerms {
                    priority,
                    program_start_ms: 0.0,
                    since: at(since),
                    until: at(since + wait),
                    uncached_ms,
                    target: ttft.and_then(|(ttft, needs_ms)| target(since, ttft, needs_ms)),
                };
                (terms, tenant_virtual_ms.floor())
            },
        )
    }

    /// A request that arrived after so many seconds and has no target.
    fn plain(since: u64, uncached_ms: f64) -> OrderTerms {
        OrderTerms {
            priority: 0,
            program_start_ms: 0.0,
            since: at(since),
            until: at(since + 30),
            uncached_ms,
            target: None,
        }
    }

    /// The same with a target of so many seconds.
    fn aimed(since: u64, uncached_ms: f64, ttft: u64) -> OrderTerms {
        OrderTerms {
            target: target(since, ttft, uncached_ms),
            ..plain(since, uncached_ms)
        }
    }

    #[test]
    fn the_request_with_less_slack_goes_first_by_as_much_as_waiting_would_count() {
        let key = |terms: OrderTerms| terms.key(at(10), AGEING, 0.0);
        assert!(key(aimed(10, 100.0, 1)) < key(aimed(10, 100.0, 9)));
        assert!(key(aimed(10, 100.0, 9)) < key(plain(10, 100.0)));
        // 8 s less slack are worth 1.6 s of prefill, as 8 s of waiting would be.
        assert!(key(aimed(10, 600.0, 1)) < key(aimed(10, 100.0, 9)));
        assert!(key(aimed(10, 900.0, 11)) > key(aimed(10, 100.0, 13)));
        // A target that leaves more slack than a request without one has changes nothing.
        assert_eq!(key(aimed(10, 100.0, 60)), key(plain(10, 100.0)));
    }

    #[test]
    fn a_request_that_cannot_meet_its_target_any_more_waits_behind_those_that_can() {
        let late = aimed(10, 100.0, 2);
        let feasible = aimed(11, 5000.0, 20);
        let before = at(11);
        let after = at(12);
        assert!(late.key(before, AGEING, 0.0) < feasible.key(before, AGEING, 0.0));
        assert!(late.key(after, AGEING, 0.0) > feasible.key(after, AGEING, 0.0));
        assert!(late.key(after, AGEING, 0.0) > plain(11, 5000.0).key(after, AGEING, 0.0));
        // At the end of its wait it goes first.
        assert!(late.key(at(40), AGEING, 0.0) < feasible.key(at(40), AGEING, 0.0));
    }

    #[test]
    fn a_request_that_has_used_up_its_wait_lets_nobody_go_first_any_more() {
        let mut lapsed = aimed(10, 100.0, 2);
        assert!(lapsed.rank(at(50), AGEING).is_late);
        if let Some(target) = &mut lapsed.target {
            target.is_lapsed = true;
        }
        assert_eq!(lapsed.start_by(), None);
        let in_time = aimed(10, 100.0, 2).rank(at(10), AGEING);
        assert_eq!(lapsed.rank(at(50), AGEING), in_time);
    }

    #[test]
    fn slack_has_the_margin_of_predictions_and_lateness_has_not() {
        let mut wide = aimed(10, 1000.0, 5);
        if let Some(target) = &mut wide.target {
            target.needs.cautious_ms = 3000.0;
        }
        let narrow = aimed(10, 1000.0, 5);
        assert!(wide.key(at(11), AGEING, 0.0) < narrow.key(at(11), AGEING, 0.0));
        // Both can begin until 14 s.
        for (now, is_late) in [(13, false), (14, false), (15, true)] {
            for terms in [wide, narrow] {
                assert_eq!(terms.rank(at(now), AGEING).is_late, is_late, "{now}");
            }
        }
    }

    #[test]
    fn neither_a_target_nor_its_loss_comes_before_the_band_or_the_tenant() {
        let late = aimed(10, 100.0, 1);
        let key = |terms: OrderTerms, virtual_ms| terms.key(at(15), AGEING, virtual_ms);
        let urgent = aimed(15, 100.0, 1);
        assert!(key(late, 1.0) < key(urgent, 2.0));
        let above = OrderTerms {
            priority: 1,
            ..late
        };
        assert!(key(above, 9.0) < key(urgent, 2.0));
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
                target: None,
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
            let (first, last) = (at(early.min(late)), at(early.max(late)));
            // Its due time has not come, and whether it can meet its target has not changed.
            let slack = |(terms, _): &(OrderTerms, f64)| {
                last < terms.until && terms.start_by().is_none_or(|by| by < first || last <= by)
            };
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
