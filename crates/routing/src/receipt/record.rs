//! The receipt in memory.

use std::sync::Arc;

use api::RouterTiming;

use super::{Attempt, DecisionId, RequestOutcome};
use crate::{Decision, ExcludedTarget, Method, Policy, Refusal};

/// One request's receipt.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The receipt's id.
    pub id: DecisionId,
    /// Wall time of the decision, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The request.
    pub request: RequestNote,
    /// Decided but not sent.
    pub dry_run: bool,
    /// The semantic cluster that the prompt belongs to.
    pub cluster: Option<ClusterNote>,
    /// The prompt's tokens and their source.
    pub prompt: PromptNote,
    /// The last decision.
    pub verdict: RouterAnswer,
    /// Time spent in the queue.
    pub hold: QueueWait,
    /// Attempts, in order.
    pub attempts: Vec<Attempt>,
    /// Where the router's own time went.
    pub timing: RouterTiming,
    /// Changes of the client's body.
    pub rewrites: Vec<&'static str>,
    /// The outcome; `None` while the request runs.
    pub outcome: Option<RequestOutcome>,
}

impl Receipt {
    /// Returns the policy that decided or would have decided.
    pub fn policy(&self) -> Policy {
        match &self.verdict {
            RouterAnswer::Decided(decision) => decision.policy,
            RouterAnswer::Refused(refusal) => refusal.policy,
            RouterAnswer::Answered(_, policy) => *policy,
        }
    }

    /// Returns how the winner was found.
    pub fn method(&self) -> Method {
        match &self.verdict {
            RouterAnswer::Decided(decision) => decision.method,
            RouterAnswer::Refused(_) => Method::Policy,
            RouterAnswer::Answered(method, _) => *method,
        }
    }

    /// Returns the decision, if one was made.
    pub fn decision(&self) -> Option<&Decision> {
        match &self.verdict {
            RouterAnswer::Decided(decision) => Some(decision),
            RouterAnswer::Refused(_) | RouterAnswer::Answered(..) => None,
        }
    }

    /// Returns the excluded targets.
    pub fn excluded(&self) -> &[ExcludedTarget] {
        match &self.verdict {
            RouterAnswer::Decided(decision) => &decision.excluded,
            RouterAnswer::Refused(refusal) => &refusal.excluded,
            RouterAnswer::Answered(..) => &[],
        }
    }

    /// Returns the winner's worker name.
    pub fn worker(&self) -> Option<&Arc<str>> {
        self.decision().map(|decision| &decision.winner.name)
    }
}

/// A request: its identity, its model and what the client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestNote {
    /// The request's id.
    pub id: Arc<str>,
    /// The tenant's name.
    pub tenant: Arc<str>,
    /// The route's path.
    pub route: &'static str,
    /// The model the client named.
    pub model: Arc<str>,
    /// The worker's name of the model.
    pub served_model: Option<Arc<str>>,
    /// LoRA adapter.
    pub lora: Option<Arc<str>>,
    /// Whether the client requested a stream.
    pub stream: bool,
    /// Higher goes first.
    pub priority: i32,
}

/// The semantic cluster that a prompt belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterNote {
    /// The cluster's name.
    pub name: Arc<str>,
    /// Similarity of the prompt to the cluster, as a cosine; `None`: the client named the cluster.
    pub similarity: Option<f64>,
}

/// The router's answer to a request.
#[derive(Clone, Debug)]
pub enum RouterAnswer {
    /// A target was chosen.
    Decided(Box<Decision>),
    /// No target could take the request.
    Refused(Refusal),
    /// No target was needed: another request's reply answers this one too. Contains how the reply
    /// was found, and the policy that would have decided.
    Answered(Method, Policy),
}

/// The tokens of a prompt and their source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptNote {
    /// The source of the tokens.
    pub source: PromptSource,
    /// Number of tokens; an estimate unless the source is exact.
    pub tokens: u32,
    /// Number of tokens that the router's own prompt cache did not have.
    pub new_tokens: u32,
}

/// The source of a prompt's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PromptSource {
    /// Our own tokenizer.
    Tokens,
    /// The engine's tokenizer, called over HTTP.
    EngineTokenize,
    /// Token ids from the client.
    Given,
    /// Text in place of tokens.
    TextPrefix,
    /// Unknown prompt.
    None,
}

impl PromptSource {
    /// Returns the name used in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::EngineTokenize => "engine_tokenize",
            Self::Given => "given",
            Self::TextPrefix => "text_prefix",
            Self::None => "none",
        }
    }

    /// Returns whether the engine processes exactly these tokens.
    pub fn is_exact(self) -> bool {
        matches!(self, Self::Tokens | Self::EngineTokenize | Self::Given)
    }
}

/// Time spent in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueWait {
    /// Duration of the wait.
    pub held_ms: f64,
    /// Reason of the wait.
    pub reason: Option<&'static str>,
}
