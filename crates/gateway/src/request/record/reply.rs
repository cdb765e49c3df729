//! The reply in the request guard: its commit point, the facts that it reports about itself, its
//! end, and the facts that its head and coalesced requests read from the guard.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use config::CompatSection;
use dialect::{ApiError, Dialect, ReplyPart, StreamChunk, Usage};
use fleet::FailureKind;
use kv_blocks::Moment;
use routing::{
    AttemptEnd, Method, Policy, PrefillNote,
    receipt::{AttemptResult, OutcomeKind, RequestOutcome, RouterAnswer},
};
use tenants::{ReportedTokens, TokenAmounts};

use super::{RequestGuard, part_usages::PartUsages};
use crate::{
    parity_monitor::PrefixExpectation,
    request::{
        dispatch::{BodyContent, BodyKind},
        receipt::RoutingNotes,
    },
    response_affinity::{ResponseHome, ResponseOwner},
    routes::{Route, RouteHandler},
};

/// The reply as far as the client has it.
#[derive(Debug, Default)]
pub(super) struct ReplyRecord {
    pub(super) status: Option<u16>,
    pub(super) first_token: Option<Moment>,
    pub(super) relaying: bool,
    pub(super) usage: Option<Usage>,
    /// Those of the parts of a reply to several prompts, or of several replies to one.
    parts: Option<Box<PartUsages>>,
    /// Replies that the request asks for, over all of its prompts; 0: not known.
    reply_count: u64,
    /// Tokens of a stream's events since the last counts, as estimated; at least one for each event.
    pub(super) uncounted: u32,
    pub(super) finish_reason: Option<Arc<str>>,
    in_band_error: bool,
    /// Its bytes waited for the client for a good part of its time.
    held_up: bool,
    ending: StreamEnding,
    stored_response: StoredResponse,
    /// The key of the response that the engine stores.
    pub(super) response: Option<Box<u128>>,
}

/// The end of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StreamEnding {
    #[default]
    Proper,
    /// Without its end marker.
    Unfinished,
}

/// State that a request leaves at its engine beside the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StoredResponse {
    #[default]
    Nothing,
    /// A response to continue: response affinity records its worker.
    Response,
}

impl RequestGuard {
    /// Records the commit point: the reply's head is sent, and no retry follows.
    pub(crate) fn commit(&mut self, status: u16, content: &BodyContent) {
        self.reply.status = Some(status);
        self.recheck_model(status);
        let has_begun = !matches!(content, BodyContent::Whole(_));
        if let Some(lease) = &mut self.attempt.lease {
            // A reply that has only begun may still fail; its end decides.
            if has_begun {
                self.recorder
                    .workers
                    .fleet
                    .report_answer(lease.target().worker);
            } else {
                self.recorder
                    .workers
                    .fleet
                    .report_success(lease.target().worker);
                lease.set_end(AttemptEnd::Complete);
            }
            // Only the first event of a stream shows when the prompt was computed: a whole reply
            // comes after its last token, and an error shows nothing. A response is announced before.
            if matches!(
                content,
                BodyContent::Begun {
                    kind: BodyKind::Events,
                    ..
                }
            ) && (200..300).contains(&status)
                && !is_announced(self.route)
            {
                lease.first_token();
                self.reply.first_token = Some(self.recorder.clock.now());
            }
        }
        if has_begun {
            self.reply.relaying = true;
            self.trace_relay();
            self.recorder.metrics.requests.open_streams.inc();
        }
        self.publish(None);
    }

    /// Has the models of the current worker looked up again if it does not know this one.
    pub(super) fn recheck_model(&self, status: u16) {
        // The worker listed this model: another engine may use its port by now. On other routes a
        // client chooses what is not found.
        let names_model = matches!(self.route.endpoint, RouteHandler::Generate(kind) if !kind.model_is_optional());
        let lease = self.attempt.lease.as_ref();
        if let Some(lease) = lease.filter(|_| status == 404 && names_model) {
            self.recorder
                .workers
                .fleet
                .request_recheck(lease.target().worker);
        }
    }

    /// Records that the engine stores the result of the request.
    pub(crate) fn mark_response_stored(&mut self) {
        self.reply.stored_response = StoredResponse::Response;
    }

    pub(crate) fn stores_response(&self) -> bool {
        self.reply.stored_response == StoredResponse::Response
    }

