//! Coalescing: equal requests share one upstream request (contract CH11, decision B6).
//!
//! `dialect` defines which requests are equal; this module decides which request joins which, and
//! how long a finished reply stays usable. It does not interpret replies, and an error stays with
//! the request that got it.
//!
//! **Invariant**: a reply answers only requests of its key; finished replies are bounded in bytes
//! and number.

mod body;
mod flight;
mod wakers;

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use dialect::RequestKey;
use http::{HeaderMap, Response, StatusCode};
use kv_blocks::Moment;
use net::Clock;
use parking_lot::{Mutex, RwLock};
use prometheus_client::registry::Registry;
use resilience::OutcomeCounters;
use response_cache::CacheGeneration;

use self::flight::{FIRST, Flight, FlightHead};
pub(crate) use self::{body::SharedBody, flight::ReplyFuture};
use crate::request::reply_body::ReplyBody;

/// Most bytes and number of finished replies.
const KEPT_BYTES: usize = 64 << 20;
const KEPT_REPLIES: usize = 4_096;

/// The key of a flight: the request, the form of its reply, and the cache generation since which it
/// may answer.
pub(crate) type FlightKey = (RequestKey, RequestKey, CacheGeneration);

/// The use of a finished reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinishedReplyUse {
    /// It answers further requests for a while.
    Answers,
    /// The response cache stores it.
    CachedElsewhere,
}

/// The flights of all requests.
#[derive(Debug)]
pub(crate) struct Coalescer {
    ttl: RwLock<Duration>,
    clock: Clock,
    table: Mutex<FlightTable>,
    next_id: AtomicU64,
    /// Buffered bytes of all replies.
    together: Arc<AtomicUsize>,
    results: OutcomeCounters,
}

#[derive(Debug, Default)]
struct FlightTable {
    flights: HashMap<FlightKey, FlightEntry>,
    /// Finished replies, the oldest first.
    finished: VecDeque<FinishedFlight>,
    kept_bytes: usize,
}

#[derive(Debug)]
struct FlightEntry {
    flight: Arc<Flight>,
    members: usize,
    afterwards: FinishedReplyUse,
}

#[derive(Debug)]
struct FinishedFlight {
    key: FlightKey,
    flight: Arc<Flight>,
    until: Moment,
    bytes: usize,
}

/// A request's role in its flight.
pub(crate) enum FlightRole {
    /// The leader, which sends its request.
    First(FlightMember),
    /// A follower.
    Joins(FlightMember),
}

/// Membership in a flight; dropping it leaves the flight.
pub(crate) struct FlightMember {
    coalescer: Arc<Coalescer>,
    flight: Arc<Flight>,
    key: FlightKey,
    id: u64,
}

/// The reply for a follower.
pub(crate) enum FollowerReply {
    /// The leader's reply.
    Reply(StatusCode, HeaderMap, Box<SharedBody>),
    /// None: the follower sends its own request.
    Nothing,
}

impl Coalescer {
    /// `ttl`: lifetime of a finished reply.
    pub(crate) fn new(ttl: Duration, clock: Clock, registry: &mut Registry) -> Self {
        let help = "Requests that asked for a repeatable answer, by what came of looking for others like them";
        let all = ["first", "joined", "replayed", "not_shared"];
        let results =
            OutcomeCounters::registered(registry, "warmroute_deduplicated_requests", help, &all);
        Self {
            ttl: RwLock::new(ttl),
            clock,
            table: Mutex::default(),
            next_id: AtomicU64::new(FIRST + 1),
            together: Arc::default(),
            results,
        }
    }

    /// Sets the lifetime of replies that finish from now on.
    pub(crate) fn reconfigure(&self, ttl: Duration) {
        *self.ttl.write() = ttl;
    }

    /// Joins the flight of this key or opens one; the leader sets the use of the finished reply.
    pub(crate) fn join_flight(
        self: &Arc<Self>,
        key: FlightKey,
        afterwards: FinishedReplyUse,
    ) -> FlightRole {
        let mut table = self.table.lock();
        table.forget_old(self.clock.now());
        let found = table
            .flights
            .get_mut(&key)
            .filter(|entry| entry.flight.can_be_joined());
        if let Some(entry) = found {
            entry.members += 1;
            let (flight, id) = (
                Arc::clone(&entry.flight),
                self.next_id.fetch_add(1, Ordering::Relaxed),
            );
            self.results.count(if flight.is_over() {
                "replayed"
            } else {
                "joined"
            });
            flight.enter(id);
            return FlightRole::Joins(FlightMember {
                coalescer: Arc::clone(self),
                flight,
                key,
                id,
            });
        }
        let flight = Arc::new(Flight::new(Arc::clone(&self.together)));
        flight.enter(FIRST);
        table.flights.insert(
            key,
            FlightEntry {
                flight: Arc::clone(&flight),
                members: 1,
                afterwards,
            },
        );
        self.results.count("first");
        FlightRole::First(FlightMember {
            coalescer: Arc::clone(self),
            flight,
            key,
            id: FIRST,
        })
    }

