//! Builds the snapshot from the worker records.

use std::{collections::HashMap, sync::Arc};

use kv_blocks::Role;

use crate::{
    ModelArtefacts, ModelCandidate, ModelView, OtherTarget, Snapshot, UnusableTarget, WorkerState,
    WorkerView, snapshot::MOST_OTHERS, worker_record::WorkerRecord,
};

/// Builds the snapshot; `entries` in the order of their numbers.
pub(crate) fn build(entries: &[WorkerRecord]) -> Snapshot {
    let mut drafts: HashMap<Arc<str>, ModelDraft<'_>> = HashMap::new();
    for entry in entries {
        let view = &entry.view;
        for model in &view.served.models {
            let draft = drafts.entry(Arc::clone(&model.id)).or_default();
            draft.add(ListedWorker {
                entry,
                lora: None,
                base: &model.id,
                max_model_len: model.max_model_len,
            });
        }
        for lora in &view.served.loras {
            let draft = drafts.entry(Arc::clone(&lora.id)).or_default();
            let parent = view
                .served
                .models
                .iter()
                .find(|model| model.id == lora.parent);
            draft.add(ListedWorker {
                entry,
                lora: Some(Arc::clone(&lora.id)),
                base: &lora.parent,
                max_model_len: parent.and_then(|model| model.max_model_len),
            });
        }
    }
    Snapshot {
        workers: entries
            .iter()
            .map(|entry| Arc::clone(&entry.view))
            .collect(),
        models: drafts
            .into_iter()
            .map(|(id, draft)| (Arc::clone(&id), Arc::new(draft.finish(id, entries))))
            .collect(),
    }
}

/// One worker's entry in the list of a model's workers.
struct ListedWorker<'a> {
    entry: &'a WorkerRecord,
    /// The adapter, when the model is one.
    lora: Option<Arc<str>>,
    /// The base model's id.
    base: &'a Arc<str>,
    max_model_len: Option<u32>,
}

#[derive(Default)]
struct ModelDraft<'a> {
    /// In the order of the workers' numbers.
    listed: Vec<ListedWorker<'a>>,
}

impl<'a> ModelDraft<'a> {
    fn add(&mut self, worker: ListedWorker<'a>) {
        self.listed.push(worker);
    }

    /// Returns the first targets of workers that do not serve the model.
    fn others(&self, entries: &[WorkerRecord]) -> Vec<OtherTarget> {
        let base = self.listed.iter().find(|listed| listed.lora.is_some());
        let serves_base = |view: &WorkerView| {
            base.is_some_and(|listed| {
                let mut models = view.served.models.iter();
                models.any(|model| model.id == *listed.base)
            })
        };
        let mut listed = self
            .listed
            .iter()
            .map(|listed| listed.entry.view.id)
            .peekable();
        let is_other = |entry: &&WorkerRecord| {
            let mut serves = false;
            while listed.next_if_eq(&entry.view.id).is_some() {
                serves = true;
            }
            // What a worker serves that was never reached is unknown.
            !serves && !entry.view.served.models.is_empty()
        };
        entries
            .iter()
            .filter(is_other)
            .flat_map(|entry| {
                let (view, lacks_adapter) = (&entry.view, serves_base(&entry.view));
                view.targets().map(move |target| OtherTarget {
                    target,
                    name: Arc::clone(&view.name),
                    lacks_adapter,
                })
            })
            .take(MOST_OTHERS)
            .collect()
    }

    fn finish(self, id: Arc<str>, entries: &[WorkerRecord]) -> ModelView {
        let generates = |view: &WorkerView| !view.only_prefills();
        let panic = !self
            .listed
            .iter()
            .any(|listed| ready(listed.entry) && generates(&listed.entry.view));
        let mut candidates = Vec::new();
        let mut unusable = Vec::new();
        for listed in &self.listed {
            let entry = listed.entry;
            let view = &entry.view;
            if ready(entry) || (panic && generates(view) && last_good(entry)) {
                candidates.extend(candidates_of(listed));
            } else {
                let name = &view.name;
                unusable.extend(view.targets().map(|target| UnusableTarget {
                    target,
                    name: Arc::clone(name),
                    state: view.health.state,
                }));
            }
        }
        ModelView {
            id,
            panic: panic
                && candidates
                    .iter()
                    .any(|candidate| generates(&candidate.worker)),
            split: self
                .listed
                .iter()
                .any(|listed| listed.entry.view.role != Role::Unified),
            candidates,
            unusable,
            others: self.others(entries),
            artefacts: agreed_artefacts(&self.listed),
            max_model_len: self
                .listed
                .iter()
                .filter_map(|listed| listed.max_model_len)
                .min(),
        }
    }
}

