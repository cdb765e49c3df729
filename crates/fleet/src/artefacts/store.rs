//! Finding a model's tokenizer and loading it once.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use config::{ChatTemplate, Tokenizer};
use http::StatusCode;
use net::Clock;
use parking_lot::Mutex;
use prompt::PromptModel;
use tracing::{info, warn};

use super::{ArtefactError, Files, ModelArtefacts, TokenizerSource, files, find_in_hub};
use crate::{HubCache, ServedModel, probe::Asker};

/// How long an engine's own tokenizer files may take to come.
const ENGINE_FILES: Duration = Duration::from_secs(10);
/// Texts tokenised once to learn what tokenising costs, and the bytes of each: a chat of a few turns.
const SAMPLES: usize = 8;
const SAMPLE_BYTES: usize = 8 << 10;
/// Most bytes of a reply with the tokens of one word.
const SHORT_REPLY: usize = 64 << 10;

/// Loaded tokenizers, by content.
pub(crate) struct ArtefactStore {
    models: config::Models,
    hub: HubCache,
    clock: Clock,
    /// One per distinct content; gone with the last model that uses it.
    loaded: Mutex<HashMap<[u8; 32], Weak<PromptModel>>>,
    /// Loading takes memory and a core for seconds: one at a time, so that twelve workers load one tokenizer once.
    turn: tokio::sync::Mutex<()>,
    /// What [`Self::configured`] found, by model id: no more than the configuration has entries.
    configured: Mutex<HashMap<String, Arc<ModelArtefacts>>>,
}

impl std::fmt::Debug for ArtefactStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArtefactStore").finish_non_exhaustive()
    }
}

impl ArtefactStore {
    pub(crate) fn new(models: config::Models, hub: HubCache, clock: Clock) -> Self {
        Self {
            models,
            hub,
            clock,
            loaded: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            configured: Mutex::default(),
        }
    }

    /// The artefacts of one model, as one of its workers shows it. `known` is what an earlier call found: a directory
    /// that is still the right one is not read again.
    ///
    /// Never fails: whatever goes wrong is said in `problem`, and the text prefix stands in.
    pub(crate) async fn find(
        &self,
        model: &ServedModel,
        asker: &Asker,
        known: Option<&Arc<ModelArtefacts>>,
    ) -> Arc<ModelArtefacts> {
        let settings = self.models.get(&model.id);
        let template = match &settings.chat_template {
            ChatTemplate::Auto => None,
            ChatTemplate::File(path) => Some(path.clone()),
        };
        let found = match &settings.tokenizer {
            Tokenizer::None => return Arc::default(),
            Tokenizer::Engine => return Arc::new(ModelArtefacts::remote(None)),
            Tokenizer::Directory(dir) => Some(dir.clone()),
            Tokenizer::Auto => self.local_directory(model).await,
        };
        if let (Some(known), Some(dir)) = (known, &found)
            && known.prompt.is_some()
            && matches!(&known.source, TokenizerSource::Dir(same) if same == dir)
        {
            return Arc::clone(known);
        }
        let (source, files) = match found {
            Some(dir) => (TokenizerSource::Dir(dir.clone()), read_dir(dir).await),
            None => match files_of_engine(asker).await {
                Some(files) => (TokenizerSource::Engine, Ok(files)),
                None if answers_tokenize(asker, &model.id).await => return Arc::new(ModelArtefacts::remote(None)),
                None => return Arc::default(),
            },
        };
        let loaded = match files {
            Ok(files) => self.load(files, template).await,
            Err(error) => Err(error),
        };
        Arc::new(match loaded {
            Ok(prompt) => ModelArtefacts { prompt: Some(prompt), source, problem: None },
            Err(error) => {
                let problem = Some(error.to_string().into());
                if settings.tokenizer == Tokenizer::Auto && answers_tokenize(asker, &model.id).await {
                    warn!(model = %model.id, %error, "no tokenizer here: the engine is asked for tokens");
                    ModelArtefacts::remote(problem)
                } else {
                    warn!(model = %model.id, %error, "no tokenizer: prompts are compared as text");
                    ModelArtefacts { prompt: None, source: TokenizerSource::None, problem }
                }
            }
        })
    }

    /// The artefacts of a model with a directory of its own in the configuration: they are known before any of its
    /// workers has answered. The first call for a model loads them, up to seconds; `None` without such a directory, or
    /// if it cannot be loaded any more (the start of the program checks that it can).
    pub(crate) async fn configured(&self, id: &str) -> Option<Arc<ModelArtefacts>> {
        let entry = self.models.entries.get(id)?;
        let Tokenizer::Directory(dir) = &entry.tokenizer else { return None };
        if let Some(known) = self.configured.lock().get(id) {
            return Some(Arc::clone(known));
        }
        let template = match &entry.chat_template {
            ChatTemplate::Auto => None,
            ChatTemplate::File(path) => Some(path.clone()),
        };
        let files = read_dir(dir.clone()).await;
        let loaded = match files {
            Ok(files) => self.load(files, template).await,
            Err(error) => Err(error),
        };
        let prompt = loaded.inspect_err(|error| warn!(model = id, %error, "the configured tokenizer is gone")).ok()?;
        let source = TokenizerSource::Dir(dir.clone());
        let found = Arc::new(ModelArtefacts { prompt: Some(prompt), source, problem: None });
        self.configured.lock().insert(id.to_owned(), Arc::clone(&found));
        Some(found)
    }

