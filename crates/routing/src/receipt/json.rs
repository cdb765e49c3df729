//! The JSON form of a receipt: `warmroute.receipt/1`.
//!
//! The structs below define that form: names, order and which numbers are whole are binding.

use kv_blocks::Target;
use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeStruct},
};
use time::{OffsetDateTime, macros::format_description};

use super::{Attempt, AttemptClass, Receipt, RequestOutcome, RouterTiming};
use crate::{CostUnit, Decision, ExcludedTarget, PrefillNote, PrefillSkip, ScoredCandidate, Terms};

impl Serialize for Receipt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let decision = self.decision();
        let session = decision.and_then(|decision| decision.session);
        let reserved = decision
            .map(|decision| decision.reserved)
            .unwrap_or_default();
        ReceiptShape {
            schema: "warmroute.receipt/1",
            id: self.id.to_string(),
            at: rfc3339(self.at_unix_ms),
            request_id: &self.request_id,
            tenant: &self.tenant,
            dry_run: self.dry_run,
            route: self.route,
            model: &self.model,
            served_model: self.served_model.as_deref(),
            lora: self.lora.as_deref(),
            session: session.map(|session| format!("{:016x}", session.id)),
            cluster: self.cluster.as_ref().map(|cluster| ClusterShape {
                name: &cluster.name,
                similarity: cluster.similarity,
            }),
            stream: self.stream,
            priority: self.priority,
            policy: self.policy().as_str(),
            method: self.method().as_str(),
            prompt: PromptShape {
                source: self.prompt.source.as_str(),
                exact: self.prompt.source.is_exact(),
                tokens: self.prompt.tokens,
                blocks: decision.map(|decision| decision.prompt_blocks),
                block_size: decision.map(|decision| decision.block_size),
                new_tokens: self.prompt.new_tokens,
            },
            candidates: decision.map_or_else(Vec::new, rows),
            candidates_total: decision.map_or(0, |decision| decision.candidates_total),
            excluded: self.excluded().iter().map(ExcludedShape::of).collect(),
            winner: decision
                .map(|decision| TargetShape::of(decision.winner, Some(&decision.winner_name))),
            runner_up: decision.and_then(runner_up),
            regret_ms: decision.and_then(|decision| decision.regret_ms),
            prefill: decision
                .and_then(|decision| decision.prefill.as_ref())
                .map(PrefillShape::of),
            hold: HoldShape {
                held_ms: self.hold.held_ms,
                reason: self.hold.reason,
            },
            reserved: ReservedShape {
                prefill_tokens: reserved.prefill_tokens,
                decode_blocks: reserved.decode_blocks,
            },
            attempts: self.attempts.iter().map(AttemptShape::of).collect(),
            timing_us: &self.timing,
            rewrites: &self.rewrites,
            outcome: self
                .outcome
                .as_ref()
                .map(|outcome| OutcomeShape::of(outcome, decision)),
        }
        .serialize(serializer)
    }
}

#[derive(Serialize)]
struct ReceiptShape<'a> {
    schema: &'static str,
    id: String,
    at: String,
    request_id: &'a str,
    tenant: &'a str,
    dry_run: bool,
    route: &'static str,
    model: &'a str,
    served_model: Option<&'a str>,
    lora: Option<&'a str>,
    session: Option<String>,
    cluster: Option<ClusterShape<'a>>,
    stream: bool,
    priority: i32,
    policy: &'static str,
    method: &'static str,
    prompt: PromptShape,
    candidates: Vec<CandidateShape<'a>>,
    candidates_total: usize,
    excluded: Vec<ExcludedShape<'a>>,
    winner: Option<TargetShape<'a>>,
    runner_up: Option<TargetShape<'a>>,
    regret_ms: Option<f64>,
    prefill: Option<PrefillShape<'a>>,
    hold: HoldShape,
    reserved: ReservedShape,
    attempts: Vec<AttemptShape<'a>>,
    timing_us: &'a RouterTiming,
    rewrites: &'a [&'static str],
    outcome: Option<OutcomeShape<'a>>,
}

#[derive(Serialize)]
struct ClusterShape<'a> {
    name: &'a str,
    similarity: Option<f64>,
}

#[derive(Serialize)]
struct PromptShape {
    source: &'static str,
    exact: bool,
    tokens: u32,
    blocks: Option<u32>,
    block_size: Option<u32>,
    new_tokens: u32,
}

#[derive(Serialize)]
struct TargetShape<'a> {
    worker: Option<&'a str>,
    dp_rank: u32,
}

impl<'a> TargetShape<'a> {
    fn of(target: Target, name: Option<&'a str>) -> Self {
        Self {
            worker: name,
            dp_rank: target.rank.0,
        }
    }
}

fn rows(decision: &Decision) -> Vec<CandidateShape<'_>> {
    decision
        .candidates
        .iter()
        .map(|row| CandidateShape::of(row, decision.cost_unit))
        .collect()
}

fn runner_up(decision: &Decision) -> Option<TargetShape<'_>> {
    let target = decision.runner_up?;
    let row = decision.candidates.iter().find(|row| row.target == target);
    Some(TargetShape::of(target, row.map(|row| &*row.name)))
}

#[derive(Serialize)]
struct CandidateShape<'a> {
    target: TargetShape<'a>,
    rank: u32,
    warm_tokens: WarmShape,
    predicted_cached_tokens: u32,
    uncached_tokens: u32,
    cache_source: &'static str,
    stream_state: Option<&'static str>,
    health: &'static str,
    load: LoadShape,
    cost: f64,
    cost_unit: &'static str,
    predicted_ttft_ms: Option<f64>,
    terms: TermsShape<'a>,
}