    /// Records that the engine may count the prompt otherwise than the router.
    pub(crate) fn mark_foreign_count(&mut self) {
        self.prefix_expectation = self
            .prefix_expectation
            .map(PrefixExpectation::with_foreign_count);
    }

    /// Records the first token of a response with its first event that does more than announce it.
    fn record_first_token(&mut self, data: &[u8]) {
        let is_good = (self.reply.status).is_some_and(|status| (200..300).contains(&status));
        let is_expected = self.reply.first_token.is_none() && is_announced(self.route) && is_good;
        if !is_expected || dialect::announces_response(data) {
            return;
        }
        if let Some(lease) = &mut self.attempt.lease {
            lease.first_token();
            self.reply.first_token = Some(self.recorder.clock.now());
        }
    }

    /// Counts an event of a stream, with its tokens where those of the tenant are limited.
    pub(crate) fn count_event(&mut self, data: &[u8]) {
        self.record_first_token(data);
        let tokens = if self.limits_tokens() {
            dialect::estimated_tokens(data)
        } else {
            1
        };
        self.reply.uncounted = self.reply.uncounted.saturating_add(tokens);
    }

    /// Records the counts of the reply so far.
    pub(crate) fn record_usage(&mut self, usage: Usage) {
        // The usage of a stored response counts for the request that created it.
        if matches!(self.route.endpoint, RouteHandler::StoredResponse) {
            return;
        }
        if usage.completion_tokens > 0 {
            self.reply.uncounted = 0;
        }
        self.reply.usage = Some(usage.after(self.reply.usage));
    }

    /// Records the facts of one event, or of the whole body.
    pub(crate) fn record_chunk(&mut self, chunk: &StreamChunk<'_>) {
        if let Some(usage) = chunk.usage {
            if let Some(id) = &chunk.response_id {
                self.settle_response(id, usage);
            }
            let usage = self.usage_of_all(usage, chunk.part);
            self.record_usage(usage);
        }
        if let (true, Some(id), Some(selection)) =
            (self.stores_response(), &chunk.response_id, &self.selection)
        {
            let home = ResponseHome {
                worker: selection.target.worker,
                name: Arc::clone(&selection.worker),
            };
            let now = self.recorder.clock.now();
            let tenant = self.tenant_name();
            let response = ResponseOwner {
                tenant: &tenant,
                id,
            };
            self.reply.response = Some(Box::new(response.key()));
            self.recorder.response_affinity.record(response, home, now);
        }
        if let Some(reason) = &chunk.finish_reason {
            self.reply.finish_reason = Some(Arc::from(&**reason));
        }
        self.reply.in_band_error |= chunk.error.is_some();
    }

    /// Settles the tokens of a stored response that was created without counts, such as one in the
    /// background, when it comes with them.
    fn settle_response(&mut self, id: &str, usage: Usage) {
        let is_stored = matches!(self.route.endpoint, RouteHandler::StoredResponse);
        if !is_stored || usage.completion_tokens == 0 {
            return;
        }
        // Its tokens count for the request that created it, also when it is read as a stream again.
        self.reply.uncounted = 0;
        let (tenant, now) = (self.tenant_name(), self.recorder.clock.now());
        let tenant = &*tenant;
        let key = ResponseOwner { tenant, id }.key();
        let reservations = &self.recorder.response_affinity.reservations;
        let Some(permit) = &self.tenant else {
            return;
        };
        let Some(reserved) = reservations.take(key, now) else {
            return;
        };
        let used = TokenAmounts {
            prompt: usage.prompt_tokens,
            output: usage.completion_tokens,
        };
        permit.correct_tokens(reserved, used, now);
        permit.count_tokens(ReportedTokens {
            prompt: usage.prompt_tokens,
            cached: usage.cached_tokens.unwrap_or_default(),
            completion: usage.completion_tokens,
        });
    }

    /// Returns the counts of all replies to the request, of which a part has these.
    fn usage_of_all(&mut self, usage: Usage, part: Option<ReplyPart>) -> Usage {
        let Some(part) = part else { return usage };
        // Also of a list, whose counts are one sum: the usual length of one reply is not in it.
        let parts = self.reply.parts.get_or_insert_default();
        match part {
            ReplyPart::Numbered(number) => parts.record(number, usage),
            ReplyPart::List => usage,
        }
    }

    /// Records how many replies the request asks for, over all of its prompts.
    pub(crate) fn set_reply_count(&mut self, replies: u64) {
        self.reply.reply_count = replies;
    }

