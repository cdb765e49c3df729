//! Finds a model's tokenizer and loads it once.

use std::{
    collections::HashMap,
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use config::{ChatTemplateSetting, TokenizerSetting};
use http::StatusCode;
use net::{Clock, WorkerUrl};
use parking_lot::Mutex;
use prompt::{CancelFlag, LoadError, PromptModel};
use tokio::sync::Semaphore;
use tracing::{info, warn};

use super::{ArtefactError, Files, HubCache, ModelArtefacts, TokenizerSource, files, find_in_hub};
use crate::{ServedModel, probe::ProbeClient};

/// Time limit for fetching an engine's own tokenizer files.
const ENGINE_FILES: Duration = Duration::from_secs(10);
/// Texts tokenized once to measure the cost of tokenization, and the bytes of each: a chat of a few
/// turns.
const SAMPLES: usize = 8;
const SAMPLE_BYTES: usize = 8 << 10;
/// Byte limit of a reply with the tokens of one word.
const SHORT_REPLY: usize = 64 << 10;
/// Tokenizers loaded at once: each takes memory and a core for seconds.
const LOADS_AT_ONCE: usize = 4;
/// Longest load. The largest tokenizers in use take some seconds; the rest is for slow and busy
/// machines.
const LONGEST_LOAD: Duration = Duration::from_secs(60);
/// Limit of files remembered as unusable. They come from configured directories and local
/// simulators, so there are few.
const MOST_REFUSED: usize = 64;

/// A digest of files.
type Content = [u8; 32];

/// Loaded tokenizers, by content.
pub(crate) struct ArtefactStore {
    models: config::ModelsSection,
    hub: HubCache,
    clock: Clock,
    /// One entry per distinct content; it expires with the last model that uses it.
    loaded: Mutex<HashMap<Content, Weak<PromptModel>>>,
    /// One entry per content whose load runs, so that twelve workers load one tokenizer once, and
    /// loads of other content do not wait.
    loading: Mutex<HashMap<Content, Weak<tokio::sync::Mutex<()>>>>,
    loads: Semaphore,
    /// Load errors by content, so that a failed load is not repeated. At most [`MOST_REFUSED`].
    refused: Mutex<HashMap<Content, LoadError>>,
    /// Results of [`Self::configured`] by model id: no more than the configuration has entries.
    configured: Mutex<HashMap<String, Arc<ModelArtefacts>>>,
}

impl std::fmt::Debug for ArtefactStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArtefactStore").finish_non_exhaustive()
    }
}

impl ArtefactStore {
    pub(crate) fn new(models: config::ModelsSection, hub: HubCache, clock: Clock) -> Self {
        Self {
            models,
            hub,
            clock,
            loaded: Mutex::default(),
            loading: Mutex::default(),
            loads: Semaphore::new(LOADS_AT_ONCE),
            refused: Mutex::default(),
            configured: Mutex::default(),
        }
    }

    /// Finds the artefacts of one model for one of its workers. `known` is the result of an earlier
    /// call: a directory that is still the right one is not read again.
    ///
    /// Never fails: a problem goes into `problem`, and the text prefix stands in.
    pub(crate) async fn find(
        &self,
        model: &ServedModel,
        asker: &ProbeClient,
        known: Option<&Arc<ModelArtefacts>>,
    ) -> Arc<ModelArtefacts> {
        let settings = self.models.get(&model.id);
        let template = match &settings.chat_template {
            ChatTemplateSetting::Auto => None,
            ChatTemplateSetting::File(path) => Some(path.clone()),
        };
        let found = match &settings.tokenizer {
            TokenizerSetting::None => return Arc::default(),
            TokenizerSetting::Engine => return Arc::new(ModelArtefacts::remote(None)),
            TokenizerSetting::Directory(dir) => Some(dir.clone()),
            TokenizerSetting::Auto => self.local_directory(model).await,
        };
        if let (Some(known), Some(dir)) = (known, &found)
            && known.prompt.is_some()
            && matches!(&known.source, TokenizerSource::Dir(same) if same == dir)
        {
            return Arc::clone(known);
        }
        let (source, files) = match found {
            Some(dir) => (TokenizerSource::Dir(dir.clone()), read_dir(dir).await),
            None => match files_of_simulator(asker).await {
                Some(files) => (TokenizerSource::Engine, Ok(files)),
                None if answers_tokenize(asker, &model.id).await => {
                    return Arc::new(ModelArtefacts::remote(None));
                }
                None => return Arc::default(),
            },
        };
        let loaded = match files {
            Ok(files) => self.load(files, template).await,
            Err(error) => Err(error),
        };
        Arc::new(match loaded {
            Ok(prompt) => ModelArtefacts {
                prompt: Some(prompt),
                source,
                problem: None,
            },
            Err(error) => {
                let problem = Some(error.to_string().into());
                if settings.tokenizer == TokenizerSetting::Auto
                    && answers_tokenize(asker, &model.id).await
                {
                    warn!(model = %model.id, %error, "no tokenizer here: the engine is asked for tokens");
                    ModelArtefacts::remote(problem)
                } else {
                    warn!(model = %model.id, %error, "no tokenizer: prompts are compared as text");
                    ModelArtefacts {
                        prompt: None,
                        source: TokenizerSource::None,
                        problem,
                    }
                }
            }
        })
    }