impl<'a> CandidateShape<'a> {
    fn of(row: &'a ScoredCandidate, unit: CostUnit) -> Self {
        let warm = row.warm_tokens;
        Self {
            target: TargetShape::of(row.target, Some(&row.name)),
            rank: row.rank,
            warm_tokens: WarmShape {
                device: warm.device,
                host: warm.host,
                disk: warm.disk,
                remote: warm.remote,
                speculative: warm.speculative,
            },
            predicted_cached_tokens: row.predicted_cached_tokens,
            uncached_tokens: row.uncached_tokens,
            cache_source: row.cache_source.as_str(),
            stream_state: row.stream_state,
            health: row.health,
            load: LoadShape {
                in_flight: row.load.in_flight,
                queued_prefill_tokens: row.load.queued_prefill_tokens,
                decode_sequences: row.load.decode_sequences,
                decode_blocks: row.load.decode_blocks,
            },
            cost: row.cost,
            cost_unit: unit.as_str(),
            predicted_ttft_ms: row.predicted_ttft_ms,
            terms: TermsShape(&row.terms),
        }
    }
}

#[derive(Serialize)]
struct WarmShape {
    device: u32,
    host: u32,
    disk: u32,
    remote: u32,
    speculative: u32,
}

#[derive(Serialize)]
struct LoadShape {
    in_flight: u32,
    queued_prefill_tokens: u64,
    decode_sequences: u32,
    decode_blocks: u64,
}

struct TermsShape<'a>(&'a Terms);

impl Serialize for TermsShape<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.0.iter() {
            map.serialize_entry(name, &value)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct ExcludedShape<'a> {
    target: TargetShape<'a>,
    reason: &'static str,
}

impl<'a> ExcludedShape<'a> {
    fn of(excluded: &'a ExcludedTarget) -> Self {
        Self {
            target: TargetShape::of(excluded.target, Some(&excluded.name)),
            reason: excluded.reason.as_str(),
        }
    }
}

#[derive(Serialize)]
struct PrefillShape<'a> {
    target: Option<TargetShape<'a>>,
    skipped: bool,
    reason: Option<&'static str>,
    ms: Option<f64>,
}

impl<'a> PrefillShape<'a> {
    fn of(note: &'a PrefillNote) -> Self {
        Self {
            target: note
                .target
                .as_ref()
                .map(|(target, name)| TargetShape::of(*target, Some(name))),
            skipped: note.skipped.is_some(),
            reason: note.skipped.map(PrefillSkip::as_str),
            ms: note.ms,
        }
    }
}

#[derive(Serialize)]
struct HoldShape {
    held_ms: f64,
    reason: Option<&'static str>,
}

#[derive(Serialize)]
struct ReservedShape {
    prefill_tokens: u32,
    decode_blocks: u32,
}

#[derive(Serialize)]
struct AttemptShape<'a> {
    n: u32,
    target: TargetShape<'a>,
    class: Option<&'static str>,
    result: &'static str,
    status: Option<u16>,
    ms: f64,
}

impl<'a> AttemptShape<'a> {
    fn of(attempt: &'a Attempt) -> Self {
        Self {
            n: attempt.n,
            target: TargetShape::of(attempt.target, Some(&attempt.name)),
            class: attempt.class.map(AttemptClass::as_str),
            result: attempt.result.as_str(),
            status: attempt.status,
            ms: attempt.ms,
        }
    }
}

impl Serialize for RouterTiming {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut shape = serializer.serialize_struct("Timing", 8)?;
        shape.serialize_field("accept", &self.accept)?;
        shape.serialize_field("cache", &self.cache)?;
        shape.serialize_field("render", &self.render)?;
        shape.serialize_field("tokenize", &self.tokenize)?;
        shape.serialize_field("hash", &self.hash)?;
        shape.serialize_field("lookup", &self.lookup)?;
        shape.serialize_field("decide", &self.decide)?;
        shape.serialize_field("total", &self.total)?;
        shape.end()
    }
}

#[derive(Serialize)]
struct OutcomeShape<'a> {
    kind: &'static str,
    status: Option<u16>,
    ttft_ms: Option<f64>,
    duration_ms: f64,
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    drift_tokens: Option<i64>,
    finish_reason: Option<&'a str>,
}

impl<'a> OutcomeShape<'a> {
    fn of(outcome: &'a RequestOutcome, decision: Option<&Decision>) -> Self {
        // The prediction is for the worker's own cache, and the tokens that it counts as cached
        // came from another one.
        let own = |decision: &&Decision| {
            decision
                .prefill
                .as_ref()
                .is_none_or(|note| note.skipped.is_some())
        };
        let predicted = decision
            .filter(own)
            .map(|decision| i64::from(decision.predicted_cached_tokens));
        Self {
            kind: outcome.kind.as_str(),
            status: outcome.status,
            ttft_ms: outcome.ttft_ms,
            duration_ms: outcome.duration_ms,
            prompt_tokens: outcome.prompt_tokens,
            completion_tokens: outcome.completion_tokens,
            cached_tokens: outcome.cached_tokens,
            drift_tokens: predicted
                .zip(outcome.cached_tokens)
                .map(|(predicted, cached)| predicted - i64::from(cached)),
            finish_reason: outcome.finish_reason.as_deref(),
        }
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
