//! What is known of a worker's identity: before a check, and as a check finds it.

use std::{collections::HashMap, sync::Arc};

use config::EngineKind;
use kv_blocks::Moment;

use crate::{
    ModelArtefacts, WorkerView,
    probe::{EngineFacts, Scrape, model_list::ModelList},
    streams::WantedStream,
};

/// Facts known before a check. They stay valid until the worker gives others.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownFacts {
    /// The answers of the engine to the requests beside the model list.
    pub(crate) engine: EngineFacts,
    /// The worker in the last snapshot; `None`: it was never identified.
    pub(crate) view: Option<Arc<WorkerView>>,
    /// By base model id.
    pub(crate) artefacts: HashMap<Arc<str>, Arc<ModelArtefacts>>,
    /// Whether it has no stream though one is wanted.
    pub(crate) streams_missing: bool,
}

/// The identity of a worker.
pub(crate) struct WorkerIdentity {
    pub(crate) engine: EngineKind,
    pub(crate) list: ModelList,
    /// The first base model.
    pub(crate) base: Arc<str>,
    /// By base model id.
    pub(crate) artefacts: HashMap<Arc<str>, Arc<ModelArtefacts>>,
    pub(crate) ranks: u32,
    pub(crate) streams: Vec<WantedStream>,
    pub(crate) facts: EngineFacts,
    /// Its load and counters, and when they were read.
    pub(crate) scrape: Option<(Moment, Scrape)>,
    /// Whether every request was answered and nothing was carried over.
    pub(crate) complete: bool,
}
