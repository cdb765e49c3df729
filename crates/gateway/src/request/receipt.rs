//! The facts of a request: the receipt built from them, and the notes for its reply's headers.

use std::sync::{Arc, LazyLock};

use dialect::RequestView;
use fleet::ModelView;
use kv_blocks::{Moment, Target};
use parity::Basis;
use routing::{
    Policy, SloTargets,
    receipt::{
        ClusterNote, DecisionId, PromptNote, QueueWait, Receipt, RequestNote, RouterAnswer,
        RouterTiming,
    },
};
use tenants::{DEFAULT_TENANT, Tenant};
use tokenization::TokenizedPrompt;

/// The name of the tenant of requests that have none.
static DEFAULT_NAME: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(DEFAULT_TENANT));

/// Returns the name of a request's tenant for its receipt.
pub(super) fn tenant_name(tenant: Option<&Tenant>) -> Arc<str> {
    Arc::clone(tenant.map_or(&DEFAULT_NAME, |tenant| tenant.name()))
}

/// Facts of a request before the decision.
#[derive(Clone, Debug)]
pub(crate) struct RequestFacts {
    pub(crate) model: Arc<str>,
    pub(crate) served_model: Option<Arc<str>>,
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) stream: bool,
    pub(crate) body_streamed: bool,
    pub(crate) priority: i32,
    pub(crate) cluster: Option<ClusterNote>,
    pub(crate) prompt: PromptNote,
}

/// Returns the name that a request gives to a model, shared where it is the model's own.
pub(super) fn shared_name(named: &str, id: &Arc<str>) -> Arc<str> {
    if named == &**id {
        Arc::clone(id)
    } else {
        Arc::from(named)
    }
}

impl RequestFacts {
    /// Collects the facts of the request from which `view` was read.
    pub(super) fn of(
        view: &RequestView<'_>,
        model: &ModelView,
        priority: i32,
        prompt: &TokenizedPrompt,
    ) -> Self {
        let served = model.candidates.first();
        Self {
            model: shared_name(&view.model, &model.id),
            served_model: served.map(|candidate| Arc::clone(&candidate.namespace_model)),
            lora: served.and_then(|candidate| candidate.lora.clone()),
            stream: view.stream,
            body_streamed: false,
            priority,
            cluster: None,
            prompt: PromptNote {
                source: prompt.source,
                tokens: prompt.tokens,
                new_tokens: prompt.new_tokens,
            },
        }
    }

    /// Builds the receipt of the decision, without attempts or outcome.
    pub(crate) fn receipt(self, decided: DecisionFacts) -> Receipt {
        let DecisionFacts {
            id,
            at_unix_ms,
            request_id,
            tenant,
            route,
            answer,
            queue_wait,
            mut timing,
        } = decided;
        timing.total = timing.accept
            + timing.render
            + timing.tokenize
            + timing.hash
            + timing.lookup
            + timing.decide;
        Receipt {
            id,
            at_unix_ms,
            request: RequestNote {
                id: request_id,
                tenant,
                route,
                model: self.model,
                served_model: self.served_model,
                lora: self.lora,
                stream: self.stream,
                body_streamed: self.body_streamed,
                priority: self.priority,
            },
            dry_run: false,
            cluster: self.cluster,
            prompt: self.prompt,
            verdict: answer,
            hold: queue_wait,
            attempts: Vec::new(),
            timing,
            rewrites: Vec::new(),
            outcome: None,
        }
    }
}

/// Facts of the decision: its result, place and time.
#[derive(Debug)]
pub(crate) struct DecisionFacts {
    pub(crate) id: DecisionId,
    pub(crate) at_unix_ms: u64,
    pub(crate) request_id: Arc<str>,
    pub(crate) tenant: Arc<str>,
    pub(crate) route: &'static str,
    pub(crate) answer: RouterAnswer,
    pub(crate) queue_wait: QueueWait,
    pub(crate) timing: RouterTiming,
}

/// The part of the last decision that reply headers show and the end counts.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) worker: Arc<str>,
    /// `None`: of a prefill of its own, which the policy of the whole request chose.
    pub(crate) policy: Option<Policy>,
    /// The way in which the policy placed the request, where it distinguishes several.
    pub(crate) label: Option<&'static str>,
    pub(crate) predicted_cached_tokens: u32,
    pub(crate) announced_cached_tokens: u32,
    /// Whether the prompt was looked up: without that, no cached tokens are predicted.
    pub(crate) looked_up: bool,
    /// Whether its engine was told to read blocks from another one, which says nothing of its cache.
    pub(crate) fetches: bool,
    pub(crate) basis: Basis,
    pub(crate) target: Target,
    pub(crate) sent: Moment,
    /// The latency targets of the request, if it has any. On the heap, as most have none.
    pub(crate) slo: Option<Box<SloTargets>>,
}

/// Notes on a request for its reply's headers, beside the decision: the requested model, hooks,
/// rewrites. Collected until the decision; kept when the receipt is published.
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
    pub(crate) fn record_model_rename(&mut self, requested: Arc<str>, rewrite: &'static str) {
        self.requested_model = Some(requested);
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
        if let Some(requested) = &self.requested_model {
            about.model = Arc::clone(requested);
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
pub(crate) mod tests {
    use routing::receipt::PromptSource;

    use super::*;
    use crate::request::test_support;

    /// A selection of this worker.
    pub(crate) fn selection(worker: &str, predicted_cached_tokens: u32) -> Selection {
        Selection {
            worker: worker.into(),
            policy: Some(Policy::Warm),
            label: None,
            predicted_cached_tokens,
            announced_cached_tokens: 48,
            looked_up: true,
            fetches: false,
            basis: Basis::Events,
            target: test_support::target(&test_support::worker(1)),
            sent: Moment::START,
            slo: None,
        }
    }

    fn facts(model: &str, served_model: Option<&str>) -> RequestFacts {
        RequestFacts {
            model: model.into(),
            served_model: served_model.map(Arc::from),
            lora: None,
            stream: false,
            body_streamed: false,
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
