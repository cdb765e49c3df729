//! Model lists of `GET /v1/models` and `GET /admin/models`.

use std::{collections::BTreeSet, sync::Arc};

use api::{ModelReport, TemplateReport, TokenizerReport};
use serde::Serialize;

use crate::{ModelView, Snapshot, TokenizerSource, WorkerState};

/// Reply of `GET /v1/models`.
#[derive(Clone, Debug, Serialize)]
pub struct ModelListReply {
    /// Always `list`.
    pub object: &'static str,
    /// By id, ascending.
    pub data: Vec<ListedModel>,
}

/// One model or adapter of `GET /v1/models`.
#[derive(Clone, Debug, Serialize)]
pub struct ListedModel {
    /// The model id that requests use.
    pub id: Arc<str>,
    /// Always `model`.
    pub object: &'static str,
    /// Creation time in Unix seconds: the oldest among its workers.
    pub created: i64,
    /// The owner that its first worker lists.
    pub owned_by: Arc<str>,
    /// The root that its first worker lists.
    pub root: Option<Arc<str>>,
    /// The base model of an adapter.
    pub parent: Option<Arc<str>>,
    /// The smallest among its workers.
    pub max_model_len: Option<u32>,
}

impl Snapshot {
    /// Returns the models that requests may name, as `GET /v1/models` lists them. A model whose
    /// every worker is down is left out, since no worker can serve it.
    pub fn model_list(&self) -> ModelListReply {
        let mut data: Vec<ListedModel> = self
            .models
            .values()
            .filter(|model| is_expected(model))
            .map(|model| self.listed(model))
            .collect();
        data.sort_by(|one, other| one.id.cmp(&other.id));
        ModelListReply {
            object: "list",
            data,
        }
    }

    fn listed(&self, model: &ModelView) -> ListedModel {
        let mut listed = ListedModel {
            id: Arc::clone(&model.id),
            object: "model",
            created: 0,
            owned_by: "unknown".into(),
            root: None,
            parent: None,
            max_model_len: model.max_model_len,
        };
        let bases = self
            .workers
            .iter()
            .flat_map(|worker| &worker.served.models)
            .filter(|base| base.id == model.id);
        if let Some(first) = bases.clone().next() {
            listed.owned_by = Arc::clone(&first.owned_by);
            listed.root.clone_from(&first.root);
            listed.created = bases.map(|base| base.created).min().unwrap_or(0);
            return listed;
        }
        let loras = self
            .workers
            .iter()
            .flat_map(|worker| &worker.served.loras)
            .filter(|lora| lora.id == model.id);
        listed.parent = loras.clone().next().map(|lora| Arc::clone(&lora.parent));
        listed.created = loras.map(|lora| lora.created).min().unwrap_or(0);
        listed
    }

    /// Returns every known model, as `GET /admin/models` shows it; by id, ascending.
    pub fn model_reports(&self) -> Vec<ModelReport> {
        let mut reports: Vec<ModelReport> = self
            .models
            .values()
            .map(|model| self.report(model))
            .collect();
        reports.sort_by(|one, other| one.id.cmp(&other.id));
        reports
    }

    fn report(&self, model: &ModelView) -> ModelReport {
        let serves = self.workers.iter().filter(|worker| {
            worker.served.models.iter().any(|base| base.id == model.id)
                || worker.served.loras.iter().any(|lora| lora.id == model.id)
        });
        let block_sizes: BTreeSet<u32> = serves
            .clone()
            .map(|worker| worker.cache.block_size.tokens())
            .collect();
        let artefacts = &model.artefacts;
        let prompt = artefacts.prompt.as_ref();
        let template_digest = prompt
            .and_then(|prompt| prompt.template_digest())
            .map(str::to_owned);
        ModelReport {
            id: Arc::clone(&model.id),
            workers: serves.map(|worker| Arc::clone(&worker.name)).collect(),
            tokenizer: TokenizerReport {
                source: artefacts.source.as_str().into(),
                engine: artefacts.tokenizer_engine().into(),
                digest: prompt.map(|prompt| prompt.tokenizer_digest().to_owned()),
                self_test: prompt.map_or("skipped", |prompt| prompt.self_test()).into(),
                path: match &artefacts.source {
                    TokenizerSource::Dir(dir) => Some(dir.display().to_string()),
                    TokenizerSource::Engine | TokenizerSource::Remote | TokenizerSource::None => {
                        None
                    }
                },
                problem: artefacts.problem.clone(),
            },
            template: TemplateReport {
                source: if template_digest.is_some() {
                    artefacts.source.as_str()
                } else {
                    "none"
                }
                .into(),
                digest: template_digest,
            },
            block_sizes: block_sizes.into_iter().collect(),
            max_context_tokens: model.max_model_len,
        }
    }
}

fn is_expected(model: &ModelView) -> bool {
    !model.candidates.is_empty()
        || model.unusable.iter().any(|unusable| {
            matches!(
                unusable.state,
                WorkerState::WarmingUp | WorkerState::Draining | WorkerState::Ejected
            )
        })
}
