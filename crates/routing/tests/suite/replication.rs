//! Load sync between routers in front of the same workers.

mod feed;
mod lost_end;
mod peers;
mod repair;
mod shared_knowledge;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use kv_blocks::{Moment, Target};
use routing::{
    FeedState, LoadChange, LoadDigest, PeerId, ReservationId, Router, RoutingSettings, TargetLoad,
};

use crate::fleet::{TestFleet, target};

/// The number by which every replica knows the others in these tests.
fn peer(replica: usize) -> PeerId {
    PeerId(u32::try_from(replica).expect("few replicas"))
}

/// A router that shares its load, with a count of the calls of its waker.
struct Replica {
    fleet: TestFleet,
    wakes: Arc<AtomicUsize>,
}

impl Replica {
    fn new(workers: u32, settings: RoutingSettings, limit: usize) -> Self {
        let fleet = TestFleet::new(workers, settings);
        let wakes = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&wakes);
        fleet.router.share_load(
            limit,
            Arc::new(move || {
                counter.fetch_add(1, Ordering::Relaxed);
            }),
        );
        Self { fleet, wakes }
    }

    fn with(workers: u32) -> Self {
        Self::new(workers, RoutingSettings::default(), 1_000)
    }

    fn router(&self) -> &Router {
        &self.fleet.router
    }

    fn wakes(&self) -> usize {
        self.wakes.load(Ordering::Relaxed)
    }

    fn take(&self) -> (Vec<LoadChange>, FeedState) {
        let mut changes = Vec::new();
        let state = self.router().take_load_changes(&mut changes);
        (changes, state)
    }

    fn load(&self, worker: u32) -> TargetLoad {
        self.router().load(target(worker))
    }
}

/// Brings all changes of `from`, known as `id`, to `to`.
fn sync(now: Moment, from: &Replica, id: PeerId, to: &Replica) {
    let (changes, state) = from.take();
    to.router().apply_peer_changes(now, id, changes);
    assert_eq!(to.router().peer_load_digest(id), state.digest);
}

/// Repairs what `to` knows of `from`, page by page.
fn repair(now: Moment, from: &Router, id: PeerId, to: &Router, page_size: usize) -> LoadDigest {
    let (mut changes, mut after) = (Vec::new(), Some(ReservationId::default()));
    let mut digest = LoadDigest::default();
    while let Some(start) = after {
        let (page, state) = from.take_load_page(now, start, page_size, &mut changes);
        (after, digest) = (page.through, state.digest);
        to.apply_peer_changes(now, id, std::mem::take(&mut changes));
        to.apply_peer_page(now, id, page);
    }
    digest
}

/// The load without the part that says whose it is.
fn of_all(load: TargetLoad) -> TargetLoad {
    TargetLoad {
        peer_in_flight: 0,
        ..load
    }
}

fn targets(workers: u32) -> impl Iterator<Item = Target> {
    (1..=workers).map(target)
}
