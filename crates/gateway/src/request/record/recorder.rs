//! The parts that take in what the guard of a request records.

use std::sync::{Arc, atomic::AtomicU64};

use config::{CompatSection, LoggingSection};
use fleet::Fleet;
use net::Clock;
use proxy::ConnectionPools;
use routing::{
    Router,
    receipt::{DecisionIds, ReceiptRing},
};

use crate::{
    cooldowns::Cooldowns, decision_log::DecisionLog, metrics::Metrics,
    parity_monitor::ParityMonitor, response_affinity::ResponseAffinity,
};

/// The destinations of a request's facts.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    pub(crate) receipts: ReceiptSinks,
    pub(crate) workers: WorkerReports,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) parity_monitor: Arc<ParityMonitor>,
    pub(crate) response_affinity: Arc<ResponseAffinity>,
    /// Requests whose guard is open.
    pub(crate) running: Arc<AtomicU64>,
    /// Headers that describe the routing in replies.
    pub(crate) compat: Arc<CompatSection>,
    pub(crate) logging: LoggingSection,
    pub(crate) clock: Clock,
}

/// Where receipts go.
#[derive(Clone, Debug)]
pub(crate) struct ReceiptSinks {
    pub(crate) ids: Arc<DecisionIds>,
    pub(crate) ring: Arc<ReceiptRing>,
    pub(crate) log: Option<Arc<DecisionLog>>,
}

/// The parts that learn how workers behave.
#[derive(Clone, Debug)]
pub(crate) struct WorkerReports {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) pools: ConnectionPools,
    pub(crate) cooldowns: Arc<Cooldowns>,
    pub(crate) router: Arc<Router>,
}