    /// Every tokenizer that somebody has, whether or not a worker lists its model now.
    pub(crate) fn loaded(&self) -> Vec<Arc<PromptModel>> {
        self.loaded.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Ids of the models that [`Self::configured`] may know.
    pub(crate) fn configured_ids(&self) -> impl Iterator<Item = &str> {
        let entries = self.models.entries.iter();
        entries.filter(|(_, entry)| matches!(entry.tokenizer, Tokenizer::Directory(_))).map(|(id, _)| id.as_str())
    }

    /// The model's `root` if it is a directory here, else the hub cache's snapshot of `root` or of the id.
    async fn local_directory(&self, model: &ServedModel) -> Option<PathBuf> {
        let root = model.root.clone();
        let id = Arc::clone(&model.id);
        let hub = self.hub.0.clone();
        let look = move || {
            // A relative root is relative to the engine's directory, not to ours.
            let here = root.as_deref().map(Path::new).filter(|path| path.is_absolute());
            if let Some(dir) = here.filter(|dir| dir.join("tokenizer.json").is_file()) {
                return Some(dir.to_owned());
            }
            let hub = hub?;
            root.as_deref().and_then(|root| find_in_hub(&hub, root)).or_else(|| find_in_hub(&hub, &id))
        };
        tokio::task::spawn_blocking(look).await.ok().flatten()
    }

    async fn load(&self, mut files: Files, template: Option<PathBuf>) -> Result<Arc<PromptModel>, ArtefactError> {
        let _turn = self.turn.lock().await;
        let origin = files.origin.clone();
        let stopped = || ArtefactError::Stopped { origin: origin.clone() };
        let (files, digest) = tokio::task::spawn_blocking(move || {
            if let Some(path) = template {
                files.chat_template = Some(files::read_template(&path)?);
            }
            let digest = files.digest();
            Ok((files, digest))
        })
        .await
        .map_err(|_| stopped())??;
        if let Some(same) = self.loaded.lock().get(&digest).and_then(Weak::upgrade) {
            return Ok(same);
        }
        let clock = self.clock;
        let model = tokio::task::spawn_blocking(move || {
            let started = clock.now();
            let model = files.load()?;
            measure_cost(&model, clock);
            info!(origin = %files.origin, ms = clock.now().ms_since(started), "tokenizer loaded");
            Ok(Arc::new(model))
        })
        .await
        .map_err(|_| stopped())??;
        let mut loaded = self.loaded.lock();
        loaded.retain(|_, model| model.strong_count() > 0);
        loaded.insert(digest, Arc::downgrade(&model));
        Ok(model)
    }
}

async fn read_dir(dir: PathBuf) -> Result<Files, ArtefactError> {
    let origin = dir.display().to_string();
    tokio::task::spawn_blocking(move || Files::read_dir(&dir)).await.unwrap_or(Err(ArtefactError::Stopped { origin }))
}

/// Whether the engine has the `/tokenize` that takes a `prompt`: one word is given to it. Asking by another method would
/// tell less: some servers answer that with 404 or 501, and some have another route of that name.
async fn answers_tokenize(asker: &Asker, model: &str) -> bool {
    let question = serde_json::json!({"model": model, "prompt": "warm"}).to_string();
    let Ok(reply) = asker.post("/tokenize", Some(question.into()), SHORT_REPLY).await else { return false };
    let answer: serde_json::Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let tokens = answer["tokens"].as_array().filter(|tokens| !tokens.is_empty());
    reply.status == StatusCode::OK && tokens.is_some_and(|tokens| tokens.iter().all(serde_json::Value::is_u64))
}

/// The files that our own simulated engine serves; other engines answer 404.
async fn files_of_engine(asker: &Asker) -> Option<Files> {
    let asker = asker.with_timeout(ENGINE_FILES);
    let tokenizer_json = asker.get_ok("/sim/tokenizer.json", files::LARGEST_FILE).await?;
    let tokenizer_config = asker.get_ok("/sim/tokenizer_config.json", files::LARGEST_FILE).await;
    Some(Files {
        origin: asker.url().to_string(),
        tokenizer_json: tokenizer_json.into(),
        tokenizer_config: tokenizer_config.map(Into::into),
        chat_template: None,
    })
}

/// Learns what tokenising costs here, for the budget of the request path. The least of several runs counts: whatever else
/// the machine does makes a run longer, nothing makes it shorter. No two runs see the same text, so that what the
/// tokenizer remembers of one does not flatter the next.
fn measure_cost(model: &PromptModel, clock: Clock) {
    let sample = prompt::sample_text(SAMPLE_BYTES * SAMPLES);
    let mut rest = sample.as_str();
    let mut least = f64::INFINITY;
    for _ in 0..SAMPLES {
        let (text, later) = rest.split_at(rest.floor_char_boundary(SAMPLE_BYTES));
        rest = later;
        let started = clock.now();
        if model.text_tokens(text, false).is_err() {
            return;
        }
        let took = clock.now().since(started).as_secs_f64() * 1e9;
        #[allow(clippy::cast_precision_loss, reason = "a few thousand bytes")]
        let cost = took / text.len() as f64;
        least = least.min(cost);
    }
    model.set_cost(least);
}
