//! The facts of a request, and the receipt built from them.

use std::sync::Arc;

use dialect::RequestView;
use fleet::ModelView;
use routing::receipt::{
    ClusterNote, DecisionId, PromptNote, QueueWait, Receipt, RequestNote, RouterAnswer,
    RouterTiming,
};

use tokenization::TokenizedPrompt;

/// Facts of a request before the decision.
#[derive(Clone, Debug)]
pub(crate) struct RequestFacts {
    pub(crate) model: Arc<str>,
    pub(crate) served_model: Option<Arc<str>>,
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) stream: bool,
    pub(crate) priority: i32,
    pub(crate) cluster: Option<ClusterNote>,
    pub(crate) prompt: PromptNote,
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
            model: Arc::from(&*view.model),
            served_model: served.map(|candidate| Arc::clone(&candidate.namespace_model)),
            lora: served.and_then(|candidate| candidate.lora.clone()),
            stream: view.stream,
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
            route,
            verdict,
            hold,
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
                tenant: Arc::from("default"),
                route,
                model: self.model,
                served_model: self.served_model,
                lora: self.lora,
                stream: self.stream,
                priority: self.priority,
            },
            dry_run: false,
            cluster: self.cluster,
            prompt: self.prompt,
            verdict,
            hold,
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
    pub(crate) route: &'static str,
    pub(crate) verdict: RouterAnswer,
    pub(crate) hold: QueueWait,
    pub(crate) timing: RouterTiming,
}
