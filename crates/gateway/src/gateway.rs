//! What every request shares.

use std::{num::NonZero, sync::Arc, time::Duration};

use fleet::Fleet;
use kv_blocks::HashScheme;
use net::Clock;
use prometheus_client::registry::Registry;
use routing::{
    Router,
    receipt::{DecisionIds, Ring},
};
use tokio::sync::Semaphore;

use crate::{
    cut_switch::CutSwitch,
    ids::Ids,
    keys::Keys,
    load_telemetry::LoadCollector,
    metrics::Metrics,
    request::{Identify, StreamLimits},
    retry::{RetryBudget, RetryPermit, RetryRules},
    upstream::Pools,
};

/// Sizes and times of the listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest request head, bytes.
    pub max_head_bytes: usize,
    /// Longest request body, bytes.
    pub max_body_bytes: usize,
    /// Most header fields.
    pub max_headers: usize,
    /// Client connections open at once.
    pub max_connections: usize,
    /// An idle connection is closed after this.
    pub keep_alive: Duration,
    /// A request head must be complete this long after its first byte.
    pub head_timeout: Duration,
    /// A client that takes nothing of its reply for this long is given up.
    pub client_stall: Duration,
    /// Whether one line is logged for each request.
    pub log_requests: bool,
}

/// Times and retries of one request.
#[derive(Clone, Debug)]
pub struct Rules {
    /// To a stream's first byte, or the end of any other reply, over all attempts.
    pub timeout: Duration,
    /// To an open connection.
    pub connect_timeout: Duration,
    /// Between two bytes of a running stream.
    pub stream_idle: Duration,
    /// Of a running stream as a whole.
    pub stream_total: Duration,
    /// Retries.
    pub retry: RetryRules,
    /// How prompts are hashed.
    pub scheme: HashScheme,
    /// Longest a prompt may take to tokenise, as predicted; beyond it its text stands for it.
    pub tokenize_budget: Duration,
}

/// Everything [`Gateway::new`] needs.
#[derive(Debug)]
pub struct GatewayParts {
    /// The workers.
    pub fleet: Arc<Fleet>,
    /// The decision.
    pub router: Arc<Router>,
    /// Where receipts go.
    pub ring: Arc<Ring>,
    /// The clock.
    pub clock: Clock,
    /// The inbound key.
    pub keys: Keys,
    /// Limits of the listener.
    pub limits: Limits,
    /// Rules of a request.
    pub rules: Rules,
}

/// What every request shares.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) router: Arc<Router>,
    pub(crate) ring: Arc<Ring>,
    pub(crate) clock: Clock,
    pub(crate) keys: Keys,
    pub(crate) limits: Limits,
    pub(crate) rules: RequestRules,
    pub(crate) identify: Identify,
    pub(crate) metrics: Metrics,
    pub(crate) pools: Pools,
    pub(crate) ids: Ids,
    pub(crate) decision_ids: DecisionIds,
    pub(crate) cut: CutSwitch,
    budget: RetryBudget,
}

/// [`Rules`] as the stages read them.
#[derive(Debug)]
pub(crate) struct RequestRules {
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) stream: StreamLimits,
    pub(crate) retry: RetryRules,
}

impl Gateway {
    /// Puts the parts together and registers the metric families.
    pub fn new(parts: GatewayParts, registry: &mut Registry) -> Self {
        let GatewayParts { fleet, router, ring, clock, keys, limits, rules } = parts;
        let load = LoadCollector { fleet: Arc::clone(&fleet), router: Arc::clone(&router) };
        registry.register_collector(Box::new(load));
        let ids = Ids::new();
        Self {
            fleet,
            router,
            ring,
            clock,
            keys,
            limits,
            identify: Identify {
                scheme: rules.scheme,
                budget: rules.tokenize_budget,
                clock,
                seats: Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(1, NonZero::get))),
            },
            budget: RetryBudget::new(rules.retry.budget_ratio),
            rules: RequestRules {
                timeout: rules.timeout,
                connect_timeout: rules.connect_timeout,
                stream: StreamLimits { idle: rules.stream_idle, total: rules.stream_total },
                retry: rules.retry,
            },
            metrics: Metrics::new(registry),
            pools: Pools::default(),
            decision_ids: DecisionIds::new(ids.draw()),
            cut: CutSwitch::default(),
            ids,
        }
    }

    /// Tells the router that time has passed. It holds nothing yet, so nothing is released.
    pub(crate) fn tick(&self) {
        drop(self.router.tick(self.clock.now()));
    }

    /// Room for one retry, as a share of the requests in flight.
    pub(crate) fn retry_permit(&self) -> Option<RetryPermit> {
        self.budget.take(self.router.leases())
    }
}