    /// Returns the artefacts of a model with its own directory in the configuration; they are known
    /// before any of its workers has answered. The first call for a model loads them, up to
    /// seconds. `None` without such a directory, or if it can no longer be loaded (the start of the
    /// program checks that it can).
    pub(crate) async fn configured(&self, id: &str) -> Option<Arc<ModelArtefacts>> {
        let entry = self.models.entries.get(id)?;
        let TokenizerSetting::Directory(dir) = &entry.tokenizer else {
            return None;
        };
        if let Some(known) = self.configured.lock().get(id) {
            return Some(Arc::clone(known));
        }
        let template = match &entry.chat_template {
            ChatTemplateSetting::Auto => None,
            ChatTemplateSetting::File(path) => Some(path.clone()),
        };
        let files = read_dir(dir.clone()).await;
        let loaded = match files {
            Ok(files) => self.load(files, template).await,
            Err(error) => Err(error),
        };
        let prompt = loaded
            .inspect_err(|error| warn!(model = id, %error, "the configured tokenizer is gone"))
            .ok()?;
        let source = TokenizerSource::Dir(dir.clone());
        let found = Arc::new(ModelArtefacts {
            prompt: Some(prompt),
            source,
            problem: None,
        });
        self.configured
            .lock()
            .insert(id.to_owned(), Arc::clone(&found));
        Some(found)
    }