fn ready(entry: &WorkerRecord) -> bool {
    entry.view.health.state == WorkerState::Ready
}

/// Returns the tokenizer and template that all workers of a model have in common. No worker's
/// artefacts are used for another one's prompts: predictions about the other's cache would be
/// wrong, and a bad worker would decide for all of them.
///
/// Workers that serve now come first. A worker without known artefacts does not count against the
/// others.
fn agreed_artefacts(listed: &[ListedWorker<'_>]) -> Arc<ModelArtefacts> {
    let found = |listed: &&ListedWorker<'_>| listed.entry.artefacts.contains_key(listed.base);
    let mut known: Vec<_> = listed
        .iter()
        .filter(|listed| ready(listed.entry))
        .filter(found)
        .collect();
    if known.is_empty() {
        known = listed.iter().filter(found).collect();
    }
    let named = |listed: &&ListedWorker<'_>| {
        let artefacts = listed.entry.artefacts.get(listed.base)?;
        Some((Arc::clone(&listed.entry.view.name), Arc::clone(artefacts)))
    };
    ModelArtefacts::agreed(known.iter().filter_map(named))
}

/// Returns whether a worker is tried when none is ready: it served before, and its checks or
/// requests fail. A refused connection, or a worker that reports that it is loading, leaves no
/// doubt, so such workers are not tried.
fn last_good(entry: &WorkerRecord) -> bool {
    match entry.view.health.state {
        WorkerState::Ejected => true,
        WorkerState::Down => entry.machine.was_ready() && !entry.machine.is_refused(),
        WorkerState::Ready
        | WorkerState::Unknown
        | WorkerState::WarmingUp
        | WorkerState::Draining => false,
    }
}

fn candidates_of<'a>(listed: &'a ListedWorker<'_>) -> impl Iterator<Item = ModelCandidate> + 'a {
    let view = &listed.entry.view;
    let namespace_model = namespace_model(view, listed.base);
    view.targets().filter_map(move |target| {
        Some(ModelCandidate {
            target,
            worker: Arc::clone(view),
            namespace_model: namespace_model.clone()?,
            lora: listed.lora.clone(),
            max_model_len: listed.max_model_len,
        })
    })
}

