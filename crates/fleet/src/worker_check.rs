//! One check of a worker: its health and its identity.
//!
//! A check only sends requests. It changes nothing and may be dropped at any time; the supervisor
//! applies its finding, and serves the worker's streams meanwhile.

use std::{collections::HashMap, sync::Arc};

use config::EngineKind;
use net::Clock;

use crate::{
    ModelArtefacts, ProblemKind, ServedLora,
    artefacts::ArtefactStore,
    probe::{
        self, CheckPace, ConfiguredIdentity, EngineFacts, EngineIdentity, ProbeError,
        event_endpoints, model_list::ModelList,
    },
    streams::StreamSearch,
    supervisor_config::SupervisorConfig,
    worker_identity::{KnownFacts, WorkerIdentity},
    worker_machine::{CheckScope, ConnectFailure},
};

/// Limit of models whose tokenizer is looked up on one worker; an aggregator may list thousands.
const MOST_TOKENIZERS: usize = 64;

/// Checker of one worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerChecker {
    pub(crate) artefacts: Arc<ArtefactStore>,
    pub(crate) config: Arc<SupervisorConfig>,
    pub(crate) clock: Clock,
}

/// The finding of a check.
pub(crate) enum CheckFinding {
    Checked(Result<HealthyReport, ProbeError>),
    ConnectFailed(ConnectFailure),
}

/// The report of a healthy worker.
pub(crate) enum HealthyReport {
    Nothing,
    /// Adapters were added or removed.
    Loras(Vec<ServedLora>),
    Identified(Box<WorkerIdentity>),
}

impl WorkerChecker {
    /// Runs a check. A successful connect probe is followed by a whole check at once: the process
    /// that answers now may be another than the one that went down.
    pub(crate) async fn check(self, scope: CheckScope, known: KnownFacts) -> CheckFinding {
        if scope == CheckScope::Connect
            && let Err(failure) =
                probe::connect(self.config.client.url(), self.config.connect_timeout).await
        {
            return CheckFinding::ConnectFailed(failure);
        }
        CheckFinding::Checked(self.examine(scope, &known).await)
    }

    async fn examine(
        &self,
        scope: CheckScope,
        known: &KnownFacts,
    ) -> Result<HealthyReport, ProbeError> {
        let engine = self.config.engine.unwrap_or(EngineKind::Generic);
        self.config
            .health_check
            .run(&self.config.client, engine)
            .await?;
        match scope {
            CheckScope::Health => Ok(HealthyReport::Nothing),
            CheckScope::Models => Ok(self.refresh(known).await),
            CheckScope::Identity | CheckScope::Connect => {
                let found = self.identify_worker(known, CheckPace::Returning).await?;
                Ok(HealthyReport::Identified(Box::new(found)))
            }
        }
    }

    /// Reads the model list again: adapters come and go on a running engine, so its list is read
    /// with every check. A list that cannot be read changes nothing; one that names another base
    /// model is another engine.
    async fn refresh(&self, known: &KnownFacts) -> HealthyReport {
        let Ok(list) = probe::list_models(&self.config.client, self.config.engine).await else {
            return HealthyReport::Nothing;
        };
        let list = list.restricted_to(&self.config.only_models);
        if list.models.is_empty() && list.loras.is_empty() {
            return HealthyReport::Nothing;
        }
        if !known.has_models_of(&list) || known.streams_missing {
            match self.identify_worker(known, CheckPace::Thorough).await {
                Ok(found) => HealthyReport::Identified(Box::new(found)),
                Err(_) => HealthyReport::Nothing,
            }
        } else if !known.has_loras_of(&list) {
            HealthyReport::Loras(list.loras)
        } else {
            HealthyReport::Nothing
        }
    }

