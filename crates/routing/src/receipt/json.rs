//! The JSON form of a receipt: `warmroute.receipt/1`.

use std::{borrow::Cow, time::Duration};

use kv_blocks::Target;
use serde::{Serialize, Serializer};
use time::{OffsetDateTime, macros::format_description};

use super::{Attempt, AttemptClass, Receipt, RequestOutcome};
use crate::{
    CostUnit, Decision, ExcludedTarget, PrefillNote, PrefillSkip, RoomWait, ScoredCandidate,
    SloNote,
};

impl Serialize for Receipt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        api::Receipt::from(self).serialize(serializer)
    }
}

impl<'a> From<&'a Receipt> for api::Receipt<'a> {
    fn from(receipt: &'a Receipt) -> Self {
        let decision = receipt.decision();
        Self {
            schema: "warmroute.receipt/1".into(),
            id: receipt.id.to_string(),
            at: rfc3339(receipt.at_unix_ms),
            request: request(receipt, decision),
            decision: decision_report(receipt, decision),
            prefill: decision
                .and_then(|decision| decision.prefill.as_ref())
                .map(prefill_leg),
            hold: api::QueueHold {
                held_ms: receipt.hold.held_ms,
                reason: receipt.hold.reason.map(|reason| reason.name().into()),
                room: receipt.hold.room.as_ref().map(|wait| room(wait, decision)),
            },
            reserved: decision
                .map(|decision| decision.winner.reserved)
                .unwrap_or_default(),
            attempts: receipt.attempts.iter().map(attempt).collect(),
            timing_us: receipt.timing,
            rewrites: receipt.rewrites.iter().map(|name| (*name).into()).collect(),
            outcome: receipt
                .outcome
                .as_ref()
                .map(|ended| outcome(ended, decision)),
        }
    }
}

/// Returns why a request waited for room; a worker that is not among the shown candidates has no name
/// here.
fn room(wait: &RoomWait, decision: Option<&Decision>) -> String {
    let mut rows = decision.iter().flat_map(|decision| &decision.candidates);
    let row = rows.find(|row| row.target == wait.target);
    wait.sentence(row.map_or("a worker", |row| &*row.name))
}

fn request<'a>(receipt: &'a Receipt, decision: Option<&Decision>) -> api::ReceiptRequest<'a> {
    let request = &receipt.request;
    api::ReceiptRequest {
        request_id: (&*request.id).into(),
        tenant: (&*request.tenant).into(),
        dry_run: receipt.dry_run,
        route: request.route.into(),
        model: (&*request.model).into(),
        served_model: request.served_model.as_deref().map(Cow::from),
        lora: request.lora.as_deref().map(Cow::from),
        session: decision
            .and_then(|decision| decision.session)
            .map(|session| format!("{:016x}", session.id)),
        cluster: receipt.cluster.as_ref().map(|cluster| api::ClusterMatch {
            name: (&*cluster.name).into(),
            similarity: cluster.similarity,
        }),
        stream: request.stream,
        body_streamed: request.body_streamed,
        priority: request.priority,
    }
}

fn decision_report<'a>(
    receipt: &'a Receipt,
    decision: Option<&'a Decision>,
) -> api::ReceiptDecision<'a> {
    api::ReceiptDecision {
        policy: receipt.policy().as_str().into(),
        method: receipt.method().as_str().into(),
        prompt: prompt(receipt, decision),
        candidates: decision.map_or_else(Vec::new, candidates),
        candidates_total: decision.map_or(0, |decision| decision.candidates_total),
        excluded: receipt.excluded().iter().map(excluded).collect(),
        winner: decision
            .map(|decision| &decision.winner)
            .map(|winner| target(winner.target, Some(&winner.name))),
        runner_up: decision.and_then(runner_up),
        regret_ms: decision
            .and_then(|decision| decision.runner_up)
            .and_then(|runner_up| runner_up.regret_ms),
        slo: receipt.slo().as_ref().map(slo),
    }
}

fn slo(note: &SloNote) -> api::ReceiptSlo {
    let ms = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e3);
    api::ReceiptSlo {
        ttft_target_ms: ms(note.targets.ttft),
        tpot_target_ms: ms(note.targets.tpot),
        predicted_ttft_ms: ms(note.predicted_ttft),
        headroom_ms: note.headroom_ms(),
    }
}