    /// Returns every tokenizer in use, whether or not a worker lists its model now.
    pub(crate) fn loaded(&self) -> Vec<Arc<PromptModel>> {
        self.loaded
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Returns ids of the models that [`Self::configured`] may know.
    pub(crate) fn configured_ids(&self) -> impl Iterator<Item = &str> {
        let entries = self.models.entries.iter();
        entries
            .filter(|(_, entry)| matches!(entry.tokenizer, TokenizerSetting::Directory(_)))
            .map(|(id, _)| id.as_str())
    }

    /// Returns the hub cache's snapshot of the model's `root` or id. A `root` that is a path means
    /// a directory of the engine: files of this machine are used only where the configuration names
    /// them.
    async fn local_directory(&self, model: &ServedModel) -> Option<PathBuf> {
        let root = model.root.clone();
        let id = Arc::clone(&model.id);
        let hub = self.hub.0.clone()?;
        let look = move || {
            root.as_deref()
                .and_then(|root| find_in_hub(&hub, root))
                .or_else(|| find_in_hub(&hub, &id))
        };
        tokio::task::spawn_blocking(look).await.ok().flatten()
    }

    async fn load(
        &self,
        mut files: Files,
        template: Option<PathBuf>,
    ) -> Result<Arc<PromptModel>, ArtefactError> {
        let origin = files.origin.clone();
        let (files, content) = tokio::task::spawn_blocking(move || {
            if let Some(path) = template {
                files.chat_template = Some(files::read_template(&path)?);
            }
            let content = files.digest();
            Ok((files, content))
        })
        .await
        .map_err(|_| ArtefactError::Stopped {
            origin: origin.clone(),
        })??;
        let turn = self.turn(content);
        let _turn = turn.lock().await;
        if let Some(same) = self.loaded.lock().get(&content).and_then(Weak::upgrade) {
            return Ok(same);
        }
        if let Some(error) = self.refused.lock().get(&content).cloned() {
            return Err(ArtefactError::Unloadable { origin, error });
        }
        let model = self
            .load_new(files)
            .await
            .inspect_err(|error| self.refuse(content, error))?;
        let mut loaded = self.loaded.lock();
        loaded.retain(|_, model| model.strong_count() > 0);
        loaded.insert(content, Arc::downgrade(&model));
        Ok(model)
    }

    /// Loads files off the runtime. A load that exceeds its time limit frees its place for the next
    /// one, and ends at its next step.
    async fn load_new(&self, files: Files) -> Result<Arc<PromptModel>, ArtefactError> {
        let origin = files.origin.clone();
        let stopped = || ArtefactError::Stopped {
            origin: origin.clone(),
        };
        let _place = self.loads.acquire().await.map_err(|_| stopped())?;
        let (clock, flag) = (self.clock, CancelFlag::default());
        let _cancel = flag.cancel_on_drop();
        let load = tokio::task::spawn_blocking(move || {
            flag.run(|| {
                let started = clock.now();
                let model = files.load()?;
                measure_cost(&model, clock);
                info!(origin = %files.origin, ms = clock.now().ms_since(started), "tokenizer loaded");
                Ok(Arc::new(model))
            })
        });
        match tokio::time::timeout(LONGEST_LOAD, load).await {
            Ok(loaded) => loaded.map_err(|_| stopped())?,
            Err(_) => Err(ArtefactError::Unloadable {
                origin,
                error: LoadError::Cancelled,
            }),
        }
    }

    /// Returns the lock that serializes loads of the same content.
    fn turn(&self, content: Content) -> Arc<tokio::sync::Mutex<()>> {
        let mut loading = self.loading.lock();
        loading.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = loading.get(&content).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        loading.insert(content, Arc::downgrade(&turn));
        turn
    }

    fn refuse(&self, content: Content, error: &ArtefactError) {
        let ArtefactError::Unloadable { error, .. } = error else {
            return;
        };
        let mut refused = self.refused.lock();
        if refused.len() >= MOST_REFUSED {
            refused.clear();
        }
        refused.insert(content, error.clone());
    }
}

async fn read_dir(dir: PathBuf) -> Result<Files, ArtefactError> {
    let origin = dir.display().to_string();
    tokio::task::spawn_blocking(move || Files::read_dir(&dir))
        .await
        .unwrap_or(Err(ArtefactError::Stopped { origin }))
}

/// Returns whether the engine has the `/tokenize` that takes a `prompt`, by sending one word.
/// Another method would show less: some servers answer it with 404 or 501, and some have another
/// route of that name.
async fn answers_tokenize(asker: &ProbeClient, model: &str) -> bool {
    let question = serde_json::json!({"model": model, "prompt": "warm"}).to_string();
    let Ok(reply) = asker
        .post("/tokenize", Some(question.into()), SHORT_REPLY)
        .await
    else {
        return false;
    };
    let answer: serde_json::Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let tokens = answer["tokens"]
        .as_array()
        .filter(|tokens| !tokens.is_empty());
    reply.status == StatusCode::OK
        && tokens.is_some_and(|tokens| tokens.iter().all(serde_json::Value::is_u64))
}

/// Fetches the files that our own simulated engine serves, so that a trial needs no configuration;
/// other engines answer 404.
///
/// Only workers on this machine are queried. An answer is no proof of identity: any process that
/// listens on a local port, or a tunnel behind it, can answer alike. Such a worker gains little:
/// the files pass the checks of every other tokenizer, a model uses them only while all its workers
/// have equal ones (`snapshot_build`), and they only decide which worker a prompt goes to. The
/// configuration must name the files of other engines.
async fn files_of_simulator(asker: &ProbeClient) -> Option<Files> {
    if !is_on_this_machine(asker.url()) {
        return None;
    }
    let asker = asker.with_timeout(ENGINE_FILES);
    let tokenizer_json = asker
        .get_ok("/sim/tokenizer.json", files::LARGEST_FILE)
        .await?;
    let tokenizer_config = asker
        .get_ok("/sim/tokenizer_config.json", files::LARGEST_FILE)
        .await;
    Some(Files {
        origin: asker.url().to_string(),
        tokenizer_json: tokenizer_json.into(),
        tokenizer_config: tokenizer_config.map(Into::into),
        chat_template: None,
    })
}

/// Returns whether the URL is a unix socket or a loopback address. A name may resolve to any
/// address, except `localhost`.
fn is_on_this_machine(url: &WorkerUrl) -> bool {
    let Some(host) = url.host() else { return true };
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Measures the cost of tokenization on this machine, for the budget of the request path. The
/// minimum of several runs counts: other load on the machine only makes a run longer. Each run
/// tokenizes another text, so that the tokenizer's cache does not improve the next result.
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

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S64")]
    fn only_workers_of_this_machine_are_asked_for_a_simulator_s_files() {
        let is_local = |url: &str| is_on_this_machine(&url.parse().expect("a worker's url"));
        for url in [
            "http://127.0.0.1:8000",
            "http://[::1]:8000",
            "http://localhost:8000",
            "unix:///run/engine.sock",
        ] {
            assert!(is_local(url), "{url}");
        }
        for url in [
            "http://10.0.0.1:8000",
            "http://engine:8000",
            "http://127.0.0.1.example:8000",
            "http://[::2]:8000",
        ] {
            assert!(!is_local(url), "{url}");
        }
    }
}
