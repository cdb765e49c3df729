//! What is known of a worker's identity: before a check, and as a check finds it.

use std::{collections::HashMap, sync::Arc};

use config::EngineKind;
use kv_blocks::Moment;

use crate::{
    ModelArtefacts, ServedLora, ServedModel, WorkerView,
    probe::{EngineFacts, Scrape, model_list::ModelList},
    streams::StreamSpec,
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
    /// Whether it has no stream though one is configured.
    pub(crate) streams_missing: bool,
}

impl KnownFacts {
    /// Returns the first base model that the worker listed.
    pub(crate) fn base(&self) -> Option<&Arc<str>> {
        self.view.as_ref()?.served.namespace_model.as_ref()
    }

    /// Returns whether the worker listed this model before.
    pub(crate) fn lists(&self, model: &ServedModel) -> bool {
        self.view
            .as_ref()
            .is_some_and(|view| view.served.models.iter().any(|old| same_model(old, model)))
    }

    /// Returns whether the list has the base models that the worker listed before, if it did.
    pub(crate) fn has_models_of(&self, list: &ModelList) -> bool {
        self.view
            .as_ref()
            .is_none_or(|view| same_models(&view.served.models, &list.models))
    }

    /// Returns whether the list has the adapters that the worker listed before, if it did.
    pub(crate) fn has_loras_of(&self, list: &ModelList) -> bool {
        self.view
            .as_ref()
            .is_none_or(|view| same_loras(&view.served.loras, &list.loras))
    }
}

/// Compares model lists. Engines date their lists anew with every answer, so `created` is ignored.
fn same_models(old: &[ServedModel], new: &[ServedModel]) -> bool {
    old.len() == new.len() && old.iter().zip(new).all(|(old, new)| same_model(old, new))
}

fn same_model(old: &ServedModel, new: &ServedModel) -> bool {
    old.id == new.id && old.root == new.root && old.max_model_len == new.max_model_len
}

fn same_loras(old: &[ServedLora], new: &[ServedLora]) -> bool {
    let named = |lora: &ServedLora| (Arc::clone(&lora.id), Arc::clone(&lora.parent));
    old.iter().map(named).eq(new.iter().map(named))
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
    pub(crate) streams: Vec<StreamSpec>,
    pub(crate) facts: EngineFacts,
    /// Its load and counters, and when they were read.
    pub(crate) scrape: Option<(Moment, Scrape)>,
    /// Whether every request was answered and nothing was carried over.
    pub(crate) complete: bool,
}