fn prompt<'a>(receipt: &Receipt, decision: Option<&Decision>) -> api::Prompt<'a> {
    api::Prompt {
        source: receipt.prompt.source.as_str().into(),
        exact: receipt.prompt.source.is_exact(),
        tokens: receipt.prompt.tokens,
        blocks: decision.map(|decision| decision.winner.prompt_blocks),
        block_size: decision.map(|decision| decision.winner.block_size),
        new_tokens: receipt.prompt.new_tokens,
    }
}

fn target(target: Target, name: Option<&str>) -> api::TargetName<'_> {
    api::TargetName {
        worker: name.map(Cow::from),
        dp_rank: target.rank.0,
    }
}

fn runner_up(decision: &Decision) -> Option<api::TargetName<'_>> {
    let runner_up = decision.runner_up?.target;
    let mut rows = decision.candidates.iter();
    let row = rows.find(|row| row.target == runner_up);
    Some(target(runner_up, row.map(|row| &*row.name)))
}

fn candidates(decision: &Decision) -> Vec<api::Candidate<'_>> {
    let rows = decision.candidates.iter();
    rows.map(|row| candidate(row, decision.cost_unit)).collect()
}

fn candidate(row: &ScoredCandidate, unit: CostUnit) -> api::Candidate<'_> {
    api::Candidate {
        target: target(row.target, Some(&row.name)),
        rank: row.rank,
        warm_tokens: row.warm_tokens,
        predicted_cached_tokens: row.predicted_cached_tokens,
        uncached_tokens: row.uncached_tokens,
        cache_source: row.cache_source.as_str().into(),
        stream_state: row.stream_state.map(Cow::from),
        health: row.health.into(),
        load: row.load,
        cost: row.cost,
        cost_unit: unit.as_str().into(),
        predicted_ttft_ms: row.predicted_ttft_ms,
        terms: api::CostTerms(
            row.terms
                .iter()
                .map(|(name, value)| (name.into(), value))
                .collect(),
        ),
        fetch: row.fetch.as_ref().map(|fetch| api::CandidateFetch {
            source: target(fetch.source, Some(&fetch.name)),
            tokens: fetch.tokens,
            ms: fetch.ms,
        }),
    }
}

fn excluded(excluded: &ExcludedTarget) -> api::ExcludedTarget<'_> {
    api::ExcludedTarget {
        target: target(excluded.target, Some(&excluded.name)),
        reason: excluded.reason.as_str().into(),
    }
}

fn prefill_leg(note: &PrefillNote) -> api::PrefillLeg<'_> {
    let to = note.target.as_ref();
    api::PrefillLeg {
        target: to.map(|(to, name)| target(*to, Some(name))),
        skipped: note.skipped.is_some(),
        reason: note.skipped.map(PrefillSkip::as_str).map(Cow::from),
        ms: note.ms,
    }
}

fn attempt(attempt: &Attempt) -> api::AttemptReport<'_> {
    api::AttemptReport {
        n: attempt.n,
        target: target(attempt.target, Some(&attempt.name)),
        class: attempt.class.map(AttemptClass::as_str).map(Cow::from),
        result: attempt.result.as_str().into(),
        status: attempt.status,
        ms: attempt.ms,
    }
}

fn outcome<'a>(
    outcome: &'a RequestOutcome,
    decision: Option<&Decision>,
) -> api::RequestOutcome<'a> {
    // The prediction is for the worker's own cache, and the tokens that it counts as cached came
    // from another one.
    let own = |decision: &&Decision| {
        let prefill = decision.prefill.as_ref();
        prefill.is_none_or(|note| note.skipped.is_some())
    };
    let predicted = decision
        .filter(own)
        .map(|decision| i64::from(decision.winner.predicted_cached_tokens));
    api::RequestOutcome {
        kind: outcome.kind.as_str().into(),
        status: outcome.status,
        ttft_ms: outcome.ttft_ms,
        duration_ms: outcome.duration_ms,
        prompt_tokens: outcome.prompt_tokens,
        completion_tokens: outcome.completion_tokens,
        cached_tokens: outcome.cached_tokens,
        drift_tokens: predicted
            .zip(outcome.cached_tokens)
            .map(|(predicted, cached)| predicted - i64::from(cached)),
        finish_reason: outcome.finish_reason.as_deref().map(Cow::from),
    }
}

/// Formats a time as RFC 3339 in UTC with milliseconds. A time beyond the calendar is shown as its
/// beginning.
fn rfc3339(unix_ms: u64) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_ms) * 1_000_000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
        .format(format_description!(
            "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z"
        ))
        .unwrap_or_default()
}
