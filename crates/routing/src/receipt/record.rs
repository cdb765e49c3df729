//! The receipt in memory.

use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use api::RouterTiming;
use kv_blocks::Target;

use crate::{Decision, ExcludedTarget, Method, Policy, Refusal, RoomWait, SloNote, WaitReason};

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

    /// Returns the latency targets of the request and what was expected; `None`: it has none.
    pub fn slo(&self) -> Option<SloNote> {
        match &self.verdict {
            RouterAnswer::Decided(decision) => decision.winner.slo,
            RouterAnswer::Refused(refusal) => refusal.slo_miss.as_deref().copied(),
            RouterAnswer::Answered(..) => None,
        }
    }

    /// Returns the winner's worker name.
    pub fn worker(&self) -> Option<&Arc<str>> {
        self.decision().map(|decision| &decision.winner.name)
    }
}

/// A request: its identity, its model and the requested parameters.
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
    /// Whether its body went to the worker as it arrived: once, without a retry.
    pub body_streamed: bool,
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
    Refused(Box<Refusal>),
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
    /// The engine's preprocessor, called over HTTP: tokens with the hashes of images, audio or
    /// videos.
    EngineRender,
    /// Token ids from the client.
    Given,
    /// Text instead of tokens.
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
            Self::EngineRender => "engine_render",
            Self::Given => "given",
            Self::TextPrefix => "text_prefix",
            Self::None => "none",
        }
    }

    /// Returns whether the engine processes exactly these tokens.
    pub fn is_exact(self) -> bool {
        matches!(
            self,
            Self::Tokens | Self::EngineTokenize | Self::EngineRender | Self::Given
        )
    }
}

/// Time spent in the queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueWait {
    /// Duration of the wait.
    pub held_ms: f64,
    /// Reason of the wait.
    pub reason: Option<WaitReason>,
    /// Why it waited for room, if it did. Few do, and every request has this record.
    pub room: Option<Box<RoomWait>>,
}

/// One try at one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// From 1.
    pub n: u32,
    /// The target.
    pub target: Target,
    /// The worker's name.
    pub name: Arc<str>,
    /// Class of the failure; `None` if it did not fail.
    pub class: Option<AttemptClass>,
    /// The result.
    pub result: AttemptResult,
    /// The engine's status, if a head came.
    pub status: Option<u16>,
    /// Duration of the attempt.
    pub ms: f64,
}

/// How far a failed attempt had come, which decides whether another may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptClass {
    /// Nothing was sent.
    C0,
    /// The request was sent, and nothing came back.
    C1,
    /// Refused with a status, nothing forwarded.
    C2,
    /// The reply had begun.
    C3,
}

impl AttemptClass {
    /// Returns the name used in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::C0 => "C0",
            Self::C1 => "C1",
            Self::C2 => "C2",
            Self::C3 => "C3",
        }
    }
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptResult {
    /// Complete reply.
    Ok,
    /// No connection.
    ConnectFailed,
    /// The connection ended before the head.
    ResetBeforeHead,
    /// An error status.
    Status,
    /// Too slow.
    Timeout,
    /// Invalid HTTP.
    Protocol,
    /// The reply was cut.
    MidStream,
    /// The client closed the connection.
    ClientGone,
    /// Cancelled because another worker answered first.
    Cancelled,
}

impl AttemptResult {
    /// Returns the name used in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ConnectFailed => "connect_failed",
            Self::ResetBeforeHead => "reset_before_head",
            Self::Status => "status",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
            Self::MidStream => "mid_stream",
            Self::ClientGone => "client_gone",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestOutcome {
    /// The kind of outcome.
    pub kind: OutcomeKind,
    /// The status the client got; `None` if it left before one was sent.
    pub status: Option<u16>,
    /// Time to first token.
    pub ttft_ms: Option<f64>,
    /// Time to the end of the reply.
    pub duration_ms: f64,
    /// Prompt tokens by the engine's count.
    pub prompt_tokens: Option<u32>,
    /// Completion tokens by the engine's count.
    pub completion_tokens: Option<u32>,
    /// Cached tokens by the engine's count.
    pub cached_tokens: Option<u32>,
    /// Why generation ended.
    pub finish_reason: Option<Arc<str>>,
}

/// The six kinds of outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutcomeKind {
    /// Success.
    Ok,
    /// An error of the client.
    ClientError,
    /// Refused for lack of capacity.
    Shed,
    /// An error of the engine.
    UpstreamError,
    /// An error of the router.
    RouterError,
    /// The client closed the connection.
    ClientGone,
}

impl OutcomeKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Ok,
        Self::ClientError,
        Self::Shed,
        Self::UpstreamError,
        Self::RouterError,
        Self::ClientGone,
    ];

    /// Returns the name used in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientError => "client_error",
            Self::Shed => "shed",
            Self::UpstreamError => "upstream_error",
            Self::RouterError => "router_error",
            Self::ClientGone => "client_gone",
        }
    }
}

/// A receipt's id: 16 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DecisionId(pub u64);

impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// An invalid decision id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "decision id {0:?} is not valid: expected 16 lower-case hex digits, as in the x-warmroute-decision header"
)]
pub struct DecisionIdError(pub String);

impl FromStr for DecisionId {
    type Err = DecisionIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text.len() == 16
            && text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        plain
            .then(|| u64::from_str_radix(text, 16).ok())
            .flatten()
            .map(Self)
            .ok_or_else(|| DecisionIdError(text.chars().take(64).collect()))
    }
}

/// Generates decision ids: the upper half of a random number chosen at start, then a counter. Ids are
/// unique.
#[derive(Debug)]
pub struct DecisionIds(AtomicU64);

impl DecisionIds {
    /// Creates a generator that starts at `seed`, a random number.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed & !0xffff_ffff))
    }

    /// Returns the next id.
    pub fn next_id(&self) -> DecisionId {
        DecisionId(self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }
}
