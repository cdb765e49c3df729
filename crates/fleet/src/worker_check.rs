//! One check of a worker: its health and its identity.
//!
//! A check only sends requests. It changes nothing and may be dropped at any time; the supervisor
//! applies its finding, and serves the worker's streams meanwhile.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use config::{EngineKind, MessagesMode};
use kv_blocks::{BlockSize, Moment, WorkerId};

use crate::{
    ModelArtefacts, ServedLora, ServedModel,
    artefacts::ArtefactStore,
    probe::{
        self, ConfiguredIdentity, EngineFacts, EngineIdentity, HealthCheckPlan, ProbeClient,
        ProbeError, Scrape, model_list::ModelList,
    },
    streams::{StreamSettings, WantedStream},
    worker_table::WorkerTable,
};

/// Limit of models whose tokenizer is looked up on one worker; an aggregator may list thousands.
const MOST_TOKENIZERS: usize = 64;

/// A supervisor's configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SupervisorConfig {
    pub(crate) id: WorkerId,
    pub(crate) name: Arc<str>,
    pub(crate) client: ProbeClient,
    pub(crate) health_check: HealthCheckPlan,
    /// Whether a ready worker is checked at intervals.
    pub(crate) checks_enabled: bool,
    /// The configured kind.
    pub(crate) engine: Option<EngineKind>,
    /// The configured mode for Anthropic messages; `None` = detected.
    pub(crate) messages: Option<MessagesMode>,
    /// The only models that it serves.
    pub(crate) only_models: Vec<Arc<str>>,
    /// The configured block size.
    pub(crate) block_size: Option<BlockSize>,
    /// The configured number of ranks.
    pub(crate) dp_ranks: Option<u32>,
    pub(crate) streams: StreamSettings,
    pub(crate) connect_timeout: Duration,
    /// Interval between reads of the engine's own load.
    pub(crate) scrape_every: Duration,
}

/// Checker of one worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerChecker {
    pub(crate) worker_table: Arc<WorkerTable>,
    pub(crate) artefacts: Arc<ArtefactStore>,
    pub(crate) config: Arc<SupervisorConfig>,
}

/// Facts known before a check.
#[derive(Clone, Debug)]
pub(crate) struct PreviousCheck {
    /// Whether the worker's facts are still valid: no outage since.
    pub(crate) known: bool,
    pub(crate) ready: bool,
    /// Whether it has no stream though one is wanted.
    pub(crate) streams_missing: bool,
    pub(crate) facts: EngineFacts,
}

/// The finding of a check.
pub(crate) enum CheckFinding {
    Checked(Result<HealthyReport, ProbeError>),
    /// The connection failed. `refused`: nothing listens there.
    ConnectFailed {
        refused: bool,
    },
}

/// The report of a healthy worker.
pub(crate) enum HealthyReport {
    Nothing,
    /// Adapters were added or removed.
    Loras(Vec<ServedLora>),
    Identified(Box<WorkerIdentity>),
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

/// The time that a check may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckPace {
    /// Sends every request and waits for each answer.
    Thorough,
    /// For a known worker that comes back: it is used at once with its earlier facts, and checked
    /// thoroughly afterwards.
    Returning,
}

