//! Requests that are alike are sent once (contract CH11, decision B6).
//!
//! Which requests are alike, `dialect` says; here is who joins whom, and for how long a finished reply answers. Nothing here
//! knows what a reply means, and errors stay with the one whose request had them.
//!
//! **Invariant**: a reply answers only requests of its key; what is kept of finished ones is bounded in bytes and number.

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
use response_cache::Generation;

use self::flight::{FIRST, Flight, Head};
pub(crate) use self::{body::SharedBody, flight::Reply};
use crate::{metrics::Results, request::ReplyBody};

/// Most bytes of finished replies, and most of them.
const KEPT_BYTES: usize = 64 << 20;
const KEPT_REPLIES: usize = 4_096;

/// What a reply is for: the request, the form its reply has, and since which clearing of the cache it may answer.
pub(crate) type Key = (RequestKey, RequestKey, Generation);

/// What becomes of a finished reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    /// It answers others for a while.
    Answers,
    /// It is kept elsewhere.
    KeptElsewhere,
}

/// Who asks for the same.
#[derive(Debug)]
pub(crate) struct Alike {
    ttl: RwLock<Duration>,
    clock: Clock,
    table: Mutex<Table>,
    next_id: AtomicU64,
    /// Bytes that all replies hold.
    together: Arc<AtomicUsize>,
    results: Results,
}

#[derive(Debug, Default)]
struct Table {
    flights: HashMap<Key, Entry>,
    /// Finished ones, the oldest first.
    kept: VecDeque<Kept>,
    kept_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    flight: Arc<Flight>,
    seats: usize,
    afterwards: Afterwards,
}

#[derive(Debug)]
struct Kept {
    key: Key,
    flight: Arc<Flight>,
    until: Moment,
    bytes: usize,
}

/// What a request is among those that are alike.
pub(crate) enum Place {
    /// The first: it brings its request.
    First(Seat),
    /// One of the others.
    Joins(Seat),
}

/// A place at one reply; dropping it leaves.
pub(crate) struct Seat {
    alike: Arc<Alike>,
    flight: Arc<Flight>,
    key: Key,
    id: u64,
}

/// What a request that joined gets.
pub(crate) enum Joined {
    /// The same reply.
    Reply(StatusCode, HeaderMap, Box<SharedBody>),
    /// Nothing: it has to be sent after all.
    Nothing,
}

impl Alike {
    /// `ttl`: how long a finished reply answers.
    pub(crate) fn new(ttl: Duration, clock: Clock, registry: &mut Registry) -> Self {
        let help = "Requests that asked for a repeatable answer, by what came of looking for others like them";
        let all = ["first", "joined", "replayed", "not_shared"];
        let results = Results::registered(registry, "warmroute_deduplicated_requests", help, &all);
        Self {
            ttl: RwLock::new(ttl),
            clock,
            table: Mutex::default(),
            next_id: AtomicU64::new(FIRST + 1),
            together: Arc::default(),
            results,
        }
    }

    /// How long a reply that finishes from now on answers.
    pub(crate) fn reconfigure(&self, ttl: Duration) {
        *self.ttl.write() = ttl;
    }

    /// A place at the reply for this key; the first one says what becomes of it.
    pub(crate) fn enter(self: &Arc<Self>, key: Key, afterwards: Afterwards) -> Place {
        let mut table = self.table.lock();
        table.forget_old(self.clock.now());
        let found = table
            .flights
            .get_mut(&key)
            .filter(|entry| entry.flight.can_be_joined());
        if let Some(entry) = found {
            entry.seats += 1;
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
            return Place::Joins(Seat {
                alike: Arc::clone(self),
                flight,
                key,
                id,
            });
        }
        let flight = Arc::new(Flight::new(Arc::clone(&self.together)));
        flight.enter(FIRST);
        table.flights.insert(
            key,
            Entry {
                flight: Arc::clone(&flight),
                seats: 1,
                afterwards,
            },
        );
        self.results.count("first");
        Place::First(Seat {
            alike: Arc::clone(self),
            flight,
            key,
            id: FIRST,
        })
    }

    /// One leaves. The last one takes the reply with it, unless it is whole and may answer others yet.
    fn leave(&self, seat: &Seat) {
        let ttl = *self.ttl.read();
        let unwanted = self
            .table
            .lock()
            .leave(seat, || self.clock.now() + ttl, ttl.is_zero());
        // Wakes others, and may end a reply: not under the lock that all requests take.
        seat.flight.leave(seat.id);
        if unwanted {
            seat.flight.abandon();
        }
    }
}

impl Table {
    /// Whether nobody wants the reply any more.
    fn leave(&mut self, seat: &Seat, until: impl FnOnce() -> Moment, nothing_kept: bool) -> bool {
        // Where another reply has the key by now, this one goes with the last of its readers.
        let own = |entry: &&mut Entry| Arc::ptr_eq(&entry.flight, &seat.flight);
        let Some(entry) = self.flights.get_mut(&seat.key).filter(own) else {
            return false;
        };
        entry.seats -= 1;
        let nothing_kept = nothing_kept || entry.afterwards == Afterwards::KeptElsewhere;
        if entry.seats > 0 || self.is_kept(&seat.flight) {
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
        self.kept
            .iter()
            .any(|kept| Arc::ptr_eq(&kept.flight, flight))
    }

    fn keep(&mut self, key: Key, flight: &Arc<Flight>, until: Moment, bytes: usize) {
        self.kept.push_back(Kept {
            key,
            flight: Arc::clone(flight),
            until,
            bytes,
        });
        self.kept_bytes += bytes;
        while self.kept_bytes > KEPT_BYTES || self.kept.len() > KEPT_REPLIES {
            self.forget_oldest();
        }
    }

    fn forget_old(&mut self, now: Moment) {
        while self.kept.front().is_some_and(|kept| kept.until <= now) {
            self.forget_oldest();
        }
    }

    /// Whoever reads it still does to its end.
    fn forget_oldest(&mut self) {
        let Some(kept) = self.kept.pop_front() else {
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

impl Seat {
    /// Where the end of the reply is to be told: whether it was whole and no error.
    pub(crate) fn good(&self) -> Arc<OnceLock<bool>> {
        self.flight.good()
    }

    /// Brings the request, and gives its reply.
    pub(crate) async fn lead(self, reply: Reply) -> Response<ReplyBody> {
        self.flight.begin(reply);
        match poll_fn(|cx| self.flight.poll_head(self.id, cx)).await {
            Head::Shared(status, headers) => {
                let mut response =
                    Response::new(ReplyBody::Shared(Box::new(SharedBody::new(self))));
                *response.status_mut() = status;
                *response.headers_mut() = headers;
                response
            }
            // Only the first takes it, and once.
            Head::Own => self
                .flight
                .take_own()
                .unwrap_or_else(|| Response::new(ReplyBody::empty())),
        }
    }

    /// Waits for the other's reply.
    pub(crate) async fn join(self) -> Joined {
        match poll_fn(|cx| self.flight.poll_head(self.id, cx)).await {
            Head::Shared(status, headers) => {
                Joined::Reply(status, headers, Box::new(SharedBody::new(self)))
            }
            Head::Own => {
                self.alike.results.count("not_shared");
                Joined::Nothing
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let alike = Arc::clone(&self.alike);
        alike.leave(self);
    }
}
