//! Response affinity: a request that continues or names a stored response goes to the worker that
//! holds it.
//!
//! **Invariant**: at most [`MOST`] responses are remembered, each for [`TTL`]; the oldest is
//! dropped first. A request whose response was dropped may reach the wrong worker, which then
//! refuses the continuation.
//!
//! A response belongs to the tenant that created it: its key is made of both names, here and in
//! what the peers are told.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use kv_blocks::{Moment, WorkerId};
use parking_lot::Mutex;
use replicas::{NoteQueue, SharedNote};
use xxhash_rust::xxh3::Xxh3;

use crate::response_reservations::ResponseReservations;

/// Most responses.
pub(crate) const MOST: usize = 65_536;
/// Lifetime of an entry: engines keep responses in memory, and most conversations that pause longer
/// have ended.
pub(crate) const TTL: Duration = Duration::from_secs(3600);

/// The id of a response, and the tenant that created it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseOwner<'a> {
    /// The tenant's name.
    pub(crate) tenant: &'a str,
    pub(crate) id: &'a str,
}

impl ResponseOwner<'_> {
    /// Returns the key, the same in every router.
    pub(crate) fn key(self) -> u128 {
        let mut hasher = Xxh3::new();
        // A name has no control characters, so the zero ends it.
        for part in [self.tenant.as_bytes(), &[0], self.id.as_bytes()] {
            hasher.update(part);
        }
        hasher.digest128()
    }
}

/// The worker that holds a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResponseHome {
    pub(crate) worker: WorkerId,
    /// Its name, which outlives its configuration.
    pub(crate) name: Arc<str>,
}

/// The memory of one router, and of what its peers tell of theirs.
#[derive(Debug, Default)]
pub(crate) struct ResponseAffinity {
    table: Mutex<ResponseAffinityTable>,
    peers: NoteQueue,
    /// Of responses that were created here.
    pub(crate) reservations: ResponseReservations,
}

#[derive(Debug, Default)]
struct ResponseAffinityTable {
    by_id: HashMap<u128, (ResponseHome, Moment)>,
    /// In the order of insertion.
    order: VecDeque<(u128, Moment)>,
}

impl ResponseAffinity {
    /// Creates an empty memory that tells the peers what it records.
    pub(crate) fn shared(peers: NoteQueue) -> Self {
        Self {
            peers,
            ..Self::default()
        }
    }

    /// Records that this worker holds a response.
    pub(crate) fn record(&self, response: ResponseOwner<'_>, home: ResponseHome, now: Moment) {
        let key = response.key();
        let worker = Arc::clone(&home.name);
        if self.record_key(key, home, now) {
            self.peers.push(SharedNote::ResponseHome { key, worker });
        }
    }

    /// Records that this worker holds the response with this key; returns whether that
    /// is new.
    pub(crate) fn record_key(&self, key: u128, home: ResponseHome, now: Moment) -> bool {
        let mut affinity = self.table.lock();
        // A stream names its response in every event: it is recorded once.
        if affinity
            .by_id
            .get(&key)
            .is_some_and(|(known, at)| *known == home && now.since(*at) <= TTL)
        {
            return false;
        }
        affinity.by_id.insert(key, (home, now));
        affinity.order.push_back((key, now));
        while affinity.order.len() > MOST
            || affinity
                .order
                .front()
                .is_some_and(|(_, learned)| now.since(*learned) > TTL)
        {
            let Some((oldest, learned)) = affinity.order.pop_front() else {
                break;
            };
            // It may have been recorded again since.
            if affinity
                .by_id
                .get(&oldest)
                .is_some_and(|(_, latest)| *latest == learned)
            {
                affinity.by_id.remove(&oldest);
            }
        }
        true
    }

    /// Returns the worker that holds it, if known.
    pub(crate) fn find(&self, response: ResponseOwner<'_>, now: Moment) -> Option<ResponseHome> {
        let affinity = self.table.lock();
        let (home, learned) = affinity.by_id.get(&response.key())?;
        (now.since(*learned) <= TTL).then(|| home.clone())
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn own(id: &str) -> ResponseOwner<'_> {
        ResponseOwner { tenant: "a", id }
    }

    fn home(number: u32) -> ResponseHome {
        ResponseHome {
            worker: WorkerId(number),
            name: format!("w{number}").into(),
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment::START + Duration::from_secs(seconds)
    }

    #[test]
    fn a_response_is_found_at_its_worker_until_it_expires() {
        let affinity = ResponseAffinity::default();
        affinity.record(own("resp_1"), home(1), at(0));
        affinity.record(own("resp_2"), home(2), at(10));
        assert_eq!(affinity.find(own("resp_1"), at(3600)), Some(home(1)));
        assert_eq!(affinity.find(own("resp_1"), at(3601)), None);
        assert_eq!(affinity.find(own("resp_2"), at(3601)), Some(home(2)));
        assert_eq!(affinity.find(own("resp_3"), at(0)), None);
    }

    #[test]
    fn the_table_is_bounded_and_evicts_the_oldest_first() {
        let affinity = ResponseAffinity::default();
        for n in 0..=MOST {
            affinity.record(own(&format!("resp_{n}")), home(1), at(n as u64 / 100));
        }
        let now = at(MOST as u64 / 100);
        assert_eq!(affinity.find(own("resp_0"), now), None);
        assert!(
            affinity.find(own("resp_1"), now).is_some()
                && affinity.find(own(&format!("resp_{MOST}")), now).is_some()
        );
        for _ in 0..10 {
            affinity.record(own("resp_9"), home(3), at(4_300));
        }
        let inside = affinity.table.lock();
        assert!(inside.by_id.len() <= inside.order.len() && inside.order.len() <= MOST);
    }

    #[test]
    fn a_repeated_response_id_is_stored_once() {
        let affinity = ResponseAffinity::default();
        for second in 0..100 {
            affinity.record(own("a"), home(1), at(second));
            affinity.record(own("b"), home(2), at(second));
        }
        let inside = affinity.table.lock();
        assert_eq!((inside.by_id.len(), inside.order.len()), (2, 2));
        drop(inside);
        affinity.record(own("c"), home(1), at(2 * 3600));
        let inside = affinity.table.lock();
        assert_eq!(
            (inside.by_id.len(), inside.order.len()),
            (1, 1),
            "expired entries are removed"
        );
    }

    #[test]
    #[contract("S45")]
    fn a_response_is_known_to_its_own_tenant_only() {
        let affinity = ResponseAffinity::default();
        affinity.record(own("resp_1"), home(1), at(0));
        for (tenant, id) in [
            ("b", "resp_1"),
            ("", "resp_1"),
            ("a\0resp", "_1"),
            ("", "a\0resp_1"),
        ] {
            let other = ResponseOwner { tenant, id };
            assert_eq!(affinity.find(other, at(0)), None, "{other:?}");
        }
        // Another tenant's response of the same id, which a client can choose, replaces nothing.
        let other = ResponseOwner {
            tenant: "b",
            id: "resp_1",
        };
        affinity.record(other, home(2), at(0));
        assert_eq!(affinity.find(own("resp_1"), at(0)), Some(home(1)));
    }
}
