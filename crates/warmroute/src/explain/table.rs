//! Formats a receipt for people.

use std::fmt::{Display, Write};

use api::{Candidate, Receipt, RequestOutcome, TargetName, TierTokens};

const HEADS: [&str; 11] = [
    "rank",
    "target",
    "warm",
    "device",
    "host",
    "disk",
    "remote",
    "expected",
    "to compute",
    "queued",
    "in flight",
];

/// Returns the receipt as a few lines and a table of its candidates.
pub(super) fn of(receipt: &Receipt<'_>) -> String {
    let mut out = String::new();
    head(&mut out, receipt);
    if let Some(first) = receipt.decision.candidates.first() {
        candidates(&mut out, receipt, &first.cost_unit);
    }
    verdict(&mut out, receipt);
    if let Some(outcome) = &receipt.outcome {
        ended(&mut out, outcome);
    }
    out
}

fn head(out: &mut String, receipt: &Receipt<'_>) {
    let kind = if receipt.request.dry_run {
        "dry run, nothing was sent"
    } else {
        "as it was decided"
    };
    let _ = writeln!(out, "decision  {} at {} ({kind})", receipt.id, receipt.at);
    let _ = writeln!(
        out,
        "model     {}, policy {}, method {}",
        receipt.request.model, receipt.decision.policy, receipt.decision.method
    );
    let prompt = &receipt.decision.prompt;
    let exact = if prompt.exact { "exact" } else { "estimated" };
    let _ = writeln!(
        out,
        "prompt    {} tokens ({exact}, from {}), {} blocks of {}",
        prompt.tokens,
        prompt.source,
        known(prompt.blocks),
        known(prompt.block_size)
    );
}

fn candidates(out: &mut String, receipt: &Receipt<'_>, unit: &str) {
    let rows = &receipt.decision.candidates;
    let mut heads = HEADS.map(str::to_owned).to_vec();
    heads.push(format!("cost ({unit})"));
    let mut table = vec![heads];
    table.extend(rows.iter().map(cells));
    let _ = writeln!(
        out,
        "\nPrompt tokens by tier, and what each candidate would cost:\n"
    );
    columns(out, &table);
    if receipt.decision.candidates_total > rows.len() {
        let _ = writeln!(
            out,
            "and {} more",
            receipt.decision.candidates_total - rows.len()
        );
    }
    let _ = writeln!(out);
    for row in rows.iter().filter(|row| !row.terms.0.is_empty()) {
        let terms = row.terms.0.iter();
        let terms: Vec<String> = terms
            .map(|(name, value)| format!("{name} {}", rounded(*value)))
            .collect();
        let _ = writeln!(out, "{}: {}", target(&row.target), terms.join(", "));
    }
}

fn cells(row: &Candidate<'_>) -> Vec<String> {
    let TierTokens {
        device,
        host,
        disk,
        remote,
        speculative,
    } = row.warm_tokens;
    let tiers = [device, host, disk, remote, speculative];
    let total: u64 = tiers.into_iter().map(u64::from).sum();
    let mut cells = vec![row.rank.to_string(), target(&row.target), total.to_string()];
    cells.extend(tiers.map(|tokens| tokens.to_string()));
    cells.push(row.uncached_tokens.to_string());
    cells.push(row.load.queued_prefill_tokens.to_string());
    cells.push(row.load.in_flight.to_string());
    cells.push(rounded(row.cost));
    cells
}

fn verdict(out: &mut String, receipt: &Receipt<'_>) {
    let row = |of: &Option<TargetName<'_>>| {
        let of = of.as_ref()?;
        receipt
            .decision
            .candidates
            .iter()
            .find(|row| row.target == *of)
    };
    let _ = writeln!(out);
    match row(&receipt.decision.winner) {
        None => {
            let _ = writeln!(out, "winner    none");
        }
        Some(winner) => {
            let unit = &winner.cost_unit;
            let _ = writeln!(
                out,
                "winner    {}: cost {} {unit}, {} cached tokens predicted",
                target(&winner.target),
                rounded(winner.cost),
                winner.predicted_cached_tokens
            );
            if let Some(other) = row(&receipt.decision.runner_up) {
                let _ = writeln!(
                    out,
                    "runner-up {}: would have cost {} {unit}, {} more",
                    target(&other.target),
                    rounded(other.cost),
                    rounded(other.cost - winner.cost)
                );
            }
        }
    }
    for excluded in &receipt.decision.excluded {
        let _ = writeln!(
            out,
            "excluded  {}: {}",
            target(&excluded.target),
            excluded.reason
        );
    }
    let rewritten = if receipt.rewrites.is_empty() {
        "nothing".to_owned()
    } else {
        receipt.rewrites.join(", ")
    };
    let _ = writeln!(out, "rewritten {rewritten}");
}

