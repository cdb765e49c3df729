//! Loads each tokenizer once, off the runtime and within limits.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use net::Clock;
use parking_lot::Mutex;
use prompt::{CancelFlag, LoadError, PromptModel};
use resilience::Singleflight;
use tokio::sync::Semaphore;
use tracing::info;

use super::files::{self, ArtefactError, Files};

/// Texts tokenized once to measure the cost of tokenization, and the bytes of each: a chat of a few
/// turns.
const SAMPLES: usize = 8;
const SAMPLE_BYTES: usize = 8 << 10;
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
#[derive(Debug)]
pub(super) struct TokenizerLoader {
    clock: Clock,
    /// One entry per distinct content; it expires with the last model that uses it.
    loaded: Mutex<HashMap<Content, Weak<PromptModel>>>,
    /// The lock of each content whose load runs, so that twelve workers load one tokenizer once,
    /// and loads of other content do not wait.
    loading: Singleflight<Content, tokio::sync::Mutex<()>>,
    loads: Semaphore,
    /// Load errors by content, so that a failed load is not repeated. At most [`MOST_REFUSED`].
    refused: Mutex<HashMap<Content, LoadError>>,
}

impl TokenizerLoader {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            loaded: Mutex::default(),
            loading: Singleflight::default(),
            loads: Semaphore::new(LOADS_AT_ONCE),
            refused: Mutex::default(),
        }
    }

    /// Returns every tokenizer in use, whether or not a worker lists its model now.
    pub(super) fn loaded(&self) -> Vec<Arc<PromptModel>> {
        self.loaded
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Loads files, or returns the tokenizer of equal ones. `template`: a file that replaces the
    /// chat template among them.
    pub(super) async fn load(
        &self,
        mut files: Files,
        template: Option<PathBuf>,
    ) -> Result<Arc<PromptModel>, ArtefactError> {
        let origin = files.origin.clone();
        let (files, content) = runtime::spawn_blocking(move || {
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
        let turn = self.loading.join(content);
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
        let _permit = self.loads.acquire().await.map_err(|_| stopped())?;
        let (clock, flag) = (self.clock, CancelFlag::default());
        let _cancel = flag.cancel_on_drop();
        let load = runtime::spawn_blocking(move || {
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
    use super::*;

    fn files(tokenizer_json: &str) -> Files {
        Files {
            origin: "here".to_owned(),
            tokenizer_json: tokenizer_json.into(),
            tokenizer_config: None,
            chat_template: None,
        }
    }

    #[tokio::test]
    async fn files_that_make_no_tokenizer_are_refused_and_remembered_within_a_limit() {
        let loader = TokenizerLoader::new(Clock::system());
        for n in 0..MOST_REFUSED {
            let error = loader.load(files(&n.to_string()), None).await;
            assert!(
                matches!(error, Err(ArtefactError::Unloadable { .. })),
                "{error:?}"
            );
            assert_eq!(loader.refused.lock().len(), n + 1);
        }
        loader.load(files("0"), None).await.expect_err("as before");
        assert_eq!(
            loader.refused.lock().len(),
            MOST_REFUSED,
            "known files take no room"
        );
        loader
            .load(files("[]"), None)
            .await
            .expect_err("no tokenizer");
        assert_eq!(
            loader.refused.lock().len(),
            1,
            "the limit forgets the others"
        );
        assert!(loader.loaded().is_empty());
    }

    #[tokio::test]
    async fn a_template_that_is_gone_is_said_so_before_anything_is_loaded() {
        let loader = TokenizerLoader::new(Clock::system());
        let gone = PathBuf::from("/nowhere/template.jinja");
        let error = loader.load(files("{}"), Some(gone)).await;
        assert!(
            matches!(error, Err(ArtefactError::NoTemplate(_))),
            "{error:?}"
        );
        assert!(
            loader.refused.lock().is_empty(),
            "the tokenizer may be good"
        );
    }
}
