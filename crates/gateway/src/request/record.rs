//! The request guard: exactly one end for every request.
//!
//! A [`RequestGuard`] is opened when a request's route is known and travels with it, at last inside
//! the reply's body. However the request ends, the guard is dropped: that frees the load, counts
//! one outcome and completes the receipt. A guard that is dropped without a recorded end means that
//! the client disconnected.

mod attempts;
mod hedge;
mod log;
mod prefill;
mod recorder;
mod reply_notes;

use std::sync::{Arc, OnceLock, atomic::Ordering};

use dialect::{ApiError, Dialect, ErrorCode, Usage};
use fleet::FailureKind;
use kv_blocks::Moment;
use parity::Basis;
use routing::{
    CacheSource, Decision, PrefillLeg, PrefillNote, Refusal,
    receipt::{
        Attempt, AttemptClass, AttemptResult, DecisionId, OutcomeKind, QueueWait, Receipt,
        RequestOutcome, RouterAnswer, RouterTiming,
    },
};

pub(crate) use self::recorder::{ReceiptSinks, Recorder, WorkerReports};
use self::{
    attempts::OpenAttempt,
    hedge::OpenHedge,
    log::{LogEnding, RequestLogLine},
    reply_notes::StoredResponse,
};
use super::{
    dispatch::{BodyContent, BodyKind},
    prefix_expectation::PrefixExpectation,
    receipt::{DecisionFacts, RequestFacts, RoutingNotes, Selection},
};
use crate::{
    lease::Lease,
    metrics::RequestSummary,
    routes::{ErrorShape, Route, RouteHandler},
};

/// The drop guard of one request.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    recorder: Arc<Recorder>,
    route: &'static Route,
    request_id: Arc<str>,
    received: Moment,
    id: DecisionId,
    /// `None` for a request that computes no prompt.
    prefix_expectation: Option<PrefixExpectation>,
    selection: Option<Selection>,
    attempt: CurrentAttempt,
    draft: ReceiptDraft,
    reply: ReplyRecord,
    end: Option<OutcomeKind>,
    /// Set at the end: whether the reply was whole and no error.
    outcome: Option<Arc<OnceLock<bool>>>,
}

/// The attempt under way, with its load.
#[derive(Debug, Default)]
struct CurrentAttempt {
    lease: Option<Lease>,
    open: Option<OpenAttempt>,
    /// The result of the prefill, where a split was considered.
    prefill: Option<PrefillNote>,
    /// The prefill under way, and its start.
    leg: Option<(PrefillLeg, Moment)>,
    /// The hedge under way.
    hedge: Option<Box<OpenHedge>>,
}

/// The facts of the receipt, stage by stage.
#[derive(Debug, Default)]
struct ReceiptDraft {
    about: Option<RequestFacts>,
    verdict: Option<RouterAnswer>,
    rewrites: Vec<&'static str>,
    notes: RoutingNotes,
    attempts: Vec<Attempt>,
    timing: RouterTiming,
    hold: QueueWait,
    published: bool,
    logged: RequestLogLine,
}

/// The reply as far as the client has it.
#[derive(Debug, Default)]
struct ReplyRecord {
    status: Option<u16>,
    first_token: Option<Moment>,
    relaying: bool,
    usage: Option<Usage>,
    finish_reason: Option<Arc<str>>,
    in_band_error: bool,
    ending: StreamEnding,
    stored_response: StoredResponse,
}

/// The end of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StreamEnding {
    #[default]
    Proper,
    /// Without its end marker.
    Unfinished,
}

impl RequestGuard {
    /// Opens the guard of a request.
    pub(crate) fn open(
        recorder: &Arc<Recorder>,
        route: &'static Route,
        request_id: Arc<str>,
        received: Moment,
    ) -> Self {
        recorder.running.fetch_add(1, Ordering::Relaxed);
        Self {
            recorder: Arc::clone(recorder),
            route,
            request_id,
            received,
            id: recorder.receipts.ids.next_id(),
            prefix_expectation: None,
            selection: None,
            attempt: CurrentAttempt::default(),
            draft: ReceiptDraft::default(),
            reply: ReplyRecord::default(),
            end: None,
            outcome: None,
        }
    }

