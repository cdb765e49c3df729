//! The messages by which routers tell each other their load: with a delay and with losses.
//!
//! A router sends what its feed holds, at most once in [`FLUSH_INTERVAL`], to all others, and a
//! digest each second though nothing changed. A router that sees a difference asks for pages.

use std::{
    collections::HashSet,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kv_blocks::{Moment, SequenceHash};
use routing::{LoadChange, LoadDigest, LoadPage, PeerId, ReleasedRequest, ReservationId};

use super::{Simulation, events::SimulationEvent, replica::Replica};
use crate::{Cell, LoadSyncReport, random::SplitMix64};

/// Separates the random numbers drawn here from the others.
const PURPOSE: u64 = 4;

/// Most queued changes of a router.
const FEED_LIMIT: usize = 65_536;

/// Shortest time between two messages of a router.
const FLUSH_INTERVAL: Duration = Duration::from_millis(1);

/// Open reservations in a page.
const PAGE: usize = 256;

/// The exchange of load between all routers.
pub(super) struct LoadExchange {
    delay: Duration,
    loss: f64,
    random: SplitMix64,
    feeds: Vec<FeedTimer>,
    /// Who waits for the last page of whom.
    repairs: HashSet<(usize, usize)>,
    pub(super) counts: ExchangeCounts,
}

/// When a router sends.
struct FeedTimer {
    /// The router has called the waker of its feed.
    woken: Arc<AtomicBool>,
    last_sent: Option<Moment>,
}

/// A message from one router to another.
#[derive(Clone, Debug)]
pub(super) struct LoadMessage {
    from: usize,
    to: usize,
    changes: Vec<LoadChange>,
    page: Option<LoadPage>,
    digest: LoadDigest,
}

/// What all routers sent.
#[derive(Debug, Default)]
pub(super) struct ExchangeCounts {
    messages: u64,
    changes: u64,
    hashes: u64,
    new_hashes: u64,
    repairs: u64,
    sent: HashSet<(usize, SequenceHash)>,
}

impl LoadExchange {
    pub(super) fn new(cell: &Cell, replicas: &[Replica]) -> Self {
        let feeds = replicas.iter().map(|replica| {
            let woken = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&woken);
            let waker = Arc::new(move || flag.store(true, Ordering::Relaxed));
            replica.router.share_load(FEED_LIMIT, waker);
            FeedTimer {
                woken,
                last_sent: None,
            }
        });
        Self {
            delay: cell.replicas.exchange_delay,
            loss: cell.replicas.exchange_loss,
            random: SplitMix64::new(cell.seed, PURPOSE),
            feeds: feeds.collect(),
            repairs: HashSet::new(),
            counts: ExchangeCounts::default(),
        }
    }

    /// Returns the routers with something to send, and when they may.
    fn take_woken(&mut self, now: Moment) -> Vec<(Moment, usize)> {
        let mut woken = Vec::new();
        for (router, feed) in self.feeds.iter().enumerate() {
            if feed.woken.swap(false, Ordering::Relaxed) {
                let next = feed.last_sent.map_or(now, |last| last + FLUSH_INTERVAL);
                woken.push((next.max(now), router));
            }
        }
        woken
    }

    fn is_lost(&mut self) -> bool {
        self.loss > 0.0 && self.random.unit() < self.loss
    }
}

impl ExchangeCounts {
    fn count(&mut self, from: usize, changes: &[LoadChange], page: Option<&LoadPage>) {
        self.messages += 1;
        self.changes += changes.len() as u64;
        let opened = changes.iter().filter_map(|change| match change {
            LoadChange::Opened(load) => Some(load),
            _ => None,
        });
        for load in opened.chain(page.into_iter().flat_map(|page| &page.loads)) {
            let hashes = load.load.blocks.chain.iter().flat_map(|chain| &**chain);
            for hash in hashes {
                self.hashes += 1;
                self.new_hashes += u64::from(self.sent.insert((from, *hash)));
            }
        }
    }

