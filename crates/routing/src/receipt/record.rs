//! The receipt as it is kept.

use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kv_blocks::Target;

use crate::{Decision, ExcludedTarget, Method, Policy, Refusal};

/// One request's receipt.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// Its name.
    pub id: DecisionId,
    /// Wall time of the decision, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The request's id.
    pub request_id: Arc<str>,
    /// The tenant's name.
    pub tenant: Arc<str>,
    /// Decided but not sent.
    pub dry_run: bool,
    /// The route's path.
    pub route: &'static str,
    /// The model the client named.
    pub model: Arc<str>,
    /// The model the worker serves it as.
    pub served_model: Option<Arc<str>>,
    /// LoRA adapter.
    pub lora: Option<Arc<str>>,
    /// The semantic cluster that the prompt belongs to.
    pub cluster: Option<ClusterNote>,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// Higher goes first.
    pub priority: i32,
    /// What was known of the prompt.
    pub prompt: PromptNote,
    /// The last decision.
    pub verdict: RouterAnswer,
    /// Time spent held.
    pub hold: QueueWait,
    /// What was sent where, in order.
    pub attempts: Vec<Attempt>,
    /// Where the router's own time went.
    pub timing: RouterTiming,
    /// What was changed in the client's body.
    pub rewrites: Vec<&'static str>,
    /// What came of it; `None` while it runs.
    pub outcome: Option<RequestOutcome>,
}

impl Receipt {
    /// The policy that decided or would have.
    pub fn policy(&self) -> Policy {
        match &self.verdict {
            RouterAnswer::Decided(decision) => decision.policy,
            RouterAnswer::Refused(refusal) => refusal.policy,
            RouterAnswer::Answered(_, policy) => *policy,
        }
    }

    /// How the winner was found.
    pub fn method(&self) -> Method {
        match &self.verdict {
            RouterAnswer::Decided(decision) => decision.method,
            RouterAnswer::Refused(_) => Method::Policy,
            RouterAnswer::Answered(method, _) => *method,
        }
    }

    /// The decision, if one was made.
    pub fn decision(&self) -> Option<&Decision> {
        match &self.verdict {
            RouterAnswer::Decided(decision) => Some(decision),
            RouterAnswer::Refused(_) | RouterAnswer::Answered(..) => None,
        }
    }

    /// Who was ruled out.
    pub fn excluded(&self) -> &[ExcludedTarget] {
        match &self.verdict {
            RouterAnswer::Decided(decision) => &decision.excluded,
            RouterAnswer::Refused(refusal) => &refusal.excluded,
            RouterAnswer::Answered(..) => &[],
        }
    }

    /// The winner's worker name.
    pub fn worker(&self) -> Option<&Arc<str>> {
        self.decision().map(|decision| &decision.winner_name)
    }
}

/// The semantic cluster that a prompt belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterNote {
    /// Its name.
    pub name: Arc<str>,
    /// How near the prompt is to it, as a cosine; `None`: the client named it.
    pub similarity: Option<f64>,
}

/// What the router answered.
#[derive(Clone, Debug)]
pub enum RouterAnswer {
    /// Somebody won.
    Decided(Box<Decision>),
    /// Nobody could.
    Refused(Refusal),
    /// Nobody was asked: another request's reply answers this one too. How it was found, and the policy that would have
    /// chosen.
    Answered(Method, Policy),
}

/// A receipt's name: 16 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DecisionId(pub u64);

impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Text that is no decision id.
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

/// Hands out decision ids: the upper half of a number drawn at start, then a counter. No id comes twice.
#[derive(Debug)]
pub struct DecisionIds(AtomicU64);

impl DecisionIds {
    /// Ids that begin where `seed`, a random number, says.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed & !0xffff_ffff))
    }

    /// The next id.
    pub fn next_id(&self) -> DecisionId {
        DecisionId(self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }
}

/// What was known of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptNote {
    /// Where the tokens came from.
    pub source: PromptSource,
    /// How many; an estimate unless the source is exact.
    pub tokens: u32,
    /// How many were not served by the router's own prompt cache.
    pub new_tokens: u32,
}

