//! One of the routers in front of the engines.

use std::{collections::HashMap, sync::Arc};

use kv_blocks::Moment;
use kv_index::{IndexSettings, KvIndex};
use routing::{Candidate, Router, Ticket};

use crate::Cell;

/// A router with its own index.
pub(super) struct Replica {
    pub(super) router: Router,
    pub(super) index: Arc<KvIndex>,
    pub(super) queue: RouterQueue,
}

/// Requests in a router's queue.
#[derive(Default)]
pub(super) struct RouterQueue {
    /// Each with its position in the trace.
    pub(super) requests: HashMap<Ticket, usize>,
    /// Time of the next scheduled release.
    pub(super) release_at: Option<Moment>,
}

impl Replica {
    pub(super) fn new(cell: &Cell, candidates: &[Candidate]) -> Self {
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        for candidate in candidates {
            index.register(candidate.target, Arc::clone(&candidate.namespace.model));
        }
        Self {
            router: Router::new(cell.routing.clone(), Arc::clone(&index)),
            index,
            queue: RouterQueue::default(),
        }
    }
}