    pub(crate) fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Returns the form of the route's errors.
    pub(crate) fn error_shape(&self) -> ErrorShape {
        ErrorShape::of(self.route.path)
    }

    pub(crate) fn id(&self) -> DecisionId {
        self.id
    }

    /// Returns the last selection, once there is one.
    pub(crate) fn selection(&self) -> Option<&Selection> {
        self.selection.as_ref()
    }

    /// Returns the router's own times, filled in stage by stage.
    pub(crate) fn timing(&mut self) -> &mut RouterTiming {
        &mut self.draft.timing
    }

    pub(crate) fn set_request_facts(&mut self, about: RequestFacts) {
        self.draft.about = Some(self.draft.notes.about(about));
    }

    /// Records that the worker will look up the prompt in a prefix cache.
    pub(crate) fn set_prefix_expectation(&mut self, looked_up: PrefixExpectation) {
        self.prefix_expectation = Some(looked_up);
    }

    /// Records a decision; this guard now frees its load. `leg`: another worker computes the
    /// prompt.
    pub(crate) fn record_placement(
        &mut self,
        decision: Decision,
        lease: Lease,
        leg: Option<PrefillLeg>,
    ) {
        let policy = decision.policy.as_str();
        let us = decision.timing.lookup_us + decision.timing.decide_us;
        self.recorder
            .metrics
            .record_decision(policy, decision.method.as_str(), us);
        // A retried request pays for each decision.
        self.draft.timing.hash += decision.timing.hash_us;
        self.draft.timing.lookup += decision.timing.lookup_us;
        self.draft.timing.decide += decision.timing.decide_us;
        let (target, now) = (lease.target(), self.recorder.clock.now());
        self.attempt.open = Some(OpenAttempt {
            target,
            name: Arc::clone(&decision.winner.name),
            started: now,
        });
        let by_events = decision
            .winning()
            .is_some_and(|row| row.cache_source == CacheSource::Events);
        self.selection = Some(Selection {
            worker: Arc::clone(&decision.winner.name),
            policy,
            label: decision.label,
            predicted_cached_tokens: decision.winner.predicted_cached_tokens,
            announced_cached_tokens: decision.winner.announced_cached_tokens,
            basis: if by_events {
                Basis::Events
            } else {
                Basis::Decisions
            },
            target,
            sent: now,
        });
        self.attempt.prefill.clone_from(&decision.prefill);
        self.draft.verdict = Some(RouterAnswer::Decided(Box::new(decision)));
        self.attempt.lease = Some(lease);
        self.draft.rewrites = self.draft.notes.rewrites().to_vec();
        self.attempt.leg = None;
        if let Some(leg) = leg {
            self.begin_prefill(leg);
        }
    }

    /// Records the request's wait for its decision.
    pub(crate) fn record_wait(&mut self, hold: QueueWait) {
        self.draft.hold = hold;
    }

    /// Records that no target can take the request. The receipt keeps an earlier decision.
    pub(crate) fn record_refusal(&mut self, refusal: Refusal) {
        if self.draft.verdict.is_none() {
            self.draft.verdict = Some(RouterAnswer::Refused(refusal));
        }
    }

    /// Records the commit point: the reply's head is sent, and no retry follows.
    pub(crate) fn commit(&mut self, status: u16, content: &BodyContent) {
        self.reply.status = Some(status);
        let begun = matches!(content, BodyContent::Begun { .. });
        if let Some(lease) = &mut self.attempt.lease {
            // A reply that has only begun may still fail; its end decides.
            if begun {
                self.recorder
                    .workers
                    .fleet
                    .report_answer(lease.target().worker);
            } else {
                self.recorder
                    .workers
                    .fleet
                    .report_success(lease.target().worker);
            }
            // The worker listed this model: another engine may use its port by now.
            if status == 404 {
                self.recorder
                    .workers
                    .fleet
                    .request_recheck(lease.target().worker);
            }
            // Only the first event of a stream shows when the prompt was computed: a whole reply
            // comes after its last token, and an error shows nothing.
            if matches!(
                content,
                BodyContent::Begun {
                    kind: BodyKind::Events,
                    ..
                }
            ) && (200..300).contains(&status)
            {
                lease.first_token();
                self.reply.first_token = Some(self.recorder.clock.now());
            }
        }
        if begun {
            self.reply.relaying = true;
            self.recorder.metrics.requests.open_streams.inc();
        }
        self.publish(None);
    }

