//! What responses without counts reserved of their tenants' tokens: one that is computed in the
//! background is settled when a client fetches it with its counts.
//!
//! **Invariant**: at most [`MOST`] are remembered, each for [`TTL`]; the oldest is dropped first. One
//! that is dropped costs what it reserved.

use std::collections::{HashMap, VecDeque};

use kv_blocks::Moment;
use parking_lot::Mutex;
use tenants::TokenAmounts;

use crate::response_affinity::TTL;

/// Most responses.
const MOST: usize = 16_384;

/// The reservations, by the keys of the responses.
#[derive(Debug, Default)]
pub(crate) struct ResponseReservations {
    table: Mutex<ReservationTable>,
}

#[derive(Debug, Default)]
struct ReservationTable {
    by_response: HashMap<u128, (TokenAmounts, Moment)>,
    /// In the order of insertion.
    order: VecDeque<(u128, Moment)>,
}

impl ResponseReservations {
    /// Records what the response with this key counts for its tenant.
    pub(crate) fn record(&self, key: u128, reserved: TokenAmounts, now: Moment) {
        let mut table = self.table.lock();
        table.by_response.insert(key, (reserved, now));
        table.order.push_back((key, now));
        while table.order.len() > MOST
            || table
                .order
                .front()
                .is_some_and(|(_, recorded)| now.since(*recorded) > TTL)
        {
            let Some((oldest, recorded)) = table.order.pop_front() else {
                break;
            };
            // It may have been recorded again since.
            if table
                .by_response
                .get(&oldest)
                .is_some_and(|(_, latest)| *latest == recorded)
            {
                table.by_response.remove(&oldest);
            }
        }
    }

    /// Takes the reservation of a response: it is settled once.
    pub(crate) fn take(&self, key: u128, now: Moment) -> Option<TokenAmounts> {
        let (reserved, recorded) = self.table.lock().by_response.remove(&key)?;
        (now.since(recorded) <= TTL).then_some(reserved)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use contract_id::contract;

    use super::*;

    fn tokens(output: u32) -> TokenAmounts {
        TokenAmounts { prompt: 1, output }
    }

    fn at(seconds: u64) -> Moment {
        Moment::START + Duration::from_secs(seconds)
    }

    #[test]
    #[contract("S72")]
    fn a_response_is_settled_once_and_not_after_its_time() {
        let reservations = ResponseReservations::default();
        reservations.record(1, tokens(1), at(0));
        reservations.record(2, tokens(2), at(0));
        assert_eq!(reservations.take(1, at(3600)), Some(tokens(1)));
        assert_eq!(reservations.take(1, at(3600)), None);
        assert_eq!(reservations.take(2, at(3601)), None);
        assert_eq!(reservations.take(3, at(0)), None);
    }

    #[test]
    #[contract("S72")]
    fn the_table_is_bounded_and_drops_the_oldest_first() {
        let reservations = ResponseReservations::default();
        for key in 0..=MOST as u128 {
            reservations.record(key, tokens(1), at(0));
        }
        assert_eq!(reservations.take(0, at(0)), None);
        assert_eq!(reservations.take(1, at(0)), Some(tokens(1)));
        reservations.record(1, tokens(1), at(4000));
        let table = reservations.table.lock();
        assert_eq!((table.by_response.len(), table.order.len()), (1, 1));
    }
}
