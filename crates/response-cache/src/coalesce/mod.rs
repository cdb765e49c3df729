//! Coalescing: equal requests share one upstream request (contract CH11, decision B6).
//!
//! `dialect` defines which requests are equal; this module decides which request joins which, and
//! how long a finished reply stays usable. It does not interpret replies, whose body may be of any
//! type, and an error stays with the request that got it.
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

use bytes::Bytes;
use dialect::RequestKey;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Response};
use http_body::Body;
use kv_blocks::Moment;
use net::Clock;
use parking_lot::{Mutex, RwLock};
use prometheus_client::registry::Registry;
use resilience::OutcomeCounters;

use self::flight::{FIRST, Flight, FlightHead};
pub use self::{body::SharedBody, flight::FlightEnd};
use crate::CacheGeneration;

/// Most bytes and number of finished replies.
const FINISHED_BYTES: usize = 64 << 20;
const FINISHED_REPLIES: usize = 4_096;

/// The key of a flight: the request, the form of its reply, and the cache generation since which it
/// may answer.
pub type FlightKey = (RequestKey, RequestKey, CacheGeneration);

/// The use of a finished reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishedReplyUse {
    /// It answers further requests for a while.
    Answers,
    /// The response cache stores it.
    CachedElsewhere,
}

/// The flights of all requests; `B` is the body of their replies.
#[derive(Debug)]
pub struct Coalescer<B> {
    ttl: RwLock<Duration>,
    clock: Clock,
    table: Mutex<FlightTable<B>>,
    next_id: AtomicU64,
    /// Buffered bytes of all replies.
    together: Arc<AtomicUsize>,
    results: OutcomeCounters,
}

#[derive(Debug)]
struct FlightTable<B> {
    flights: HashMap<FlightKey, FlightEntry<B>>,
    /// Finished replies, the oldest first.
    finished: VecDeque<FinishedFlight<B>>,
    finished_bytes: usize,
}

#[derive(Debug)]
struct FlightEntry<B> {
    flight: Arc<Flight<B>>,
    members: usize,
    afterwards: FinishedReplyUse,
}

#[derive(Debug)]
struct FinishedFlight<B> {
    key: FlightKey,
    flight: Arc<Flight<B>>,
    until: Moment,
    bytes: usize,
}

/// A request's role in its flight.
#[derive(Debug)]
pub enum FlightRole<B> {
    /// The leader, which sends its request.
    First(FlightMember<B>),
    /// A follower.
    Joins(FlightMember<B>),
}

/// Membership in a flight; dropping it leaves the flight.
#[derive(Debug)]
pub struct FlightMember<B> {
    coalescer: Arc<Coalescer<B>>,
    flight: Arc<Flight<B>>,
    key: FlightKey,
    id: u64,
}

impl<B> Coalescer<B> {
    /// `ttl`: lifetime of a finished reply.
    pub fn new(ttl: Duration, clock: Clock, registry: &mut Registry) -> Self {
        let help = "Requests that asked for a repeatable answer, by what came of looking for others like them";
        let all = ["first", "joined", "replayed", "not_shared"];
        let results =
            OutcomeCounters::registered(registry, "warmroute_deduplicated_requests", help, &all);
        Self {
            ttl: RwLock::new(ttl),
            clock,
            table: Mutex::new(FlightTable {
                flights: HashMap::new(),
                finished: VecDeque::new(),
                finished_bytes: 0,
            }),
            next_id: AtomicU64::new(FIRST + 1),
            together: Arc::default(),
            results,
        }
    }

    /// Sets the lifetime of replies that finish from now on.
    pub fn reconfigure(&self, ttl: Duration) {
        *self.ttl.write() = ttl;
    }

    /// Joins the flight of this key or opens one; the leader sets the use of the finished reply.
    pub fn join_flight(
        self: &Arc<Self>,
        key: FlightKey,
        afterwards: FinishedReplyUse,
    ) -> FlightRole<B> {
        let mut table = self.table.lock();
        table.forget_old(self.clock.now());
        let found = table
            .flights
            .get_mut(&key)
            .filter(|entry| entry.flight.can_be_joined());
        let member = |flight: &Arc<Flight<B>>, id| {
            flight.enter(id);
            FlightMember {
                coalescer: Arc::clone(self),
                flight: Arc::clone(flight),
                key,
                id,
            }
        };
        if let Some(entry) = found {
            entry.members += 1;
            let is_over = entry.flight.is_over();
            self.results
                .count(if is_over { "replayed" } else { "joined" });
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            return FlightRole::Joins(member(&entry.flight, id));
        }
        let flight = Arc::new(Flight::new(Arc::clone(&self.together)));
        let first = member(&flight, FIRST);
        let entry = FlightEntry {
            flight,
            members: 1,
            afterwards,
        };
        table.flights.insert(key, entry);
        self.results.count("first");
        FlightRole::First(first)
    }