    /// Removes a member. The last one drops the reply, unless it is whole and may answer further
    /// requests.
    fn leave(&self, seat: &FlightMember) {
        let ttl = *self.ttl.read();
        let unwanted = self
            .table
            .lock()
            .leave(seat, || self.clock.now() + ttl, ttl.is_zero());
        // Wakes others, and may end a reply: not under the lock of all requests.
        seat.flight.leave(seat.id);
        if unwanted {
            seat.flight.abandon();
        }
    }
}

impl FlightTable {
    /// Removes a member. Returns whether the reply has no reader left.
    fn leave(
        &mut self,
        seat: &FlightMember,
        until: impl FnOnce() -> Moment,
        nothing_kept: bool,
    ) -> bool {
        // If another flight has the key by now, this one ends with its last reader.
        let own = |entry: &&mut FlightEntry| Arc::ptr_eq(&entry.flight, &seat.flight);
        let Some(entry) = self.flights.get_mut(&seat.key).filter(own) else {
            return false;
        };
        entry.members -= 1;
        let nothing_kept = nothing_kept || entry.afterwards == FinishedReplyUse::CachedElsewhere;
        if entry.members > 0 || self.is_kept(&seat.flight) {
            return false;
        }
        match seat.flight.kept_bytes().filter(|_| !nothing_kept) {
            Some(bytes) => self.keep(seat.key, &seat.flight, until(), bytes),
            None => {
                self.flights.remove(&seat.key);
                return true;
            }
        }
        false
    }

    fn is_kept(&self, flight: &Arc<Flight>) -> bool {
        self.finished
            .iter()
            .any(|kept| Arc::ptr_eq(&kept.flight, flight))
    }

    fn keep(&mut self, key: FlightKey, flight: &Arc<Flight>, until: Moment, bytes: usize) {
        self.finished.push_back(FinishedFlight {
            key,
            flight: Arc::clone(flight),
            until,
            bytes,
        });
        self.kept_bytes += bytes;
        while self.kept_bytes > KEPT_BYTES || self.finished.len() > KEPT_REPLIES {
            self.forget_oldest();
        }
    }

    fn forget_old(&mut self, now: Moment) {
        while self.finished.front().is_some_and(|kept| kept.until <= now) {
            self.forget_oldest();
        }
    }

    /// Current readers still read it to its end.
    fn forget_oldest(&mut self) {
        let Some(kept) = self.finished.pop_front() else {
            return;
        };
        self.kept_bytes -= kept.bytes;
        if self
            .flights
            .get(&kept.key)
            .is_some_and(|entry| Arc::ptr_eq(&entry.flight, &kept.flight))
        {
            self.flights.remove(&kept.key);
        }
    }
}

impl FlightMember {
    /// Returns the cell to set at the end: whether the reply was whole and no error.
    pub(crate) fn outcome_slot(&self) -> Arc<OnceLock<bool>> {
        self.flight.outcome_slot()
    }

    /// Sends the request and returns its reply.
    pub(crate) async fn lead(self, reply: ReplyFuture) -> Response<ReplyBody> {
        self.flight.begin(reply);
        match poll_fn(|cx| self.flight.poll_head(self.id, cx)).await {
            FlightHead::Shared(status, headers) => {
                let mut response = Response::new(ReplyBody::live(SharedBody::new(self)));
                *response.status_mut() = status;
                *response.headers_mut() = headers;
                response
            }
            // Only the leader takes it, and only once.
            FlightHead::Own => self
                .flight
                .take_own()
                .unwrap_or_else(|| Response::new(ReplyBody::empty())),
        }
    }

    /// Waits for the leader's reply.
    pub(crate) async fn join(self) -> FollowerReply {
        match poll_fn(|cx| self.flight.poll_head(self.id, cx)).await {
            FlightHead::Shared(status, headers) => {
                FollowerReply::Reply(status, headers, Box::new(SharedBody::new(self)))
            }
            FlightHead::Own => {
                self.coalescer.results.count("not_shared");
                FollowerReply::Nothing
            }
        }
    }
}

impl Drop for FlightMember {
    fn drop(&mut self) {
        let alike = Arc::clone(&self.coalescer);
        alike.leave(self);
    }
}