    pub(super) fn report(&self, requests: usize, router_seconds: f64) -> LoadSyncReport {
        let rate = |count: u64| crate::report::rounded(count as f64 / router_seconds, 3);
        LoadSyncReport {
            requests_per_s: rate(requests as u64),
            messages_per_s: rate(self.messages),
            changes_per_s: rate(self.changes),
            hashes_per_s: rate(self.hashes),
            new_hashes_per_s: rate(self.new_hashes),
            repairs: self.repairs,
        }
    }
}

impl Simulation<'_> {
    /// Schedules the messages of routers whose feeds are no longer empty.
    pub(super) fn schedule_messages(&mut self, now: Moment) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        for (at, router) in exchange.take_woken(now) {
            self.events.put(at, SimulationEvent::SendLoad(router));
        }
    }

    /// Sends a router's changes to all others, with its digest.
    pub(super) fn send_load(&mut self, now: Moment, from: usize) {
        let mut changes = Vec::new();
        let state = self.replicas[from].router.take_load_changes(&mut changes);
        self.broadcast(now, from, &changes, state.digest);
    }

    fn broadcast(&mut self, now: Moment, from: usize, changes: &[LoadChange], digest: LoadDigest) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        exchange.feeds[from].last_sent = Some(now);
        exchange.counts.count(from, changes, None);
        for to in (0..self.replicas.len()).filter(|to| *to != from) {
            if !exchange.is_lost() {
                let message = LoadMessage {
                    from,
                    to,
                    changes: changes.to_vec(),
                    page: None,
                    digest,
                };
                self.events
                    .put(now + exchange.delay, SimulationEvent::Load(message.into()));
            }
        }
    }

    /// Applies a message; asks for pages if the digests differ after it.
    pub(super) fn deliver_load(&mut self, now: Moment, message: LoadMessage) {
        let LoadMessage {
            from,
            to,
            changes,
            page,
            digest,
        } = message;
        let (router, peer) = (&self.replicas[to].router, peer(from));
        let mut released: Vec<ReleasedRequest> = router.apply_peer_changes(now, peer, changes);
        let (is_page, is_last) = (
            page.is_some(),
            page.as_ref().is_none_or(|page| page.through.is_none()),
        );
        if let Some(page) = page {
            released.extend(router.apply_peer_page(now, peer, page));
        }
        let differs = is_last && router.peer_load_digest(peer) != digest;
        if let Some(exchange) = &mut self.exchange {
            if is_page && is_last {
                exchange.repairs.remove(&(to, from));
            }
            if differs && exchange.repairs.insert((to, from)) && !exchange.is_lost() {
                exchange.counts.repairs += 1;
                let asked = SimulationEvent::SendPages { from, to };
                self.events.put(now + exchange.delay, asked);
            }
        }
        self.dispatch_released(now, to, released);
    }

    /// Sends all open reservations of a router to another one.
    pub(super) fn send_pages(&mut self, now: Moment, from: usize, to: usize) {
        let (mut changes, mut after) = (Vec::new(), Some(ReservationId::default()));
        while let Some(start) = after {
            let router = &self.replicas[from].router;
            let (page, state) = router.take_load_page(now, start, PAGE, &mut changes);
            after = page.through;
            if !changes.is_empty() {
                self.broadcast(now, from, &mem::take(&mut changes), state.digest);
            }
            let Some(exchange) = &mut self.exchange else {
                return;
            };
            exchange.counts.count(from, &[], Some(&page));
            if !exchange.is_lost() {
                let message = LoadMessage {
                    from,
                    to,
                    changes: Vec::new(),
                    page: Some(page),
                    digest: state.digest,
                };
                self.events
                    .put(now + exchange.delay, SimulationEvent::Load(message.into()));
            }
        }
    }

    /// Sends a digest of every router; whoever still waits for pages may ask again.
    pub(super) fn send_digests(&mut self, now: Moment) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        exchange.repairs.clear();
        for from in 0..self.replicas.len() {
            self.send_load(now, from);
        }
    }
}

fn peer(router: usize) -> PeerId {
    PeerId(u32::try_from(router).unwrap_or(u32::MAX))
}