    /// Removes a member. The last one drops the reply, unless it is whole and may answer further
    /// requests.
    fn leave(&self, member: &FlightMember<B>) {
        let ttl = *self.ttl.read();
        let unwanted = self
            .table
            .lock()
            .leave(member, || self.clock.now() + ttl, ttl.is_zero());
        // Wakes others, and may end a reply: not under the lock of all requests.
        member.flight.leave(member.id);
        if unwanted {
            member.flight.abandon();
        }
    }
}

impl<B> FlightTable<B> {
    /// Removes a member. Returns whether the reply has no reader left.
    fn leave(
        &mut self,
        member: &FlightMember<B>,
        until: impl FnOnce() -> Moment,
        drops_reply: bool,
    ) -> bool {
        // If another flight has the key by now, this one ends with its last reader.
        let own = |entry: &&mut FlightEntry<B>| Arc::ptr_eq(&entry.flight, &member.flight);
        let Some(entry) = self.flights.get_mut(&member.key).filter(own) else {
            return false;
        };
        entry.members -= 1;
        let drops_reply = drops_reply || entry.afterwards == FinishedReplyUse::CachedElsewhere;
        if entry.members > 0 || self.is_finished(&member.flight) {
            return false;
        }
        match member.flight.finished_bytes().filter(|_| !drops_reply) {
            Some(bytes) => self.store_finished(member.key, &member.flight, until(), bytes),
            None => {
                self.flights.remove(&member.key);
                return true;
            }
        }
        false
    }

    fn is_finished(&self, flight: &Arc<Flight<B>>) -> bool {
        self.finished
            .iter()
            .any(|finished| Arc::ptr_eq(&finished.flight, flight))
    }

    fn store_finished(
        &mut self,
        key: FlightKey,
        flight: &Arc<Flight<B>>,
        until: Moment,
        bytes: usize,
    ) {
        self.finished.push_back(FinishedFlight {
            key,
            flight: Arc::clone(flight),
            until,
            bytes,
        });
        self.finished_bytes += bytes;
        while self.finished_bytes > FINISHED_BYTES || self.finished.len() > FINISHED_REPLIES {
            self.forget_oldest();
        }
    }

    fn forget_old(&mut self, now: Moment) {
        while self
            .finished
            .front()
            .is_some_and(|finished| finished.until <= now)
        {
            self.forget_oldest();
        }
    }

    /// Current readers still read it to its end.
    fn forget_oldest(&mut self) {
        let Some(finished) = self.finished.pop_front() else {
            return;
        };
        self.finished_bytes -= finished.bytes;
        if self
            .flights
            .get(&finished.key)
            .is_some_and(|entry| Arc::ptr_eq(&entry.flight, &finished.flight))
        {
            self.flights.remove(&finished.key);
        }
    }
}

impl<B: Body<Data = Bytes> + Default + Unpin> FlightMember<B> {
    /// Returns the cell to set at the end: whether the reply was whole and no error.
    pub fn outcome_slot(&self) -> Arc<OnceLock<bool>> {
        self.flight.outcome_slot()
    }

    /// Sends the request and returns its reply, whose body `share` makes of the leader's side where
    /// the others may read it too.
    pub async fn lead(
        self,
        reply: BoxFuture<'static, Response<B>>,
        share: impl FnOnce(SharedBody<B>) -> B,
    ) -> Response<B> {
        self.flight.begin(reply);
        match poll_fn(|cx| self.flight.poll_head(self.id, cx)).await {
            FlightHead::Shared(headers) => self.read(headers).map(share),
            // Only the leader takes it, and only once.
            FlightHead::Own => self.flight.take_own().unwrap_or_default(),
        }
    }

    /// Waits for the leader's reply; `None`: the follower sends its own request.
    pub async fn join(self) -> Option<Response<SharedBody<B>>> {
        match poll_fn(|cx| self.flight.poll_head(self.id, cx)).await {
            FlightHead::Shared(headers) => Some(self.read(headers)),
            FlightHead::Own => {
                self.coalescer.results.count("not_shared");
                None
            }
        }
    }

