//! Two legs of one request: a worker computes its prompt, another one generates.
//!
//! Who they are is `decide`'s part, and what each engine wants to be told is its connector's: one file each. A connector
//! gives two bodies, both the client's with a few members spliced. What goes wrong with a prefill costs the request
//! nothing but time: its decode worker computes the prompt, and the receipt says so.
//!
//! **Invariant**: the client sees bytes of the decode worker only, and a prefill that failed is not tried again.

mod legs;
mod mooncake;
mod nixl;
mod sglang;

use dialect::{ApiError, ErrorCode, PromptPart, RequestView};
use fleet::ModelView;
use routing::{Policy, PrefillNote, PrefillSkip};

pub(crate) use self::legs::{LegsOutcome, PrefillDecodeLegs};
pub(crate) use self::mooncake::EngineIds;
use super::{accept, record::RequestGuard};
use crate::Gateway;

/// How requests are split between prefill and decode workers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disaggregation {
    /// How engines hand a prompt's KV over; `None`: requests are never split.
    pub connector: Option<Connector>,
    /// Tokens: a decode worker that lacks no more than this of a prompt computes it itself; 0 = off.
    pub uncached_token_threshold: u32,
    /// The policy among prefill workers; `None` = the router's.
    pub prefill_policy: Option<Policy>,
    /// The policy among decode workers; `None` = the router's.
    pub decode_policy: Option<Policy>,
}

/// How engines hand a prompt's KV over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connector {
    /// vLLM's NIXL connector.
    Nixl,
    /// vLLM's Mooncake connector.
    Mooncake,
    /// SGLang.
    Sglang,
}

/// Whether a request's prompt may be computed apart from its reply.
#[derive(Clone, Debug)]
pub(crate) enum Handover {
    /// It may.
    Possible,
    /// It computes no prompt at all.
    NoPrompt,
    /// It may not, and what the receipt says about that.
    Not(PrefillNote),
}

impl Handover {
    /// Of a generation: only a single prompt and a single reply meet again at another engine, and only a prompt that is
    /// not wanted back.
    pub(crate) fn of(view: &RequestView<'_>) -> Self {
        let single = view.n.unwrap_or(1) == 1 && !view.skips_prefix_cache;
        match view.prompt {
            PromptPart::Batch { .. } | PromptPart::None => Self::not(PrefillSkip::Unsplittable),
            _ if single => Self::Possible,
            _ => Self::not(PrefillSkip::Unsplittable),
        }
    }

    /// Of a request whose engine computes its prompt itself, in whatever way.
    pub(crate) fn without_split() -> Self {
        Self::not(PrefillSkip::Unsplittable)
    }

    fn not(reason: PrefillSkip) -> Self {
        Self::Not(PrefillNote {
            skipped: Some(reason),
            ..PrefillNote::default()
        })
    }
}

/// Refuses what only engines say to each other: hosts and blocks that a client names could hold the prompts of others.
pub(super) fn check_transfer_fields(view: &RequestView<'_>) -> Result<(), ApiError> {
    let Some(field) = view.transfer_field else {
        return Ok(());
    };
    let message =
        format!("{field} is set by the router, between the engines of one request: leave it out");
    Err(ApiError::new(ErrorCode::FieldNotAllowed, message).param(field))
}

/// The policies that decide about a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestPolicies {
    /// Among those that generate.
    pub(crate) decode: Policy,
    /// Among those that compute prompts for them, where there are any.
    pub(crate) prefill: Option<Policy>,
}

impl RequestPolicies {
    /// The request's own word goes first, then that of its model, then that for all.
    pub(crate) fn of(
        gateway: &Gateway,
        overrides: &accept::HeaderOverrides,
        model: &ModelView,
    ) -> Self {
        let policy = |asked| gateway.router.policy(asked);
        let own = gateway.rules.by_model.of(model);
        match gateway.prefill.split(model) {
            None => Self {
                decode: policy(overrides.policy.or(own.policy)),
                prefill: None,
            },
            Some(rules) => {
                let decode = own.decode_policy.or(own.policy).or(rules.decode_policy);
                let prefill = own.prefill_policy.or(own.policy).or(rules.prefill_policy);
                Self {
                    decode: policy(overrides.policy.or(decode)),
                    prefill: Some(policy(prefill)),
                }
            }
        }
    }

    /// Whether any of them is of this kind.
    pub(crate) fn any(self, is: impl Fn(Policy) -> bool) -> bool {
        is(self.decode) || self.prefill.is_some_and(is)
    }
}

/// What all requests share of it.
#[derive(Debug)]
pub(crate) struct PrefillContext {
    rules: Disaggregation,
    /// What Mooncake's engines are called.
    engine_ids: EngineIds,
}

impl PrefillContext {
    pub(crate) fn new(rules: Disaggregation) -> Self {
        Self {
            rules,
            engine_ids: EngineIds::default(),
        }
    }

    /// The rules for requests of this model, if they are split at all. Read from the snapshot for each request: a role
    /// may appear and go while the router runs.
    pub(crate) fn split(&self, model: &ModelView) -> Option<&Disaggregation> {
        (self.rules.connector.is_some() && model.split).then_some(&self.rules)
    }
}

/// Sends both legs, in the way of the configured connector.
pub(super) async fn send(legs: &PrefillDecodeLegs<'_>, settle: &mut RequestGuard) -> LegsOutcome {
    match legs.gateway.prefill.rules.connector {
        Some(Connector::Mooncake) => mooncake::send(legs, settle).await,
        Some(Connector::Sglang) => sglang::send(legs, settle).await,
        Some(Connector::Nixl) | None => nixl::send(legs, settle).await,
    }
}
