//! From what is known of each worker to the snapshot.

use std::{collections::HashMap, sync::Arc};

use kv_blocks::Role;

use crate::{ModelArtefacts, ModelCandidate, ModelView, Snapshot, Unusable, WorkerState, WorkerView, entry::Entry};

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

/// One worker's entry in the list of a model's workers.
struct Listed<'a> {
    entry: &'a Entry,
    /// The adapter, when the model is one.
    lora: Option<Arc<str>>,
    /// The base model's id.
    base: &'a Arc<str>,
}

#[derive(Default)]
struct Draft<'a> {
    listed: Vec<Listed<'a>>,
    artefacts: Option<Arc<ModelArtefacts>>,
    max_model_len: Option<u32>,
}

impl<'a> Draft<'a> {
    fn add(&mut self, entry: &'a Entry, lora: Option<Arc<str>>, base: &'a Arc<str>) {
        self.listed.push(Listed { entry, lora, base });
        // The first worker with a tokenizer speaks for the model; equal files are one object anyway.
        let better =
            |found: &&Arc<ModelArtefacts>| self.artefacts.as_ref().is_none_or(|known| found.better_than(known));
        if let Some(found) = entry.artefacts.get(base).filter(better) {
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
        let generates = |view: &WorkerView| !view.only_prefills();
        let panic = !self.listed.iter().any(|listed| ready(listed.entry) && generates(&listed.entry.view));
        let mut candidates = Vec::new();
        let mut unusable = Vec::new();
        for Listed { entry, lora, base } in &self.listed {
            let view = &entry.view;
            if ready(entry) || (panic && generates(view) && last_good(entry)) {
                candidates.extend(candidates_of(view, lora.as_ref(), base));
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
            panic: panic && candidates.iter().any(|candidate| generates(&candidate.worker)),
            split: self.listed.iter().any(|listed| listed.entry.view.role != Role::Unified),
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
    base: &Arc<str>,
) -> impl Iterator<Item = ModelCandidate> + 'a {
    let namespace_model = namespace_model(view, base);
    view.targets().filter_map(move |target| {
        Some(ModelCandidate {
            target,
            worker: Arc::clone(view),
            namespace_model: namespace_model.clone()?,
            lora: lora.cloned(),
        })
    })
}

/// The model name of the namespaces of requests for `base`. A worker with an event stream is one engine process, whose
/// base models are aliases of one. A worker without may stand for many models, and a prompt that one of them has cached
/// is cold for the others: ids are one model only where their root says so.
fn namespace_model(view: &WorkerView, base: &Arc<str>) -> Option<Arc<str>> {
    let root_of =
        |id: &Arc<str>| view.models.iter().find(|model| model.id == *id).and_then(|model| model.root.as_ref());
    let first = view.namespace_model.as_ref()?;
    if view.ranks.iter().any(|rank| rank.stream.is_some()) {
        return Some(Arc::clone(first));
    }
    let same = root_of(base).and_then(|root| view.models.iter().find(|model| model.root.as_ref() == Some(root)));
    Some(same.map_or_else(|| Arc::clone(base), |model| Arc::clone(&model.id)))
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use kv_blocks::WorkerId;
    use net::Clock;

    use super::*;
    use crate::ServedModel;

    /// A worker that serves `m`, in this role and state.
    fn entry(id: u32, role: Role, state: WorkerState) -> Entry {
        let mut entry = Entry::for_tests(WorkerId(id), &Clock::system());
        let view = Arc::make_mut(&mut entry.view);
        let model = ServedModel { id: "m".into(), root: None, max_model_len: None, created: 0, owned_by: "t".into() };
        (view.role, view.state, view.models, view.namespace_model) = (role, state, vec![model], Some("m".into()));
        entry.was_ready = true;
        entry
    }

    fn model(entries: &[Entry]) -> Arc<ModelView> {
        Arc::clone(build(entries).model("m").expect("the model is served"))
    }

    fn ids(model: &ModelView) -> Vec<u32> {
        model.candidates.iter().map(|candidate| candidate.target.worker.0).collect()
    }

    #[test]
    #[contract("DY25")]
    fn a_role_is_there_as_soon_as_a_worker_with_it_lists_the_model() {
        use WorkerState::Ready;
        let unified = entry(0, Role::Unified, Ready);
        assert!(!model(&[unified]).split);
        let (unified, prefill) = (entry(0, Role::Unified, Ready), entry(1, Role::Prefill, Ready));
        let both = model(&[unified, prefill]);
        assert!(both.split);
        assert_eq!(ids(&both), [0, 1]);
    }

    #[test]
    #[contract("DY26")]
    fn ready_prefill_workers_do_not_hide_that_nobody_generates() {
        use WorkerState::{Down, Ready};
        let model =
            model(&[entry(0, Role::Prefill, Ready), entry(1, Role::Decode, Down), entry(2, Role::Prefill, Down)]);
        assert!(model.panic);
        assert_eq!(ids(&model), [0, 1], "the decode worker may be well, and nobody needs the other one");
        assert_eq!(model.unusable.len(), 1);
    }
}
