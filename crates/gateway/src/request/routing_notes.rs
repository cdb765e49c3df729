//! Notes on a request for its reply's headers, beside the decision: the requested model, hooks,
//! rewrites.

use std::sync::Arc;

use super::receipt::RequestFacts;

/// Collected until the decision; kept when the receipt is published.
#[derive(Debug, Default)]
pub(crate) struct RoutingNotes {
    /// The model that the client named, if another one serves it.
    requested_model: Option<Arc<str>>,
    model: Option<Arc<str>>,
    cluster: Option<Arc<str>>,
    /// `name=result` of each hook that was called.
    hooks: Vec<String>,
    /// Rewrites of the client's body that apply for any worker.
    rewrites: Vec<&'static str>,
}

impl RoutingNotes {
    pub(crate) fn record_model_rename(&mut self, asked: Arc<str>, rewrite: &'static str) {
        self.requested_model = Some(asked);
        self.record_rewrite(rewrite);
    }

    pub(crate) fn record_rewrite(&mut self, rewrite: &'static str) {
        if !self.rewrites.contains(&rewrite) {
            self.rewrites.push(rewrite);
        }
    }

    pub(crate) fn hook(&mut self, name: &str, result: &str) {
        self.hooks.push(format!("{name}={result}"));
    }

    /// Puts the client's model name into the receipt.
    pub(crate) fn about(&mut self, mut about: RequestFacts) -> RequestFacts {
        self.model = Some(
            about
                .served_model
                .as_ref()
                .map_or_else(|| Arc::clone(&about.model), Arc::clone),
        );
        self.cluster = about.cluster.as_ref().map(|note| Arc::clone(&note.name));
        if let Some(asked) = &self.requested_model {
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