fn ended(out: &mut String, outcome: &RequestOutcome<'_>) {
    let _ = writeln!(
        out,
        "outcome   {} (status {}), first token after {} ms, {} cached tokens reported",
        outcome.kind,
        known(outcome.status),
        known(outcome.ttft_ms.map(rounded)),
        known(outcome.cached_tokens)
    );
}

/// Appends columns, right-aligned except the second one (names).
fn columns(out: &mut String, table: &[Vec<String>]) {
    let wide = |column: usize| {
        table
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    for row in table {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = wide(column).unwrap_or(0);
            if column == 1 {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// Returns `worker/rank`.
fn target(target: &TargetName<'_>) -> String {
    format!("{}/{}", known(target.worker.as_ref()), target.dp_rank)
}

/// Returns a value, or a dash.
fn known(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Rounds to the digits that a person compares.
fn rounded(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn row(rank: u32, worker: &str, warm: u64, cost: f64) -> Value {
        json!({
            "target": {"worker": worker, "dp_rank": 0}, "rank": rank,
            "warm_tokens": {"device": warm, "host": 16, "disk": 0, "remote": 0, "speculative": 0},
            "predicted_cached_tokens": warm + 16, "uncached_tokens": 80 - warm,
            "cache_source": "events", "stream_state": "live", "health": "ready",
            "load": {"in_flight": 1, "queued_prefill_tokens": 48, "decode_sequences": 1, "decode_blocks": 4},
            "cost": cost, "cost_unit": "blocks", "predicted_ttft_ms": null,
            "terms": {"prefill_blocks": 2.0, "decode_blocks": 9.125},
        })
    }

    /// A dry run with these candidates.
    fn receipt(candidates: &[Value]) -> Receipt<'static> {
        let receipt = json!({
            "schema": "warmroute.receipt/1", "id": "00000000000000a1", "at": "2026-11-20T17:41:09.123Z",
            "request_id": "r1", "tenant": "default", "dry_run": true, "route": "/v1/route", "model": "m",
            "stream": false, "priority": 0, "policy": "dynamo_cost", "method": "policy",
            "prompt": {
                "source": "tokens", "exact": true, "tokens": 81, "blocks": 5, "block_size": 16, "new_tokens": 81,
            },
            "candidates": candidates, "candidates_total": 3,
            "excluded": [{"target": {"worker": "w9", "dp_rank": 1}, "reason": "draining"}],
            "winner": {"worker": "w2", "dp_rank": 0}, "runner_up": {"worker": "worker-three", "dp_rank": 0},
            "hold": {"held_ms": 0.0, "reason": null}, "reserved": {"prefill_tokens": 0, "decode_blocks": 0},
            "attempts": [], "timing_us": {
                "accept": 0.0, "cache": 0.0, "render": 0.0, "tokenize": 0.0, "hash": 0.0, "lookup": 0.0,
                "decide": 0.0, "total": 0.0,
            },
            "rewrites": [], "outcome": null,
        });
        serde_json::from_value(receipt).expect("a receipt")
    }

    #[test]
    fn winner_runner_up_and_the_reasons_against_the_others_are_told() {
        let shown = of(&receipt(&[
            row(1, "w2", 0, 10.0),
            row(2, "worker-three", 48, 11.125),
        ]));
        let has = |line: &str| {
            assert!(
                shown.lines().any(|it| it == line),
                "no line {line:?} in\n{shown}"
            )
        };
        has("decision  00000000000000a1 at 2026-11-20T17:41:09.123Z (dry run, nothing was sent)");
        has("prompt    81 tokens (exact, from tokens), 5 blocks of 16");
        has(
            "   1  w2/0              16       0    16     0       0         0          80      48          1             10",
        );
        has(
            "   2  worker-three/0    64      48    16     0       0         0          32      48          1          11.12",
        );
        has("and 1 more");
        has("worker-three/0: prefill_blocks 2, decode_blocks 9.12");
        has("winner    w2/0: cost 10 blocks, 16 cached tokens predicted");
        has("runner-up worker-three/0: would have cost 11.12 blocks, 1.12 more");
        has("excluded  w9/1: draining");
        has("rewritten nothing");
    }

    #[test]
    fn unknown_values_are_dashes() {
        let mut refused = receipt(&[]);
        (refused.decision.winner, refused.decision.runner_up) = (None, None);
        refused.decision.prompt.blocks = None;
        refused.outcome = Some(RequestOutcome {
            kind: "shed".into(),
            status: Some(503),
            ttft_ms: None,
            duration_ms: 1.0,
            prompt_tokens: None,
            completion_tokens: None,
            cached_tokens: None,
            drift_tokens: None,
            finish_reason: None,
        });
        let shown = of(&refused);
        assert!(
            shown.contains("tokens (exact, from tokens), - blocks of 16"),
            "{shown}"
        );
        assert!(shown.contains("winner    none"), "{shown}");
        assert!(
            shown.contains("outcome   shed (status 503), first token after - ms"),
            "{shown}"
        );
    }
}
