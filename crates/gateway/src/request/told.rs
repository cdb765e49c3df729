//! What is told of a request in its reply's headers beside the decision, and what was changed before it.

use std::sync::Arc;

use super::receipt::About;

/// Gathered before and at the decision; stays when the receipt is published.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The model that the client named, where another one serves it.
    asked: Option<Arc<str>>,
    model: Option<Arc<str>>,
    cluster: Option<Arc<str>>,
    /// `name=result` of each hook that was asked.
    hooks: Vec<String>,
    /// Rewrites of the client's body itself, whatever worker gets it.
    rewrites: Vec<&'static str>,
}

impl Told {
    pub(crate) fn renamed(&mut self, asked: Arc<str>, rewrite: &'static str) {
        self.asked = Some(asked);
        self.rewrote(rewrite);
    }

    pub(crate) fn rewrote(&mut self, rewrite: &'static str) {
        if !self.rewrites.contains(&rewrite) {
            self.rewrites.push(rewrite);
        }
    }

    pub(crate) fn hook(&mut self, name: &str, result: &str) {
        self.hooks.push(format!("{name}={result}"));
    }

    /// The receipt names the model that the client did.
    pub(crate) fn about(&mut self, mut about: About) -> About {
        self.model = Some(
            about
                .served_model
                .as_ref()
                .map_or_else(|| Arc::clone(&about.model), Arc::clone),
        );
        self.cluster = about.cluster.as_ref().map(|note| Arc::clone(&note.name));
        if let Some(asked) = &self.asked {
            about.model = Arc::clone(asked);
        }
        about
    }

    pub(crate) fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    pub(crate) fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    pub(crate) fn hooks(&self) -> Option<String> {
        (!self.hooks.is_empty()).then(|| self.hooks.join(","))
    }

    pub(crate) fn rewrites(&self) -> &[&'static str] {
        &self.rewrites
    }
}