/// Returns the model name of the namespaces of requests for `base`. A worker with an event stream
/// is one engine process, whose base models are aliases of one. A worker without a stream may serve
/// many models, and a prompt that one of them has cached is cold for the others: ids are one model
/// only where they share a root.
fn namespace_model(view: &WorkerView, base: &Arc<str>) -> Option<Arc<str>> {
    let root_of = |id: &Arc<str>| {
        view.served
            .models
            .iter()
            .find(|model| model.id == *id)
            .and_then(|model| model.root.as_ref())
    };
    let first = view.served.namespace_model.as_ref()?;
    if view.ranks.iter().any(|rank| rank.stream.is_some()) {
        return Some(Arc::clone(first));
    }
    let same = root_of(base).and_then(|root| {
        view.served
            .models
            .iter()
            .find(|model| model.root.as_ref() == Some(root))
    });
    Some(same.map_or_else(|| Arc::clone(base), |model| Arc::clone(&model.id)))
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use kv_blocks::WorkerId;
    use net::Clock;

    use super::*;
    use crate::{TokenizerSource, worker_machine::CheckOutcome};

    /// A worker that serves `m`, was ready once, and is now in this role and state.
    fn entry(id: u32, role: Role, state: WorkerState) -> WorkerRecord {
        let mut entry = WorkerRecord::for_tests(WorkerId(id), &Clock::system())
            .serving("m")
            .checked(CheckOutcome::Passed);
        if state == WorkerState::Down {
            entry = entry.checked(CheckOutcome::Failed);
        }
        assert_eq!(entry.view.health.state, state);
        let view = Arc::make_mut(&mut entry.view);
        (view.role, view.served.namespace_model) = (role, Some("m".into()));
        entry
    }

    #[test]
    fn workers_that_lack_the_model_or_the_adapter_are_listed_up_to_a_bound() {
        let of =
            |id, base: &str| WorkerRecord::for_tests(WorkerId(id), &Clock::system()).serving(base);
        let mut entries = vec![of(0, "m"), of(1, "m"), of(2, "other")];
        let view = Arc::make_mut(&mut entries[0].view);
        view.served.loras = vec![crate::ServedLora {
            id: "ad".into(),
            parent: "m".into(),
            created: 0,
        }];
        let others = |entries: &[WorkerRecord], id: &str| -> Vec<(u32, bool)> {
            let snapshot = build(entries);
            let model = snapshot.model(id).expect("the model is served");
            let row = |other: &OtherTarget| (other.target.worker.0, other.lacks_adapter);
            model.others.iter().map(row).collect()
        };
        assert_eq!(others(&entries, "m"), [(2, false)]);
        assert_eq!(others(&entries, "ad"), [(1, true), (2, false)]);
        assert_eq!(others(&entries, "other"), [(0, false), (1, false)]);
        // One that was never reached may serve it.
        entries.push(WorkerRecord::for_tests(WorkerId(3), &Clock::system()));
        assert_eq!(others(&entries, "m"), [(2, false)]);
        entries.extend((4..40).map(|id| of(id, "other")));
        assert_eq!(others(&entries, "m").len(), MOST_OTHERS);
    }

    fn model(entries: &[WorkerRecord]) -> Arc<ModelView> {
        Arc::clone(build(entries).model("m").expect("the model is served"))
    }

    fn ids(model: &ModelView) -> Vec<u32> {
        model
            .candidates
            .iter()
            .map(|candidate| candidate.target.worker.0)
            .collect()
    }

    #[test]
    #[contract("DY25")]
    fn a_role_is_present_as_soon_as_one_of_its_workers_lists_the_model() {
        use WorkerState::Ready;
        let unified = entry(0, Role::Unified, Ready);
        assert!(!model(&[unified]).split);
        let (unified, prefill) = (
            entry(0, Role::Unified, Ready),
            entry(1, Role::Prefill, Ready),
        );
        let both = model(&[unified, prefill]);
        assert!(both.split);
        assert_eq!(ids(&both), [0, 1]);
    }

    #[test]
    #[contract("DY26")]
    fn ready_prefill_workers_do_not_hide_missing_decode_workers() {
        use WorkerState::{Down, Ready};
        let model = model(&[
            entry(0, Role::Prefill, Ready),
            entry(1, Role::Decode, Down),
            entry(2, Role::Prefill, Down),
        ]);
        assert!(model.panic);
        assert_eq!(
            ids(&model),
            [0, 1],
            "the decode worker may be ready, and the other is not needed"
        );
        assert_eq!(model.unusable.len(), 1);
    }

    /// A worker with the tokenizer of a file; `None`: it has none.
    fn with_tokenizer(
        mut entry: WorkerRecord,
        tokenizer: Option<&Arc<prompt::PromptModel>>,
    ) -> WorkerRecord {
        let source = if tokenizer.is_some() {
            TokenizerSource::Engine
        } else {
            TokenizerSource::None
        };
        let found = ModelArtefacts {
            prompt: tokenizer.cloned(),
            source,
            problem: None,
        };
        entry.artefacts.insert("m".into(), Arc::new(found));
        entry
    }

    #[test]
    #[contract("S64")]
    fn a_tokenizer_is_never_used_for_a_worker_with_another_one_or_none() {
        use WorkerState::{Down, Ready};
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/fixtures/vllm-real/tiny-qwen/tokenizer.json");
        let json = std::fs::read(file).expect("the fixture is there");
        let load = || {
            let artefacts = prompt::Artefacts {
                tokenizer_json: &json,
                tokenizer_config: None,
                chat_template: None,
            };
            Arc::new(
                prompt::PromptModel::load(artefacts).expect("the fixture is a model's own file"),
            )
        };
        let (one, other) = (load(), load());
        let worker =
            |id, state, tokenizer| with_tokenizer(entry(id, Role::Unified, state), tokenizer);
        let artefacts = |entries: &[WorkerRecord]| Arc::clone(&model(entries).artefacts);

        let same = artefacts(&[worker(0, Ready, Some(&one)), worker(1, Ready, Some(&one))]);
        assert!(
            same.prompt
                .as_ref()
                .is_some_and(|prompt| Arc::ptr_eq(prompt, &one))
        );
        for second in [Some(&other), None] {
            for (first, second) in [(Some(&one), second), (second, Some(&one))] {
                let different = artefacts(&[worker(0, Ready, first), worker(1, Ready, second)]);
                assert!(different.prompt.is_none());
                assert!(
                    different
                        .problem
                        .as_deref()
                        .is_some_and(|problem| problem.contains("different tokenizers"))
                );
            }
        }
        let unknown = artefacts(&[worker(0, Ready, Some(&one)), entry(1, Role::Unified, Ready)]);
        assert!(
            unknown.prompt.is_some(),
            "a worker without a check gives no reason"
        );
        let gone = artefacts(&[worker(0, Ready, Some(&one)), worker(1, Down, Some(&other))]);
        assert!(
            gone.prompt.is_some(),
            "a worker that is down gives no reason while others serve"
        );
    }
}
