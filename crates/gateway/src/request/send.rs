//! The request that is sent, and one attempt of it: in the worker's dialect, through one worker or
//! two.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use dialect::{ApiError, Dialect};
use fleet::{EngineKind, ModelView, WorkerView};
use kv_blocks::{Moment, Target};
use resilience::OutcomeCounters;
use routing::{Decision, Pin, PrefillLeg, QueueSettings, ReplyMode};
use tokenization::TokenizedPrompt;

use super::{
    accept::AcceptedRequest,
    affinity::AffinityKeys,
    attempt_failure::AttemptFailure,
    decide::{Decider, PlacementRequest, RoutingFacts},
    dispatch::{AttemptTarget, CommittedReply, Dispatcher},
    engine_priority,
    fetch::{self, KvSource},
    hedge::HedgedAttempt,
    prefill::{self, Handover, LegsOutcome, PrefillContext, PrefillDecodeLegs},
    queue_wait::WaitRecord,
    record::RequestGuard,
    retry_state::RetryState,
    salt,
    translate::{
        ApiSupport, ReplyContext, ReplyTranslator, ReplyWorker, RequestTranslator,
        StreamTranslator, TranslationStage, UpstreamRequest,
    },
};
use crate::{errors, ids::IdGenerator, lease::PlacedAttempt, retry::Retries};

/// A generation with its prompt tokenized and its model known, ready to be placed and sent:
/// everything that the stages after tokenization need.
#[derive(Debug)]
pub(super) struct RoutedRequest {
    pub(super) call: AcceptedRequest,
    pub(super) facts: RoutingFacts,
    /// The model's view at the last decision.
    pub(super) model: Arc<ModelView>,
    pub(super) wait: WaitRecord,
    pub(super) translator: RequestTranslator,
    pub(super) reply_context: ReplyContext,
    pub(super) priority: PriorityField,
}

/// The facts of a request that is forwarded as received, without a prompt to look up.
pub(super) struct ForwardedFacts {
    /// Its load only.
    pub(super) prompt: TokenizedPrompt,
    pub(super) pin: Option<Pin>,
    pub(super) handover: Handover,
    pub(super) api_support: ApiSupport,
    /// Whether a worker may not get it a second time.
    pub(super) keeps_state: bool,
}

/// Whether the router may set the engine priority in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PriorityField {
    Free,
    /// The client sets it, or the body has no such member.
    Taken,
}

/// The parts that send a request to workers.
#[derive(Clone, Debug)]
pub(crate) struct SendStage {
    pub(crate) dispatcher: Dispatcher,
    /// Counts hedges by winner.
    pub(crate) hedges: OutcomeCounters,
    pub(crate) prefill: Arc<PrefillContext>,
    pub(crate) translation: TranslationStage,
    pub(crate) queue: QueueSettings,
    pub(crate) ids: Arc<IdGenerator>,
}

/// The request of an attempt, and the parts that place a hedge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt<'a> {
    pub(super) request: &'a RoutedRequest,
    pub(super) decider: &'a Decider,
    pub(super) retries: &'a Retries,
    pub(super) retry_state: &'a RetryState,
}

/// The outcome of an attempt.
#[derive(Debug)]
pub(super) enum AttemptOutcome {
    /// A worker replied, and nothing is forwarded yet.
    Committed(Box<CommittedAttempt>),
    /// The prefill failed: the request is decided again, without a prefill leg.
    PrefillFailed,
    /// The request cannot be sent to this worker, and no other attempt follows.
    Refused(ApiError),
    Failed(Box<Failure>),
}

/// A reply worth committing to.
#[derive(Debug)]
pub(super) struct CommittedAttempt {
    pub(super) reply: CommittedReply,
    pub(super) by: AttemptTarget,
    /// Translates the reply's events into the client's dialect.
    pub(super) stream: Option<StreamTranslator>,
}

/// A failed attempt, its worker, and the worker of a hedge that failed too.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) failure: AttemptFailure,
    pub(super) by: AttemptTarget,
    pub(super) also_failed: Option<AttemptTarget>,
}

/// The result of an attempt, its worker, and the worker of a hedge if that failed too.
#[derive(Debug)]
pub(super) struct SendResult {
    pub(super) result: Result<CommittedReply, AttemptFailure>,
    pub(super) by: AttemptTarget,
    pub(super) failed: Option<AttemptTarget>,
}

impl SendResult {
    /// Only one attempt counts.
    pub(super) fn of(result: Result<CommittedReply, AttemptFailure>, by: AttemptTarget) -> Self {
        Self {
            result,
            by,
            failed: None,
        }
    }

