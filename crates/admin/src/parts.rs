//! The parts of the router that the listener reads. A handler takes those that it uses as its
//! state.

use std::sync::Arc;

use ::response_cache::ResponseCache;
use axum::extract::FromRef;
use fleet::Fleet;
use indexer::Indexer;
use kv_index::KvIndex;
use net::Clock;
use parity::ParityTracker;
use parking_lot::Mutex;
use replicas::Replicas;
use routing::{KvDecisionCounters, PrefixDecisionCounters, Router, receipt::ReceiptRing};
use tenants::Tenants;

use crate::{Control, Doctor, Drain, DryRun, MetricsPage, Takeover};

/// Everything the listener reads.
#[derive(Clone, Debug)]
pub struct AdminParts {
    /// The workers.
    pub fleet: Arc<Fleet>,
    /// Load and rates.
    pub router: Arc<Router>,
    /// Cache content.
    pub kv_index: KvIndexParts,
    /// Decisions.
    pub decisions: DecisionParts,
    /// Tenants of clients.
    pub tenants: Arc<Tenants>,
    /// Counters of prefix routing.
    pub prefix_counters: Arc<PrefixDecisionCounters>,
    /// Routers that share state.
    pub replicas: Arc<Replicas>,
    /// Cached replies.
    pub cache: Arc<ResponseCache>,
    /// The configuration in force, and its changes.
    pub control: Arc<dyn Control>,
    /// The metrics.
    pub metrics: MetricsPage,
    /// The ends of this process's service.
    pub shutdown: ShutdownParts,
    /// The check of router against engines.
    pub doctor: Doctor,
    /// The clock.
    pub clock: Clock,
}

/// The content of the engines' caches, and its use.
#[derive(Clone, Debug)]
pub struct KvIndexParts {
    /// The block index.
    pub index: Arc<KvIndex>,
    /// The Conductor API.
    pub indexer: Arc<Indexer>,
    /// Counters of cache knowledge used for requests.
    pub counters: Arc<KvDecisionCounters>,
}

/// Decisions made, a trial of one, and how predictions held.
#[derive(Clone, Debug)]
pub struct DecisionParts {
    /// Receipts.
    pub ring: Arc<ReceiptRing>,
    /// The dry run of a routing decision.
    pub dry_run: DryRun,
    /// Accuracy of the predictions of decisions.
    pub parity: Arc<Mutex<ParityTracker>>,
}

/// Two ends of this process's service: alone, or with a successor.
#[derive(Clone, Debug)]
pub struct ShutdownParts {
    /// The drain of the client listener.
    pub drain: Drain,
    /// The listening sockets, for a process that takes over.
    pub takeover: Takeover,
}

/// Makes each part a state that a handler can take.
macro_rules! states {
    ($($($part:ident).+: $Part:ty,)*) => {$(
        impl FromRef<AdminParts> for $Part {
            fn from_ref(parts: &AdminParts) -> Self {
                Clone::clone(&parts.$($part).+)
            }
        }
    )*};
}

states! {
    fleet: Arc<Fleet>,
    kv_index: KvIndexParts,
    kv_index.index: Arc<KvIndex>,
    decisions.ring: Arc<ReceiptRing>,
    decisions.dry_run: DryRun,
    decisions.parity: Arc<Mutex<ParityTracker>>,
    tenants: Arc<Tenants>,
    router: Arc<Router>,
    prefix_counters: Arc<PrefixDecisionCounters>,
    replicas: Arc<Replicas>,
    cache: Arc<ResponseCache>,
    control: Arc<dyn Control>,
    metrics: MetricsPage,
    shutdown.drain: Drain,
    shutdown.takeover: Takeover,
    doctor: Doctor,
    clock: Clock,
}
