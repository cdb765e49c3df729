//! Prefill/decode disaggregation: one worker computes the prompt, another one generates.
//!
//! `decide` chooses the workers, and a connector, one file each, knows its engine's protocol. A
//! connector builds two bodies, both the client's with a few members spliced. A failed prefill
//! costs the request only time: its decode worker computes the prompt, and the receipt says so.
//!
//! **Invariant**: the client sees bytes of the decode worker only, and a failed prefill is not
//! retried.

mod legs;
mod mooncake;
mod nixl;
mod sglang;
#[cfg(test)]
pub(super) mod tests;
mod trtllm;

use config::{Connector, DisaggregationSection};
use dialect::{ApiError, ErrorCode, PromptPart, RequestView};
use fleet::ModelView;
use routing::{Policy, PrefillNote, PrefillSkip};
use tenants::Tenant;

pub(crate) use self::legs::{LegsOutcome, PrefillDecodeLegs};
pub(crate) use self::mooncake::EngineIds;
use super::{record::RequestGuard, rights};

/// Whether another worker may compute a request's prompt.
#[derive(Clone, Debug)]
pub(crate) enum Handover {
    /// Another worker may compute it.
    Possible,
    /// The request computes no prompt at all.
    NoPrompt,
    /// The worker that generates computes it; the receipt gives this reason.
    Not(PrefillNote),
}

impl Handover {
    /// Returns it for a generation: only a single prompt with a single reply can be split, and only
    /// if the client does not want data about the prompt itself (logprobs).
    pub(crate) fn of(view: &RequestView<'_>) -> Self {
        let single = view.counts.n.unwrap_or(1) == 1 && !view.kv.skips_prefix_cache;
        match view.prompt {
            PromptPart::Batch { .. } | PromptPart::None => Self::not(PrefillSkip::Unsplittable),
            _ if single => Self::Possible,
            _ => Self::not(PrefillSkip::Unsplittable),
        }
    }

    /// Returns it for a request that is never split: its engine computes the prompt itself.
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

/// Refuses members that only engines send each other, unless they are listed for the tenant: a
/// client could name hosts and blocks that hold the prompts of others.
pub(super) fn check_transfer_fields(
    view: &RequestView<'_>,
    tenant: Option<&Tenant>,
) -> Result<(), ApiError> {
    let mut found = view.kv.transfer_fields.paths();
    let Some(field) = found.find(|path| !rights::may_send_transfer_field(tenant, path)) else {
        return Ok(());
    };
    let message =
        format!("{field} is set by the router, between the engines of one request: leave it out");
    Err(ApiError::new(ErrorCode::FieldNotAllowed, message).param(field))
}

/// The policies for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestPolicies {
    /// Among the workers that generate.
    pub(crate) decode: Policy,
    /// Among prefill workers, if there are any.
    pub(crate) prefill: Option<Policy>,
}

impl RequestPolicies {
    /// Returns whether any of them satisfies `is`.
    pub(crate) fn any(self, is: impl Fn(Policy) -> bool) -> bool {
        is(self.decode) || self.prefill.is_some_and(is)
    }
}

/// The shared state of disaggregation.
#[derive(Debug)]
pub(crate) struct PrefillContext {
    rules: DisaggregationSection,
    /// Names of Mooncake's engines.
    pub(super) engine_ids: EngineIds,
}

impl PrefillContext {
    pub(crate) fn new(rules: DisaggregationSection) -> Self {
        Self {
            rules,
            engine_ids: EngineIds::default(),
        }
    }

    /// Returns the settings if requests of this model are split. Read from the snapshot for each
    /// request: a role may appear and vanish while the router runs.
    pub(crate) fn split(&self, model: &ModelView) -> Option<&DisaggregationSection> {
        (self.rules.enabled() && model.split).then_some(&self.rules)
    }
}

/// Sends both legs through the configured connector.
pub(super) async fn send(legs: &PrefillDecodeLegs<'_>, guard: &mut RequestGuard) -> LegsOutcome {
    match legs.context.rules.connector {
        Connector::Mooncake => mooncake::send(legs, guard).await,
        Connector::Sglang => sglang::send(legs, guard).await,
        Connector::Nixl => nixl::send(legs, guard).await,
        Connector::Trtllm => trtllm::send(legs, guard).await,
    }
}
