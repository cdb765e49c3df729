//! The shared state of all requests of one engine.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use kv_blocks::Moment;
use net::Clock;
use parking_lot::Mutex;

use crate::{
    config::EngineConfig, fault::FaultSlot, http::ResponseStore, rank::SimRank,
    tokenizer::SimTokenizer,
};

/// One engine's state behind its HTTP server.
#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) config: EngineConfig,
    pub(crate) tokenizer: SimTokenizer,
    pub(crate) ranks: Vec<Arc<SimRank>>,
    pub(crate) fault: FaultSlot,
    pub(crate) counts: RequestCounts,
    pub(crate) responses: ResponseStore,
    pub(crate) clock: Clock,
    /// `/health` answers 503 until then.
    pub(crate) ready_at: Moment,
    pub(crate) started_unix_s: i64,
}

/// The counters of `/sim/stats` beside the model's own numbers.
#[derive(Debug, Default)]
pub(crate) struct RequestCounts {
    /// Generation requests that arrived, invalid ones included.
    pub(crate) requests: AtomicU64,
    /// Requests that entered the model.
    pub(crate) executions: AtomicU64,
    /// Requests whose client disconnected before the end.
    pub(crate) aborted: AtomicU64,
    /// Time of the last disconnect, in ms since 1970.
    pub(crate) last_abort_ms: Mutex<Option<u64>>,
    next_id: AtomicU64,
}

impl RequestCounts {
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

impl ServerState {
    /// Returns the adapter of a model name: `Some(None)` for the base model, `None` for an unknown
    /// name.
    pub(crate) fn adapter(&self, model: &str) -> Option<Option<Arc<str>>> {
        if model == self.config.model {
            return Some(None);
        }
        self.config
            .loras
            .iter()
            .find(|name| name.as_ref() == model)
            .map(|name| Some(Arc::clone(name)))
    }

    /// Returns the rank with the fewest requests, the lowest of equals.
    pub(crate) fn least_loaded(&self) -> &Arc<SimRank> {
        // `dp-size` is at least 1.
        self.ranks
            .iter()
            .min_by_key(|rank| rank.load())
            .unwrap_or(&self.ranks[0])
    }
}