    /// Records that the client got the whole reply.
    pub(crate) fn complete(&mut self) {
        let status = self.reply.status.unwrap_or(200);
        let failed = self.reply.in_band_error && status < 400;
        if let Some(open) =
            self.attempt.open.as_ref().filter(|_| {
                self.reply.relaying && !failed && self.reply.ending == StreamEnding::Proper
            })
        {
            self.recorder
                .workers
                .fleet
                .report_success(open.target.worker);
        }
        self.end = Some(if failed {
            OutcomeKind::UpstreamError
        } else {
            outcome_of(status)
        });
        if let Some(usage) = self
            .reply
            .usage
            .filter(|usage| !failed && usage.completion_tokens > 0)
        {
            self.recorder
                .workers
                .router
                .record_reply_length(usage.completion_tokens);
        }
        self.close_attempt(None, AttemptResult::Ok, self.reply.status);
    }

    /// Returns the dialect whose streams have an end marker, where this reply should have one.
    pub(crate) fn expected_ending(&self) -> Option<Dialect> {
        match self.route.endpoint {
            RouteHandler::Generate(dialect)
                if self
                    .reply
                    .status
                    .is_none_or(|status| (200..300).contains(&status)) =>
            {
                Some(dialect)
            }
            _ => None,
        }
    }

    /// Returns whether no event was an error; an error event decides the outcome of the reply.
    pub(crate) fn has_no_in_band_error(&self) -> bool {
        !self.reply.in_band_error
    }

    /// Records that the worker closed its stream properly but without its end marker. The client
    /// gets it unchanged.
    pub(crate) fn record_incomplete(&mut self) {
        self.reply.ending = StreamEnding::Unfinished;
        self.record_blame(FailureKind::Incomplete);
    }

    /// Records that a running reply was cut; `kind` is the worker's fault, if it has one.
    pub(crate) fn record_cut(&mut self, code: ErrorCode, kind: Option<FailureKind>) {
        tracing::warn!(request_id = %self.request_id, code = code.as_str(), "reply cut");
        if let Some(kind) = kind {
            self.record_blame(kind);
        }
        self.end = Some(OutcomeKind::UpstreamError);
        self.close_attempt(
            Some(AttemptClass::C3),
            AttemptResult::MidStream,
            self.reply.status,
        );
        self.attempt.lease = None;
    }

    /// Records that the client gets an error of the router in place of a reply.
    pub(crate) fn record_own_error(&mut self, error: &ApiError) {
        self.reply.status = Some(error.status);
        let kind = match error.status {
            500.. if error.status != 503 && self.draft.attempts.is_empty() => {
                OutcomeKind::RouterError
            }
            status => outcome_of(status),
        };
        if kind == OutcomeKind::Shed {
            self.recorder.metrics.record_rejection(error.counted_as());
        }
        self.end = Some(kind);
    }

    /// Records a reply that is not relayed: one of the router, or a worker's final error.
    pub(crate) fn record_passthrough(&mut self, status: u16) {
        self.reply.status = Some(status);
        self.end = Some(outcome_of(status));
    }

    /// Puts the receipt into the ring, or completes the one in the ring.
    fn publish(&mut self, outcome: Option<RequestOutcome>) {
        if std::mem::replace(&mut self.draft.published, true) {
            let end = LogEnding {
                attempts: std::mem::take(&mut self.draft.attempts),
                prefill: self.attempt.prefill.take(),
                outcome,
            };
            self.log_end(&end);
            self.recorder
                .receipts
                .ring
                .update(self.id, |receipt| end.complete(receipt));
            return;
        }
        // A request that never came to a decision has nothing to explain.
        let (Some(about), Some(mut verdict)) = (self.draft.about.take(), self.draft.verdict.take())
        else {
            return;
        };
        if let RouterAnswer::Decided(decision) = &mut verdict {
            decision.prefill.clone_from(&self.attempt.prefill);
        }
        let decided = DecisionFacts {
            id: self.id,
            at_unix_ms: self.recorder.clock.unix_ms(),
            request_id: Arc::clone(&self.request_id),
            route: self.route.path,
            verdict,
            hold: self.draft.hold,
            timing: self.draft.timing,
        };
        let (attempts, rewrites) = (self.draft.attempts.clone(), self.draft.rewrites.clone());
        let receipt = Receipt {
            attempts,
            rewrites,
            outcome,
            ..about.receipt(decided)
        };
        self.log_shown(&receipt);
        self.recorder.receipts.ring.push(receipt);
    }