    /// Both attempts ended; the other one failed.
    pub(super) fn beside_failure(
        result: Result<CommittedReply, AttemptFailure>,
        by: AttemptTarget,
        failed: AttemptTarget,
    ) -> Self {
        Self {
            failed: Some(failed),
            ..Self::of(result, by)
        }
    }
}

impl RoutedRequest {
    pub(super) fn forwarded(
        call: AcceptedRequest,
        model: Arc<ModelView>,
        wait: WaitRecord,
        facts: ForwardedFacts,
    ) -> Self {
        let mut translator =
            RequestTranslator::untranslated(Dialect::Embeddings, facts.api_support);
        translator.keeps_state = facts.keeps_state;
        Self {
            facts: RoutingFacts {
                prompt: facts.prompt,
                affinity: AffinityKeys::default(),
                salt: None,
                expected_output_tokens: Some(0),
                answer: ReplyMode::Whole,
                pin: facts.pin,
                handover: facts.handover,
                api_support: facts.api_support,
                may_fetch: false,
            },
            wait,
            translator,
            reply_context: ReplyContext {
                model: Arc::clone(&model.id),
                prompt_tokens: 0,
                include_usage: false,
            },
            priority: PriorityField::Taken,
            call,
            model,
        }
    }

    /// Returns the end of the request's time limit.
    pub(super) fn deadline(&self) -> Moment {
        self.wait.deadline()
    }

    /// Returns the worker of a target; `None` if it is gone.
    pub(super) fn target(&self, target: Target) -> Option<AttemptTarget> {
        let candidates = &self.model.candidates;
        let found = candidates
            .iter()
            .find(|candidate| candidate.target == target)?;
        let worker = Arc::clone(&found.worker);
        Some(AttemptTarget {
            worker,
            target,
            span: None,
            kv_source: None,
        })
    }

    /// Returns the next decision about the request. A retry has already waited, unless no worker
    /// was left for it; a request without a prompt asks for no work worth waiting for.
    pub(super) fn placement<'a>(&'a self, retry_state: &'a RetryState) -> PlacementRequest<'a> {
        placement(&self.call, &self.facts, retry_state)
    }
}

/// Returns the next decision about a request, as [`RoutedRequest::placement`] does.
pub(super) fn placement<'a>(
    call: &'a AcceptedRequest,
    facts: &'a RoutingFacts,
    retry_state: &'a RetryState,
) -> PlacementRequest<'a> {
    let is_new = retry_state.last.is_none() || retry_state.waits_for_anybody;
    PlacementRequest {
        overrides: &call.overrides,
        facts,
        failed: &retry_state.excluded,
        same_body_as: None,
        may_wait: is_new && !matches!(facts.handover, Handover::NoPrompt),
        tenant: call.tenant.as_deref(),
        slo: call.slo,
        received: call.received,
    }
}

impl SendStage {
    /// Sends the request to the workers of `placed`.
    pub(super) async fn run(
        &self,
        attempt: Attempt<'_>,
        placed: PlacedAttempt,
        guard: &mut RequestGuard,
    ) -> AttemptOutcome {
        let request = attempt.request;
        let (target, prefill) = (placed.lease.target(), placed.prefill);
        let source = self.kv_source(attempt, &placed.decision);
        guard.record_placement(placed.decision, placed.lease, prefill.clone());
        let Some(mut first) = request.target(target) else {
            return AttemptOutcome::Refused(errors::no_worker());
        };
        first.span = guard.attempt_context();
        let (translator, context) = (&request.translator, &request.reply_context);
        let worker = ReplyWorker {
            view: &first.worker,
            gets_prompt: prefill.is_some(),
        };
        let built = translator
            .upstream_request(&self.translation, &request.call, worker, context)
            .await;
        let UpstreamRequest {
            call,
            reply_translator,
            rewrites,
            is_openai,
        } = match built {
            Ok(built) => built,
            Err(error) => return AttemptOutcome::Refused(error),
        };
        let call = salt::for_worker(call, &first.worker);
        guard.record_rewrite(rewrites);
        if !is_openai {
            guard.mark_foreign_count();
        }
        let mut legs = prefill.and_then(|leg| self.legs(request, &call, &first, &leg));
        if let Some(legs) = &mut legs {
            legs.prefill.span = guard.prefill_context();
        }
        let sent = match legs {
            Some(legs) => match Box::pin(prefill::send(&legs, guard)).await {
                LegsOutcome::Decode(result) => SendResult::of(*result, first),
                LegsOutcome::PrefillFailed => return AttemptOutcome::PrefillFailed,
            },
            None => {
                let prioritized = is_openai && self.sets_priority(request, &first.worker);
                let priority = prioritized.then_some(placed.engine_priority);
                let body = with_priority(call.body.bytes(), priority, guard);
                let body = fetch::with_source(body, source.as_ref(), guard);
                if let Some(KvSource::Header(value)) = source {
                    first.kv_source = Some(value);
                }
                match self.hedge_after(request) {
                    None => {
                        let (dispatcher, deadline) = (&self.dispatcher, request.deadline());
                        let attempt = dispatcher.attempt(&call, body, &first, deadline);
                        let result = Box::pin(attempt).await;
                        SendResult::of(result, first)
                    }
                    Some(after) => {
                        let hedged = self.hedged(attempt, &call, after);
                        Box::pin(hedged.run(first, body, guard)).await
                    }
                }
            }
        };
        self.translated_back(request, sent, reply_translator).await
    }

