//! Finds a model's tokenizer.

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use config::{ChatTemplateSetting, ModelEntry, TokenizerSetting};
use net::Clock;
use parking_lot::Mutex;
use prompt::PromptModel;
use tracing::warn;

use super::{
    engine::{answers_tokenize, files_of_simulator},
    files::{ArtefactError, Files},
    hub::{HubCache, find_in_hub},
    loader::TokenizerLoader,
    model::{ModelArtefacts, TokenizerSource},
};
use crate::{ServedModel, probe::ProbeClient};

/// The tokenizers of all models.
pub(crate) struct ArtefactStore {
    models: config::ModelsSection,
    hub: HubCache,
    loader: TokenizerLoader,
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
            loader: TokenizerLoader::new(clock),
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
        client: &ProbeClient,
        known: Option<&Arc<ModelArtefacts>>,
    ) -> Arc<ModelArtefacts> {
        let settings = self.models.get(&model.id);
        let directory = match &settings.tokenizer {
            TokenizerSetting::None => return Arc::default(),
            TokenizerSetting::Engine => return Arc::new(ModelArtefacts::remote(None)),
            TokenizerSetting::Directory(dir) => Some(dir.clone()),
            TokenizerSetting::Hub(id) => self.hub_directory(Some(id), model).await,
            TokenizerSetting::Auto => self.hub_directory(None, model).await,
        };
        if let (Some(known), Some(dir)) = (known, &directory)
            && known.prompt.is_some()
            && matches!(&known.source, TokenizerSource::Dir(same) if same == dir)
        {
            return Arc::clone(known);
        }
        let (source, files) = match directory {
            Some(dir) => (TokenizerSource::Dir(dir.clone()), read_dir(dir).await),
            None => match files_of_simulator(client).await {
                Some(files) => (TokenizerSource::Engine, Ok(files)),
                None if answers_tokenize(client, &model.id).await => {
                    return Arc::new(ModelArtefacts::remote(None));
                }
                None => return Arc::default(),
            },
        };
        let engine_may_tokenize = matches!(
            settings.tokenizer,
            TokenizerSetting::Auto | TokenizerSetting::Hub(_)
        );
        Arc::new(match self.load(files, settings).await {
            Ok(prompt) => ModelArtefacts::local(prompt, source),
            Err(error) if engine_may_tokenize && answers_tokenize(client, &model.id).await => {
                warn!(model = %model.id, %error, "no tokenizer here: the engine is asked for tokens");
                ModelArtefacts::remote(Some(error.to_string().into()))
            }
            Err(error) => {
                warn!(model = %model.id, %error, "no tokenizer: prompts are compared as text");
                ModelArtefacts::missing(error.to_string().into())
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
        let loaded = self.load(read_dir(dir.clone()).await, entry).await;
        let prompt = loaded
            .inspect_err(|error| warn!(model = id, %error, "the configured tokenizer is gone"))
            .ok()?;
        let source = TokenizerSource::Dir(dir.clone());
        let found = Arc::new(ModelArtefacts::local(prompt, source));
        self.configured
            .lock()
            .insert(id.to_owned(), Arc::clone(&found));
        Some(found)
    }

    /// Returns every tokenizer in use, whether or not a worker lists its model now.
    pub(crate) fn loaded(&self) -> Vec<Arc<PromptModel>> {
        self.loader.loaded()
    }

    /// Returns ids of the models that [`Self::configured`] may know.
    pub(crate) fn configured_ids(&self) -> impl Iterator<Item = &str> {
        let entries = self.models.entries.iter();
        entries
            .filter(|(_, entry)| matches!(entry.tokenizer, TokenizerSetting::Directory(_)))
            .map(|(id, _)| id.as_str())
    }

    /// Loads files with the configured template of their model.
    async fn load(
        &self,
        files: Result<Files, ArtefactError>,
        settings: &ModelEntry,
    ) -> Result<Arc<PromptModel>, ArtefactError> {
        let template = match &settings.chat_template {
            ChatTemplateSetting::Auto => None,
            ChatTemplateSetting::File(path) => Some(path.clone()),
        };
        self.loader.load(files?, template).await
    }

    /// Returns the hub cache's snapshot of the configured id, else of the model's `root` or id. A
    /// `root` that is a path means a directory of the engine: files of this machine are used only
    /// where the configuration names them.
    async fn hub_directory(
        &self,
        configured: Option<&str>,
        model: &ServedModel,
    ) -> Option<PathBuf> {
        let configured = configured.map(str::to_owned);
        let (root, id) = (model.root.clone(), Arc::clone(&model.id));
        let hub = self.hub.0.clone()?;
        let look = move || {
            let named = configured.as_deref().and_then(|id| find_in_hub(&hub, id));
            if let (Some(configured), None) = (&configured, &named) {
                warn!(model = %id, %configured, hub = %hub.display(), "the configured tokenizer is not in the model hub: looking as with `auto`");
            }
            named
                .or_else(|| root.as_deref().and_then(|root| find_in_hub(&hub, root)))
                .or_else(|| find_in_hub(&hub, &id))
        };
        runtime::spawn_blocking(look).await.ok().flatten()
    }
}

async fn read_dir(dir: PathBuf) -> Result<Files, ArtefactError> {
    let origin = dir.display().to_string();
    runtime::spawn_blocking(move || Files::read_dir(&dir))
        .await
        .unwrap_or(Err(ArtefactError::Stopped { origin }))
}