    /// Submits the prediction and its result to parity. Returns `None` if they cannot be compared,
    /// else the cached tokens, where they are known.
    fn judge(&self, kind: OutcomeKind) -> Option<Option<u32>> {
        let won = self.selection.as_ref()?;
        // After a remote prefill the worker's own cache had no part in the prompt.
        let own = kind == OutcomeKind::Ok && !self.has_remote_prefill();
        let sample = self
            .prefix_expectation
            .filter(|_| own)
            .and_then(|it| it.sample(won, self.reply.usage));
        // Failed attempts are already submitted.
        if sample.is_none()
            && self
                .draft
                .attempts
                .last()
                .is_some_and(|last| last.result == AttemptResult::Ok)
        {
            self.record_incomparable(won.target, won.sent);
        }
        sample.map(|sample| self.recorder.parity_monitor.observe(won.target, sample))
    }

    fn outcome(&self, kind: OutcomeKind, now: Moment) -> RequestOutcome {
        RequestOutcome {
            kind,
            status: self.reply.status,
            ttft_ms: self.reply.first_token.map(|at| at.ms_since(self.received)),
            duration_ms: now.ms_since(self.received),
            prompt_tokens: self.reply.usage.map(|usage| usage.prompt_tokens),
            completion_tokens: self.reply.usage.map(|usage| usage.completion_tokens),
            cached_tokens: self.reply.usage.and_then(|usage| usage.cached_tokens),
            finish_reason: self.reply.finish_reason.clone(),
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.attempt.lease = None;
        let unannounced = || {
            if std::thread::panicking() {
                OutcomeKind::RouterError
            } else {
                OutcomeKind::ClientGone
            }
        };
        let kind = self.end.unwrap_or_else(unannounced);
        match kind {
            OutcomeKind::ClientGone => {
                self.end_hedge(AttemptResult::ClientGone);
                self.close_attempt(None, AttemptResult::ClientGone, self.reply.status)
            }
            OutcomeKind::RouterError => self.reply.status = self.reply.status.or(Some(500)),
            _ => {}
        }
        if self.reply.relaying {
            self.recorder.metrics.requests.open_streams.dec();
        }
        if let Some(good) = &self.outcome {
            let finished = !matches!(self.reply.finish_reason.as_deref(), Some("error" | "abort"));
            let _ = good.set(kind == OutcomeKind::Ok && finished);
        }
        let now = self.recorder.clock.now();
        let judged = self.judge(kind);
        self.recorder.metrics.record_request(&RequestSummary {
            route: self.route.path,
            kind,
            took: now.since(self.received),
            ttft: self.reply.first_token.map(|at| at.since(self.received)),
            timing: self.selection.is_some().then_some(&self.draft.timing),
            selection: self.selection.as_ref(),
            usage: self.own_usage(),
            judged,
        });
        if let Some(note) = &self.attempt.prefill {
            self.recorder.metrics.record_prefill(note);
        }
        if self.recorder.logging.requests {
            tracing::info!(
                request_id = %self.request_id,
                route = self.route.path,
                status = self.reply.status,
                outcome = kind.as_str(),
                worker = self.selection.as_ref().map(|won| &*won.worker),
                ms = now.ms_since(self.received),
                "request"
            );
        }
        let outcome = self.outcome(kind, now);
        self.publish(Some(outcome));
        self.recorder.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the outcome that a status at the client stands for.
fn outcome_of(status: u16) -> OutcomeKind {
    match status {
        ..400 => OutcomeKind::Ok,
        429 | 503 => OutcomeKind::Shed,
        400..500 => OutcomeKind::ClientError,
        _ => OutcomeKind::UpstreamError,
    }
}