    /// Returns the outcome with the reply in the client's dialect.
    async fn translated_back(
        &self,
        request: &RoutedRequest,
        sent: SendResult,
        reply_translator: ReplyTranslator,
    ) -> AttemptOutcome {
        let SendResult { result, by, failed } = sent;
        let result = match result {
            Ok(reply) => {
                let left = request.deadline().since(self.dispatcher.clock.now());
                let body = &request.call.body;
                reply_translator.reply(reply, left, body).await
            }
            Err(failure) => Err(reply_translator.failure(failure)),
        };
        match result {
            Ok(reply) => AttemptOutcome::Committed(Box::new(CommittedAttempt {
                reply,
                by,
                stream: reply_translator.stream(),
            })),
            Err(failure) => AttemptOutcome::Failed(Box::new(Failure {
                failure,
                by,
                also_failed: failed,
            })),
        }
    }

    /// Returns how the engine of a placed request is told to read blocks, if it is to read some.
    fn kv_source(&self, attempt: Attempt<'_>, decision: &Decision) -> Option<KvSource> {
        let source = attempt.request.target(decision.fetch()?.source)?;
        let mode = attempt.decider.rules.general.fetch;
        KvSource::of(mode, &source, self.ids.next_number())
    }

    fn hedged<'a>(
        &'a self,
        attempt: Attempt<'a>,
        call: &'a AcceptedRequest,
        after: Duration,
    ) -> HedgedAttempt<'a> {
        let request = attempt.request;
        HedgedAttempt {
            stage: self,
            decider: attempt.decider,
            retries: attempt.retries,
            call,
            model: &request.model,
            placement: request.placement(attempt.retry_state),
            deadline: request.deadline(),
            after,
        }
    }

    /// Returns the legs of a request whose prompt another worker computes; `None` if that worker
    /// is gone.
    fn legs<'a>(
        &'a self,
        request: &'a RoutedRequest,
        call: &'a AcceptedRequest,
        decode: &'a AttemptTarget,
        leg: &PrefillLeg,
    ) -> Option<PrefillDecodeLegs<'a>> {
        Some(PrefillDecodeLegs {
            dispatcher: &self.dispatcher,
            context: &self.prefill,
            ids: &self.ids,
            call,
            decode,
            prefill: request.target(leg.target)?,
            deadline: request.deadline(),
        })
    }

    /// Returns the time without a first byte after which a hedge of the request starts; `None`:
    /// only one worker may compute it.
    fn hedge_after(&self, request: &RoutedRequest) -> Option<Duration> {
        let may_repeat = !request.translator.keeps_state
            && request.facts.pin.is_none()
            && request.call.upgrade.is_none();
        self.dispatcher.limits.hedge_after.filter(|_| may_repeat)
    }

    /// Returns whether the router sets the engine priority for this worker.
    fn sets_priority(&self, request: &RoutedRequest, worker: &WorkerView) -> bool {
        request.priority == PriorityField::Free
            && self.queue.engine_priority
            && worker.engine.kind == EngineKind::Vllm
    }
}

/// Returns the body with the request's place in the engine's queue. A retry may go to an engine
/// that gets none.
fn with_priority(body: &Bytes, priority: Option<i64>, guard: &mut RequestGuard) -> Bytes {
    let changed = priority.and_then(|priority| engine_priority::add_priority(body, priority));
    match changed {
        Some(changed) => {
            guard.record_rewrite(vec![engine_priority::REWRITE]);
            changed
        }
        None => body.clone(),
    }
}