    fn read(self, headers: HeaderMap) -> Response<SharedBody<B>> {
        let mut response = Response::new(SharedBody::new(self));
        *response.headers_mut() = headers;
        response
    }
}

impl<B> Drop for FlightMember<B> {
    fn drop(&mut self) {
        let alike = Arc::clone(&self.coalescer);
        alike.leave(self);
    }
}

#[cfg(test)]
mod tests {
    use std::{future::ready, io};

    use dialect::RepeatabilityView;
    use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

    use super::*;
    use crate::generation::Generations;

    type TestBody = UnsyncBoxBody<Bytes, io::Error>;

    fn coalescer() -> Arc<Coalescer<TestBody>> {
        let registry = &mut Registry::default();
        Arc::new(Coalescer::new(
            Duration::from_secs(60),
            Clock::system(),
            registry,
        ))
    }

    /// Joins the flight of the one key of these tests.
    fn join(coalescer: &Arc<Coalescer<TestBody>>) -> FlightRole<TestBody> {
        let view = RepeatabilityView::read(b"{}").expect("an object");
        let (key, form) = (view.key("default", "/v1/completions", &[]), view.form());
        let key = (key, form, Generations::default().now());
        coalescer.join_flight(key, FinishedReplyUse::Answers)
    }

    fn lead(coalescer: &Arc<Coalescer<TestBody>>) -> FlightMember<TestBody> {
        match join(coalescer) {
            FlightRole::First(member) => member,
            FlightRole::Joins(_) => panic!("it leads"),
        }
    }

    fn follow(coalescer: &Arc<Coalescer<TestBody>>) -> FlightMember<TestBody> {
        match join(coalescer) {
            FlightRole::Joins(member) => member,
            FlightRole::First(_) => panic!("it follows"),
        }
    }

    fn reply(status: u16) -> BoxFuture<'static, Response<TestBody>> {
        let body = Full::from("reply").map_err(|never| match never {});
        let reply = Response::builder().status(status);
        Box::pin(ready(reply.body(body.boxed_unsync()).expect("a reply")))
    }

    async fn text(reply: Response<impl Body<Data = Bytes, Error = io::Error>>) -> Bytes {
        let body = reply.into_body().collect().await;
        body.expect("a whole reply").to_bytes()
    }

    #[tokio::test]
    async fn all_members_and_later_requests_read_one_reply() {
        let coalescer = coalescer();
        let (leader, follower) = (lead(&coalescer), follow(&coalescer));
        leader.outcome_slot().set(true).expect("no outcome before");
        let first = leader.lead(reply(200), BodyExt::boxed_unsync).await;
        assert_eq!(text(first).await, "reply");
        for member in [follower, follow(&coalescer)] {
            let reply = member.join().await.expect("a shared reply");
            assert_eq!(text(reply).await, "reply");
        }
    }

    #[tokio::test]
    async fn an_error_is_for_the_leader_only() {
        let coalescer = coalescer();
        let (leader, follower) = (lead(&coalescer), follow(&coalescer));
        let own = leader.lead(reply(503), BodyExt::boxed_unsync).await;
        assert_eq!(
            (own.status().as_u16(), &*text(own).await),
            (503, &b"reply"[..])
        );
        assert!(follower.join().await.is_none());
    }

    #[tokio::test]
    async fn a_reader_is_told_its_end_unless_it_has_left() {
        let coalescer = coalescer();
        let (leader, follower, gone) = (lead(&coalescer), follow(&coalescer), follow(&coalescer));
        let first = leader.lead(reply(200), BodyExt::boxed_unsync).await;
        let ends: [Arc<OnceLock<FlightEnd>>; 2] = Default::default();
        let mut readers = Vec::new();
        for (member, end) in [follower, gone].into_iter().zip(&ends) {
            let (end, reply) = (Arc::clone(end), member.join().await);
            let set_end = move |its| end.set(its).expect("one end");
            readers.push(
                reply
                    .expect("a shared reply")
                    .map(|body| body.on_end(set_end)),
            );
        }
        drop(readers.pop());
        text(readers.remove(0)).await;
        drop(first);
        assert_eq!(
            ends.each_ref().map(|end| end.get().copied()),
            [Some(FlightEnd::Clean), None]
        );
    }
}
