//! The tokenizer and template of one model.

use std::{path::PathBuf, sync::Arc};

use prompt::PromptModel;

/// The means to turn one model's prompts into tokens.
#[derive(Clone, Debug, Default)]
pub struct ModelArtefacts {
    /// The tokenizer and template; `None`: the engine's token ids or the text identify a prompt.
    pub prompt: Option<Arc<PromptModel>>,
    /// Where the tokenizer comes from.
    pub source: TokenizerSource,
    /// The problem that the lookup met.
    pub problem: Option<Arc<str>>,
}

/// Where a model's tokenizer comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenizerSource {
    /// A local directory: configured, or in the hub cache.
    Dir(PathBuf),
    /// Files served by our own simulated engine.
    Engine,
    /// No local tokenizer: the engine tokenizes each prompt.
    Remote,
    /// No tokenizer: the text prefix stands in.
    #[default]
    None,
}

impl TokenizerSource {
    /// Returns the word used in `/admin/models`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Dir(_) => "dir",
            Self::Engine | Self::Remote => "engine",
            Self::None => "none",
        }
    }
}

impl ModelArtefacts {
    pub(super) fn remote(problem: Option<Arc<str>>) -> Self {
        Self {
            prompt: None,
            source: TokenizerSource::Remote,
            problem,
        }
    }

    pub(super) fn local(prompt: Arc<PromptModel>, source: TokenizerSource) -> Self {
        Self {
            prompt: Some(prompt),
            source,
            problem: None,
        }
    }

    pub(super) fn missing(problem: Arc<str>) -> Self {
        Self {
            prompt: None,
            source: TokenizerSource::None,
            problem: Some(problem),
        }
    }

    /// Returns the word of the verdict line: `exact` when prompts become the tokens that the engine
    /// sees, `engine` when the engine tokenizes them, else `none`.
    pub fn tokenizer_word(&self) -> &'static str {
        match (&self.prompt, &self.source) {
            (Some(_), _) => "exact",
            (None, TokenizerSource::Remote) => "engine",
            (None, _) => "none",
        }
    }

    /// Returns the component that computes token ids: `fastokens`, `tokenizers`, `remote` (the
    /// engine) or `none`.
    pub fn tokenizer_engine(&self) -> &'static str {
        match (&self.prompt, &self.source) {
            (Some(prompt), _) => prompt.tokenizer_engine(),
            (None, TokenizerSource::Remote) => "remote",
            (None, _) => "none",
        }
    }

    /// Returns whether both have the same tokenizer and template, or both none.
    pub(crate) fn has_tokenizer_of(&self, other: &Self) -> bool {
        match (&self.prompt, &other.prompt) {
            // Equal files are one object.
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (None, None) => true,
            _ => false,
        }
    }

    /// Merges the artefacts of a model's workers: their common tokenizer, if all of them have it.
    /// Otherwise an engine tokenizes where one can, or the text identifies a prompt.
    pub(crate) fn agreed(workers: impl Iterator<Item = (Arc<str>, Arc<Self>)>) -> Arc<Self> {
        let workers: Vec<_> = workers.collect();
        let with_prompt = workers.iter().find(|(_, found)| found.prompt.is_some());
        let remote = workers
            .iter()
            .find(|(_, found)| found.source == TokenizerSource::Remote);
        let Some((name, found)) = with_prompt else {
            let best = remote.or(workers.first());
            return best.map_or_else(Arc::default, |(_, found)| Arc::clone(found));
        };
        let Some((other, _)) = workers
            .iter()
            .find(|(_, other)| !found.has_tokenizer_of(other))
        else {
            return Arc::clone(found);
        };
        let problem = format!(
            "workers {name} and {other} serve one model with different tokenizers, or one of them without: none is used; \
             name the model's tokenizer under models.entries, or give the workers models of different names"
        );
        let source = remote.map_or(TokenizerSource::None, |_| TokenizerSource::Remote);
        Arc::new(Self {
            prompt: None,
            source,
            problem: Some(problem.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_tokenizes_is_preferred_to_no_tokenizer_and_says_so() {
        let remote = Arc::new(ModelArtefacts::remote(None));
        let missing = Arc::new(ModelArtefacts::missing("gone".into()));
        let named = |found: &Arc<ModelArtefacts>| (Arc::from("w"), Arc::clone(found));
        let agreed = |all: &[&Arc<ModelArtefacts>]| {
            ModelArtefacts::agreed(all.iter().map(|found| named(found)))
        };
        for (all, source, word) in [
            (&[&missing, &remote][..], "engine", "engine"),
            (&[&remote, &missing], "engine", "engine"),
            (&[&missing], "none", "none"),
            (&[], "none", "none"),
        ] {
            let agreed = agreed(all);
            assert_eq!(agreed.source.as_str(), source);
            assert_eq!(agreed.tokenizer_word(), word);
        }
        assert_eq!(agreed(&[&missing]).problem.as_deref(), Some("gone"));
    }
}