/// Where a prompt's tokens came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PromptSource {
    /// Our own tokenizer.
    Tokens,
    /// The engine's tokenizer, asked over HTTP.
    EngineTokenize,
    /// The client sent ids.
    Given,
    /// The text stands for them.
    TextPrefix,
    /// Nothing is known.
    None,
}

impl PromptSource {
    /// The receipt's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::EngineTokenize => "engine_tokenize",
            Self::Given => "given",
            Self::TextPrefix => "text_prefix",
            Self::None => "none",
        }
    }

    /// Whether the engine will see exactly these tokens.
    pub fn is_exact(self) -> bool {
        matches!(self, Self::Tokens | Self::EngineTokenize | Self::Given)
    }
}

/// Time spent held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueWait {
    /// How long.
    pub held_ms: f64,
    /// Why.
    pub reason: Option<&'static str>,
}

/// One try at one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// From 1.
    pub n: u32,
    /// Where it went.
    pub target: Target,
    /// The worker's name.
    pub name: Arc<str>,
    /// How far it had come when it failed; `None` if it did not.
    pub class: Option<AttemptClass>,
    /// What happened.
    pub result: AttemptResult,
    /// The engine's status, if a head came.
    pub status: Option<u16>,
    /// How long it took.
    pub ms: f64,
}

/// How far an attempt had come when it failed, which says whether another may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptClass {
    /// Nothing was sent.
    C0,
    /// Sent, and nothing came back.
    C1,
    /// Refused with a status, nothing forwarded.
    C2,
    /// The answer had begun.
    C3,
}

impl AttemptClass {
    /// The receipt's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::C0 => "C0",
            Self::C1 => "C1",
            Self::C2 => "C2",
            Self::C3 => "C3",
        }
    }
}

/// What happened to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptResult {
    /// Answered to the end.
    Ok,
    /// No connection.
    ConnectFailed,
    /// The connection ended before the head.
    ResetBeforeHead,
    /// An error status.
    Status,
    /// Too slow.
    Timeout,
    /// Not HTTP as we know it.
    Protocol,
    /// The answer was cut.
    MidStream,
    /// The client hung up.
    ClientGone,
    /// Given up because another worker answered first.
    Cancelled,
}

impl AttemptResult {
    /// The receipt's word for it.
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

/// Where the router's own time went, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RouterTiming {
    /// Reading and checking the request.
    pub accept: f64,
    /// Asking the response cache.
    pub cache: f64,
    /// Applying the chat template.
    pub render: f64,
    /// Tokenising.
    pub tokenize: f64,
    /// Hashing blocks.
    pub hash: f64,
    /// Asking the index.
    pub lookup: f64,
    /// Choosing.
    pub decide: f64,
    /// All of it.
    pub total: f64,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestOutcome {
    /// Which of the six ways it ended.
    pub kind: OutcomeKind,
    /// The status the client got; `None` if it left before one was sent.
    pub status: Option<u16>,
    /// Time to the first token.
    pub ttft_ms: Option<f64>,
    /// Time to the end.
    pub duration_ms: f64,
    /// As the engine counted.
    pub prompt_tokens: Option<u32>,
    /// As the engine counted.
    pub completion_tokens: Option<u32>,
    /// As the engine counted.
    pub cached_tokens: Option<u32>,
    /// Why generation ended.
    pub finish_reason: Option<Arc<str>>,
}

/// The six ways a request can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutcomeKind {
    /// As it should.
    Ok,
    /// The client's mistake.
    ClientError,
    /// Turned away for lack of room.
    Shed,
    /// The engine's fault.
    UpstreamError,
    /// Ours.
    RouterError,
    /// The client hung up.
    ClientGone,
}

impl OutcomeKind {
    /// Every way.
    pub const ALL: [Self; 6] = [
        Self::Ok,
        Self::ClientError,
        Self::Shed,
        Self::UpstreamError,
        Self::RouterError,
        Self::ClientGone,
    ];

    /// The receipt's word for it.
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
