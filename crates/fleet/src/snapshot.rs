//! The fleet at one moment, as every request reads it.
//!
//! A snapshot is immutable and cheap to take (one atomic load). It knows which workers may serve
//! which model; it does not know load or cache content, which belong to the router and the index.
//!
//! **Invariant**: a candidate of a model is in state `ready`, unless the model's `panic` is set:
//! then none is ready and the last good set is offered instead (a probe may be wrong, a request is
//! proof).

use std::{collections::HashMap, sync::Arc};

use kv_blocks::{BlockSize, Namespace, PromptIdentity, Target, WorkerId};

use crate::{CacheSource, ModelArtefacts, RankView, WorkerState, WorkerView};

/// Workers and models at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// All workers, in the order of the configuration.
    pub workers: Vec<Arc<WorkerView>>,
    /// Every model id that requests may name: base models, aliases and adapters.
    pub models: HashMap<Arc<str>, Arc<ModelView>>,
}

/// The targets of one model id.
#[derive(Clone, Debug)]
pub struct ModelView {
    /// The id that requests use.
    pub id: Arc<str>,
    /// Targets that may get requests now.
    pub candidates: Vec<ModelCandidate>,
    /// Targets that list the model but may not be used now.
    pub unusable: Vec<UnusableTarget>,
    /// Whether no generating worker of this model is ready, and `candidates` holds the last good
    /// set of them (receipt method `panic`). A prefill worker that is not ready is never offered: a
    /// request can do without.
    pub panic: bool,
    /// Whether some of its workers serve one phase only.
    pub split: bool,
    /// Tokenizer and template, shared by all workers of the model.
    pub artefacts: Arc<ModelArtefacts>,
    /// Longest prompt plus reply in tokens: the smallest among its workers.
    pub max_model_len: Option<u32>,
}

/// One target that may serve a model.
#[derive(Clone, Debug)]
pub struct ModelCandidate {
    /// Worker and rank.
    pub target: Target,
    /// The worker.
    pub worker: Arc<WorkerView>,
    /// Base model, as its cache namespaces name it.
    pub namespace_model: Arc<str>,
    /// The adapter, when the requested id names one.
    pub lora: Option<Arc<str>>,
}

impl ModelCandidate {
    /// Returns the namespace of a request's blocks on this target.
    pub fn namespace(&self, salt: Option<Arc<str>>, identity: PromptIdentity) -> Namespace {
        Namespace {
            model: Arc::clone(&self.namespace_model),
            lora: self.lora.clone(),
            salt,
            block_size: self.worker.cache.block_size,
            identity,
        }
    }

    /// Returns the view of this rank's cache and event stream.
    pub fn rank(&self) -> RankView {
        self.worker
            .ranks
            .get(self.target.rank.0 as usize)
            .copied()
            .unwrap_or_default()
    }

    /// Returns the source of knowledge about this target's cache.
    pub fn cache(&self) -> CacheSource {
        self.rank().cache
    }

    /// Returns the state of its event stream; `None` when it has none.
    pub fn stream_state(&self) -> Option<&'static str> {
        self.rank().stream
    }

    /// Returns the tokens in one block.
    pub fn block_size(&self) -> BlockSize {
        self.worker.cache.block_size
    }
}

/// A target left out before the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableTarget {
    /// Worker and rank.
    pub target: Target,
    /// Its worker's name.
    pub name: Arc<str>,
    /// Its worker's state, never `Ready`.
    pub state: WorkerState,
}

impl UnusableTarget {
    /// Returns the word of a receipt's `excluded.reason`.
    pub fn reason(&self) -> &'static str {
        match self.state {
            WorkerState::WarmingUp => "warming_up",
            WorkerState::Draining => "draining",
            WorkerState::Ejected => "circuit_open",
            WorkerState::Unknown | WorkerState::Down | WorkerState::Ready => "unhealthy",
        }
    }
}

impl Snapshot {
    /// Returns the worker with this number.
    pub fn worker(&self, id: WorkerId) -> Option<&Arc<WorkerView>> {
        // Numbers ascend in the order of the list.
        let at = self
            .workers
            .binary_search_by_key(&id, |worker| worker.id)
            .ok()?;
        self.workers.get(at)
    }

    /// Returns the worker with this name.
    pub fn worker_named(&self, name: &str) -> Option<&Arc<WorkerView>> {
        self.workers.iter().find(|worker| &*worker.name == name)
    }

    /// Returns the targets of the model with this id.
    pub fn model(&self, id: &str) -> Option<&Arc<ModelView>> {
        self.models.get(id)
    }

    /// Returns the number of workers that get requests.
    pub fn ready(&self) -> usize {
        self.workers
            .iter()
            .filter(|worker| worker.is_ready())
            .count()
    }
}