    /// Returns whether the tokens are those of one reply. The OpenAI API counts those of all choices and
    /// prompts in one sum, without saying so.
    fn is_one_reply(&self) -> bool {
        self.reply.parts.is_none() && self.reply.reply_count <= 1
    }

    /// Records changed members of the client's body, for the reply's head and the receipt.
    pub(crate) fn record_rewrite(&mut self, rewrites: Vec<&'static str>) {
        self.draft.rewrites.extend(rewrites);
    }

    pub(crate) fn rewrites(&self) -> &[&'static str] {
        &self.draft.rewrites
    }

    /// Returns whether the prompt's KV came from another worker.
    pub(super) fn has_remote_prefill(&self) -> bool {
        self.attempt
            .prefill
            .as_ref()
            .is_some_and(|note: &PrefillNote| note.skipped.is_none())
    }

    /// Returns the reply's usage, limited to the worker's own cache.
    pub(super) fn own_usage(&self) -> Option<Usage> {
        let handed_over = self.has_remote_prefill();
        self.reply.usage.map(|usage| {
            if handed_over {
                Usage {
                    cached_tokens: None,
                    ..usage
                }
            } else {
                usage
            }
        })
    }

    /// Sets the cell for the outcome: followers read from it whether the reply may answer more
    /// requests.
    pub(crate) fn share_outcome(&mut self, good: Arc<OnceLock<bool>>) {
        self.outcome = Some(good);
    }

    /// Returns the cell that the end sets: whether the reply was whole and correct.
    pub(crate) fn shared_outcome(&mut self) -> Arc<OnceLock<bool>> {
        Arc::clone(self.outcome.get_or_insert_default())
    }

    /// Records that another request's reply answers this one; the receipt shows that no worker was
    /// chosen.
    pub(crate) fn record_shared_reply(&mut self, method: Method, policy: Policy, status: u16) {
        self.recorder
            .metrics
            .record_method(policy.as_str(), method.as_str());
        self.reply.status = Some(status);
        self.draft.answer = Some(RouterAnswer::Answered(method, policy));
        self.publish(None);
    }

    /// Returns the notes for reply headers.
    pub(crate) fn notes(&mut self) -> &mut RoutingNotes {
        &mut self.draft.notes
    }

    pub(crate) fn routing_notes(&self) -> &RoutingNotes {
        &self.draft.notes
    }

    /// Returns the settings of the reply's routing headers.
    pub(crate) fn reply_headers(&self) -> &CompatSection {
        &self.recorder.compat
    }

    /// Records that the client got the whole reply.
    pub(crate) fn complete(&mut self) {
        let status = self.reply.status.unwrap_or(200);
        let failed = self.reply.in_band_error && status < 400;
        self.set_attempt_end(if failed || self.reply.ending == StreamEnding::Unfinished {
            AttemptEnd::BrokenOff
        } else {
            AttemptEnd::Complete
        });
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
            // The length of many replies is none of one.
            .filter(|usage| !failed && usage.completion_tokens > 0 && self.is_one_reply())
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

    /// Records that the bytes of the reply waited for the client for a good part of its time.
    pub(crate) fn record_held_up(&mut self) {
        self.reply.held_up = true;
    }

    /// Returns whether the worker's speed decided when the tokens of the reply came: not those of several
    /// replies, and none that waited for the client.
    pub(super) fn shows_decode_steps(&self) -> bool {
        self.is_one_reply() && !self.reply.held_up
    }

    /// Returns the mean time between the later tokens of a stream that the client got to its end.
    pub(super) fn tpot(&self, kind: OutcomeKind, now: Moment) -> Option<Duration> {
        let first = self.reply.first_token?;
        let usage = self.reply.usage?;
        // The tokens of several replies do not come one after another.
        let is_one = kind == OutcomeKind::Ok && self.is_one_reply();
        let later = usage.completion_tokens.saturating_sub(1);
        (is_one && later > 0).then(|| now.since(first) / later)
    }

    pub(super) fn outcome(&self, kind: OutcomeKind, now: Moment) -> RequestOutcome {
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

/// Returns whether the streams of a route begin with events that engines send before they compute the
/// prompt.
fn is_announced(route: &Route) -> bool {
    matches!(route.endpoint, RouteHandler::Generate(Dialect::Responses))
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
