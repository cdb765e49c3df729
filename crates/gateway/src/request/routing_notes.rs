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

#[cfg(test)]
mod tests {
    use routing::receipt::{ClusterNote, PromptNote, PromptSource};

    use super::*;

    fn facts(model: &str, served_model: Option<&str>) -> RequestFacts {
        RequestFacts {
            model: model.into(),
            served_model: served_model.map(Arc::from),
            lora: None,
            stream: false,
            priority: 0,
            cluster: Some(ClusterNote {
                name: "code".into(),
                similarity: None,
            }),
            prompt: PromptNote {
                source: PromptSource::None,
                tokens: 0,
                new_tokens: 0,
            },
        }
    }

    #[test]
    fn the_receipt_has_the_clients_model_and_the_notes_the_one_that_served() {
        let mut notes = RoutingNotes::default();
        notes.record_model_rename("nick".into(), "model");
        let about = notes.about(facts("alias", Some("base")));
        assert_eq!((&*about.model, notes.model()), ("nick", Some("base")));
        assert_eq!(notes.cluster(), Some("code"));
        let mut unnamed = RoutingNotes::default();
        let about = unnamed.about(facts("m", None));
        assert_eq!((&*about.model, unnamed.model()), ("m", Some("m")));
    }

    #[test]
    fn a_rewrite_is_listed_once_and_hooks_in_the_order_of_their_calls() {
        let mut notes = RoutingNotes::default();
        assert_eq!(notes.hooks(), None);
        for rewrite in ["hook", "model", "hook"] {
            notes.record_rewrite(rewrite);
        }
        assert_eq!(notes.rewrites(), ["hook", "model"]);
        notes.hook("b", "allow");
        notes.hook("a", "transform");
        assert_eq!(notes.hooks().as_deref(), Some("b=allow,a=transform"));
    }
}