impl WorkerChecker {
    /// Opens and closes a connection. A successful connect is followed by a check at once: the
    /// process that answers now may be another than the one that went down.
    pub(crate) async fn probe_tcp(self, before: PreviousCheck) -> CheckFinding {
        let url = self.config.client.url();
        match url
            .destinations()
            .connect(&url.address(), self.config.connect_timeout)
            .await
        {
            Ok(open) => {
                drop(open);
                self.check(PreviousCheck {
                    known: false,
                    ..before
                })
                .await
            }
            Err(error) => {
                let refused = matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
                );
                CheckFinding::ConnectFailed { refused }
            }
        }
    }

    /// Checks the worker's health, and its identity as far as that is unknown.
    pub(crate) async fn check(self, before: PreviousCheck) -> CheckFinding {
        CheckFinding::Checked(self.examine(&before).await)
    }

    async fn examine(&self, before: &PreviousCheck) -> Result<HealthyReport, ProbeError> {
        let engine = self.config.engine.unwrap_or(EngineKind::Generic);
        self.config
            .health_check
            .run(&self.config.client, engine)
            .await?;
        match before {
            PreviousCheck {
                known: true,
                ready: true,
                ..
            } => Ok(self.refresh(before).await),
            PreviousCheck { known: true, .. } => Ok(HealthyReport::Nothing),
            _ => Ok(HealthyReport::Identified(Box::new(
                self.identify_worker(&before.facts, CheckPace::Returning)
                    .await?,
            ))),
        }
    }

    /// Reads the model list again: adapters come and go on a running engine, so its list is read
    /// with every check. A list that cannot be read changes nothing; one that names another base
    /// model is another engine.
    async fn refresh(&self, before: &PreviousCheck) -> HealthyReport {
        let Ok(list) = probe::list_models(&self.config.client, self.config.engine).await else {
            return HealthyReport::Nothing;
        };
        let list = list.restricted_to(&self.config.only_models);
        if list.models.is_empty() && list.loras.is_empty() {
            return HealthyReport::Nothing;
        }
        let same = self.worker_table.with(self.config.id, |entry| {
            let view = &entry.view;
            (
                same_models(&view.models, &list.models),
                same_loras(&view.loras, &list.loras),
            )
        });
        let (same_models, same_loras) = same.unwrap_or((true, true));
        if !same_models || before.streams_missing {
            match self
                .identify_worker(&before.facts, CheckPace::Thorough)
                .await
            {
                Ok(found) => HealthyReport::Identified(Box::new(found)),
                Err(_) => HealthyReport::Nothing,
            }
        } else if !same_loras {
            HealthyReport::Loras(list.loras)
        } else {
            HealthyReport::Nothing
        }
    }

    /// Identifies the worker. Its earlier answers stay valid until it gives others. A worker
    /// without earlier answers is always checked thoroughly.
    pub(crate) async fn identify_worker(
        &self,
        said: &EngineFacts,
        pace: CheckPace,
    ) -> Result<WorkerIdentity, ProbeError> {
        let SupervisorConfig {
            id,
            client: asker,
            engine,
            messages,
            ..
        } = &*self.config;
        let configured = ConfiguredIdentity {
            engine: *engine,
            messages: *messages,
        };
        let before = self.worker_table.with(*id, |entry| {
            (
                entry.view.namespace_model.clone(),
                entry.view.models.clone(),
                entry.artefacts.clone(),
            )
        });
        let (old_base, old_models, old_artefacts) = before.unwrap_or_default();
        let mut pace = if old_base.is_some() {
            pace
        } else {
            CheckPace::Thorough
        };
        let mut identity = probe::identify(asker, configured, said, pace).await?;
        let (mut list, mut base) = self.list_and_base(&identity)?;
        if old_base.is_some_and(|old| old != base) {
            // Another engine: the answers of the one before it are not its own.
            pace = CheckPace::Thorough;
            identity = probe::identify(asker, configured, &EngineFacts::default(), pace).await?;
            (list, base) = self.list_and_base(&identity)?;
        }
        let read_at = self.worker_table.clock.now();
        let mut complete = identity.complete;
        let mut artefacts = HashMap::new();
        for model in list.models.iter().take(MOST_TOKENIZERS) {
            let known = old_artefacts.get(&model.id);
            let found = match known {
                Some(known)
                    if pace == CheckPace::Returning
                        && old_models.iter().any(|old| same_model(old, model)) =>
                {
                    complete = false;
                    Arc::clone(known)
                }
                _ => self.artefacts.find(model, asker, known).await,
            };
            artefacts.insert(Arc::clone(&model.id), found);
        }
        let announced = identity.facts.announced();
        let metrics = identity.facts.metrics();
        let told_ranks = announced
            .iter()
            .flat_map(|streams| streams.iter())
            .map(|stream| stream.rank + 1)
            .max();
        let metrics_ranks = metrics.map_or(0, |metrics| metrics.ranks);
        let ranks = self
            .config
            .dp_ranks
            .unwrap_or_else(|| told_ranks.unwrap_or(0).max(metrics_ranks).max(1));
        let host = asker.url().host().unwrap_or("127.0.0.1");
        let streams = self
            .config
            .streams
            .find(announced, host, ranks, self.config.connect_timeout)
            .await;
        let EngineIdentity {
            engine,
            facts: said,
            scrape,
            ..
        } = identity;
        let scrape = scrape.map(|scrape| (read_at, scrape));
        Ok(WorkerIdentity {
            engine,
            list,
            base,
            artefacts,
            ranks,
            streams,
            facts: said,
            scrape,
            complete,
        })
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
            return Err(ProbeError::failed(if only_models.is_empty() {
                "lists no model: start the engine with one, or name the models it serves under its models".to_owned()
            } else {
                format!(
                    "lists {} and none of {}: correct this worker's models",
                    listed.join(", "),
                    only_models.join(", ")
                )
            }));
        };
        Ok((list, base))
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