    /// Identifies the worker. Its earlier answers stay valid until it gives others. A worker
    /// without earlier answers is always checked thoroughly.
    pub(crate) async fn identify_worker(
        &self,
        known: &KnownFacts,
        pace: CheckPace,
    ) -> Result<WorkerIdentity, ProbeError> {
        let old_base = known.base();
        let mut pace = if old_base.is_some() {
            pace
        } else {
            CheckPace::Thorough
        };
        let mut identity = self.read_identity(&known.engine, pace).await?;
        let (mut list, mut base) = self.list_and_base(&identity)?;
        if old_base.is_some_and(|old| *old != base) {
            // Another engine: the answers of the one before it are not its own.
            pace = CheckPace::Thorough;
            identity = self.read_identity(&EngineFacts::default(), pace).await?;
            (list, base) = self.list_and_base(&identity)?;
        }
        let read_at = self.clock.now();
        let FoundArtefacts {
            artefacts,
            carried_over,
        } = self.find_artefacts(&list, known, pace).await;
        let EngineIdentity {
            engine,
            facts,
            scrape,
            complete,
            ..
        } = identity;
        let ranks = self.config.dp_ranks.unwrap_or_else(|| facts.ranks());
        let search = StreamSearch {
            settings: &self.config.streams,
            announced: facts.announced(),
            host: event_endpoints::host_of(self.config.client.url()),
            ranks,
            connect_timeout: self.config.connect_timeout,
        };
        let streams = search.find().await;
        Ok(WorkerIdentity {
            engine,
            list,
            base,
            artefacts,
            ranks,
            streams,
            facts,
            scrape: scrape.map(|scrape| (read_at, scrape)),
            complete: complete && !carried_over,
        })
    }

    async fn read_identity(
        &self,
        before: &EngineFacts,
        pace: CheckPace,
    ) -> Result<EngineIdentity, ProbeError> {
        let configured = ConfiguredIdentity {
            engine: self.config.engine,
            messages: self.config.messages,
        };
        probe::identify(&self.config.client, configured, before, pace).await
    }

    /// Finds the tokenizers of the listed models. A worker that only returns keeps those of models
    /// that did not change.
    async fn find_artefacts(
        &self,
        list: &ModelList,
        known: &KnownFacts,
        pace: CheckPace,
    ) -> FoundArtefacts {
        let mut found = FoundArtefacts::default();
        for model in list.models.iter().take(MOST_TOKENIZERS) {
            let before = known.artefacts.get(&model.id);
            let artefacts = match before {
                Some(before) if pace == CheckPace::Returning && known.lists(model) => {
                    found.carried_over = true;
                    Arc::clone(before)
                }
                _ => {
                    self.artefacts
                        .find(model, &self.config.client, before)
                        .await
                }
            };
            found.artefacts.insert(Arc::clone(&model.id), artefacts);
        }
        found
    }

    /// Returns the models that the worker serves here, and the first base model among them.
    fn list_and_base(
        &self,
        identity: &EngineIdentity,
    ) -> Result<(ModelList, Arc<str>), ProbeError> {
        let only_models = &self.config.only_models;
        let list = identity.list.clone().restricted_to(only_models);
        let base = list
            .models
            .first()
            .map(|model| &model.id)
            .or(list.loras.first().map(|lora| &lora.parent))
            .cloned();
        let Some(base) = base else {
            let listed: Vec<_> = identity
                .list
                .models
                .iter()
                .map(|model| model.id.to_string())
                .collect();
            return Err(ProbeError::failed(
                ProblemKind::NoModel,
                if only_models.is_empty() {
                    "lists no model: start the engine with one, or name the models it serves under its models".to_owned()
                } else {
                    format!(
                        "lists {} and none of {}: correct this worker's models",
                        listed.join(", "),
                        only_models.join(", ")
                    )
                },
            ));
        };
        Ok((list, base))
    }
}

/// The tokenizers of a worker's models.
#[derive(Default)]
struct FoundArtefacts {
    /// By base model id.
    artefacts: HashMap<Arc<str>, Arc<ModelArtefacts>>,
    /// Whether some of them are those of an earlier check.
    carried_over: bool,
}
