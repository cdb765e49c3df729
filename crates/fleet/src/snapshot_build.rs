//! From what is known of each worker to the snapshot.

use std::{collections::HashMap, sync::Arc};

use crate::{ModelArtefacts, ModelCandidate, ModelView, Snapshot, Unusable, WorkerState, WorkerView, board::Entry};

/// Builds the snapshot; `entries` in the order of their numbers.
pub(crate) fn build(entries: &[Entry]) -> Snapshot {
    let mut drafts: HashMap<Arc<str>, Draft<'_>> = HashMap::new();
    for entry in entries {
        let view = &entry.view;
        for model in &view.models {
            let draft = drafts.entry(Arc::clone(&model.id)).or_default();
            draft.add(entry, None, &model.id);
            draft.limit(model.max_model_len);
        }
        for lora in &view.loras {
            let draft = drafts.entry(Arc::clone(&lora.id)).or_default();
            draft.add(entry, Some(Arc::clone(&lora.id)), &lora.parent);
            let parent = view.models.iter().find(|model| model.id == lora.parent);
            draft.limit(parent.and_then(|model| model.max_model_len));
        }
    }
    Snapshot {
        workers: entries.iter().map(|entry| Arc::clone(&entry.view)).collect(),
        models: drafts.into_iter().map(|(id, draft)| (Arc::clone(&id), Arc::new(draft.finish(id)))).collect(),
    }
}

#[derive(Default)]
struct Draft<'a> {
    listed: Vec<(&'a Entry, Option<Arc<str>>)>,
    artefacts: Option<Arc<ModelArtefacts>>,
    max_model_len: Option<u32>,
}

impl<'a> Draft<'a> {
    fn add(&mut self, entry: &'a Entry, lora: Option<Arc<str>>, base: &str) {
        self.listed.push((entry, lora));
        // The first worker with a tokenizer speaks for the model; equal files are one object anyway.
        let better = self.artefacts.as_ref().is_none_or(|known| known.prompt.is_none());
        if let Some(found) = entry.artefacts.get(base).filter(|_| better) {
            self.artefacts = Some(Arc::clone(found));
        }
    }

    fn limit(&mut self, max_model_len: Option<u32>) {
        self.max_model_len = match (self.max_model_len, max_model_len) {
            (Some(known), Some(new)) => Some(known.min(new)),
            (known, new) => known.or(new),
        };
    }

    fn finish(self, id: Arc<str>) -> ModelView {
        let ready = |entry: &Entry| entry.view.state == WorkerState::Ready;
        let panic = !self.listed.iter().any(|(entry, _)| ready(entry));
        let mut candidates = Vec::new();
        let mut unusable = Vec::new();
        for (entry, lora) in &self.listed {
            let view = &entry.view;
            if if panic { last_good(entry) } else { ready(entry) } {
                candidates.extend(candidates_of(view, lora.as_ref()));
            } else {
                let name = &view.name;
                unusable.extend(view.targets().map(|target| Unusable {
                    target,
                    name: Arc::clone(name),
                    state: view.state,
                }));
            }
        }
        ModelView {
            id,
            panic: panic && !candidates.is_empty(),
            candidates,
            unusable,
            artefacts: self.artefacts.unwrap_or_default(),
            max_model_len: self.max_model_len,
        }
    }
}

/// Workers tried when none is ready: those that served before and whose checks or requests fail. A refused connection
/// and a worker's own word that it is loading leave no doubt, so such workers are not tried.
fn last_good(entry: &Entry) -> bool {
    match entry.view.state {
        WorkerState::Ejected => true,
        WorkerState::Down => entry.was_ready && !entry.outage.refused,
        WorkerState::Ready | WorkerState::Unknown | WorkerState::WarmingUp | WorkerState::Draining => false,
    }
}

fn candidates_of<'a>(
    view: &'a Arc<WorkerView>,
    lora: Option<&'a Arc<str>>,
) -> impl Iterator<Item = ModelCandidate> + 'a {
    let namespace_model = view.namespace_model.clone();
    view.targets().filter_map(move |target| {
        Some(ModelCandidate {
            target,
            worker: Arc::clone(view),
            namespace_model: namespace_model.clone()?,
            lora: lora.cloned(),
        })
    })
}
