//! Formats a receipt for people.

use std::fmt::Write;

use serde_json::Value;

const TIERS: [&str; 5] = ["device", "host", "disk", "remote", "speculative"];

/// Returns the receipt as a few lines and a table of its candidates.
pub(super) fn of(receipt: &Value) -> String {
    let mut out = String::new();
    head(&mut out, receipt);
    candidates(&mut out, receipt);
    verdict(&mut out, receipt);
    out
}

fn head(out: &mut String, receipt: &Value) {
    let kind = if receipt["dry_run"] == true {
        "dry run, nothing was sent"
    } else {
        "as it was decided"
    };
    let _ = writeln!(
        out,
        "decision  {} at {} ({kind})",
        text(&receipt["id"]),
        text(&receipt["at"])
    );
    let _ = writeln!(
        out,
        "model     {}, policy {}, method {}",
        text(&receipt["model"]),
        text(&receipt["policy"]),
        text(&receipt["method"])
    );
    let prompt = &receipt["prompt"];
    let exact = if prompt["exact"] == true {
        "exact"
    } else {
        "estimated"
    };
    let _ = writeln!(
        out,
        "prompt    {} tokens ({exact}, from {}), {} blocks of {}",
        text(&prompt["tokens"]),
        text(&prompt["source"]),
        text(&prompt["blocks"]),
        text(&prompt["block_size"])
    );
}

fn candidates(out: &mut String, receipt: &Value) {
    let rows = list(&receipt["candidates"]);
    let Some(unit) = rows.first().map(|row| text(&row["cost_unit"])) else {
        return;
    };
    let mut table = vec![
        [
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
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    table[0].push(format!("cost ({unit})"));
    for row in rows {
        let (warm, load) = (&row["warm_tokens"], &row["load"]);
        let total: u64 = TIERS.iter().filter_map(|tier| warm[*tier].as_u64()).sum();
        let mut cells = vec![
            text(&row["rank"]),
            target(&row["target"]),
            total.to_string(),
        ];
        cells.extend(TIERS.iter().map(|tier| text(&warm[*tier])));
        cells.push(text(&row["uncached_tokens"]));
        cells.push(text(&load["queued_prefill_tokens"]));
        cells.push(text(&load["in_flight"]));
        cells.push(number(&row["cost"]));
        table.push(cells);
    }
    let _ = writeln!(
        out,
        "\nPrompt tokens by tier, and what each candidate would cost:\n"
    );
    columns(out, &table);
    let shown = rows.len() as u64;
    if let Some(total) = receipt["candidates_total"]
        .as_u64()
        .filter(|total| *total > shown)
    {
        let _ = writeln!(out, "and {} more", total - shown);
    }
    let _ = writeln!(out);
    for row in rows {
        let terms: Vec<String> = row["terms"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| format!("{name} {}", number(value)))
            .collect();
        if !terms.is_empty() {
            let _ = writeln!(out, "{}: {}", target(&row["target"]), terms.join(", "));
        }
    }
}

fn verdict(out: &mut String, receipt: &Value) {
    let rows = list(&receipt["candidates"]);
    let row = |of: &Value| rows.iter().find(|row| row["target"] == *of);
    let _ = writeln!(out);
    match row(&receipt["winner"]) {
        None => {
            let _ = writeln!(out, "winner    none");
        }
        Some(winner) => {
            let unit = text(&winner["cost_unit"]);
            let _ = writeln!(
                out,
                "winner    {}: cost {} {unit}, {} cached tokens predicted",
                target(&winner["target"]),
                number(&winner["cost"]),
                text(&winner["predicted_cached_tokens"])
            );
            if let Some(other) = row(&receipt["runner_up"]) {
                let more = other["cost"]
                    .as_f64()
                    .zip(winner["cost"].as_f64())
                    .map(|(other, winner)| other - winner);
                let _ = writeln!(
                    out,
                    "runner-up {}: would have cost {} {unit}, {} more",
                    target(&other["target"]),
                    number(&other["cost"]),
                    more.map_or_else(|| "?".to_owned(), rounded)
                );
            }
        }
    }
    for excluded in list(&receipt["excluded"]) {
        let _ = writeln!(
            out,
            "excluded  {}: {}",
            target(&excluded["target"]),
            text(&excluded["reason"])
        );
    }
    let rewrites: Vec<String> = list(&receipt["rewrites"]).iter().map(text).collect();
    let rewritten = if rewrites.is_empty() {
        "nothing".to_owned()
    } else {
        rewrites.join(", ")
    };
    let _ = writeln!(out, "rewritten {rewritten}");
    let outcome = &receipt["outcome"];
    if outcome.is_object() {
        let _ = writeln!(
            out,
            "outcome   {} (status {}), first token after {} ms, {} cached tokens reported",
            text(&outcome["kind"]),
            text(&outcome["status"]),
            number(&outcome["ttft_ms"]),
            text(&outcome["cached_tokens"])
        );
    }
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
fn target(target: &Value) -> String {
    format!("{}/{}", text(&target["worker"]), text(&target["dp_rank"]))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns a value without quotes; a dash for an unknown value.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn number(value: &Value) -> String {
    value.as_f64().map_or_else(|| text(value), rounded)
}

/// Rounds to the digits that a person compares.
fn rounded(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(rank: u32, worker: &str, warm: u64, cost: f64) -> Value {
        json!({
            "target": {"worker": worker, "dp_rank": 0}, "rank": rank,
            "warm_tokens": {"device": warm, "host": 16, "disk": 0, "remote": 0, "speculative": 0},
            "predicted_cached_tokens": warm + 16, "uncached_tokens": 80 - warm,
            "load": {"in_flight": 1, "queued_prefill_tokens": 48, "decode_sequences": 1, "decode_blocks": 4},
            "cost": cost, "cost_unit": "blocks", "terms": {"prefill_blocks": 2.0, "decode_blocks": 9.125},
        })
    }

    #[test]
    fn winner_runner_up_and_the_reasons_against_the_others_are_told() {
        let receipt = json!({
            "id": "00000000000000a1", "at": "2026-11-20T17:41:09.123Z", "dry_run": true, "model": "m",
            "policy": "dynamo_cost", "method": "policy",
            "prompt": {"source": "tokens", "exact": true, "tokens": 81, "blocks": 5, "block_size": 16},
            "candidates": [row(1, "w2", 0, 10.0), row(2, "worker-three", 48, 11.125)], "candidates_total": 3,
            "excluded": [{"target": {"worker": "w9", "dp_rank": 1}, "reason": "draining"}],
            "winner": {"worker": "w2", "dp_rank": 0}, "runner_up": {"worker": "worker-three", "dp_rank": 0},
            "rewrites": [], "outcome": null,
        });
        let shown = of(&receipt);
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
    fn what_is_missing_shows_as_unknown() {
        let shown = of(&json!({"winner": null, "outcome": {"kind": "shed", "status": 503}}));
        assert!(shown.contains("winner    none"), "{shown}");
        assert!(
            shown.contains("outcome   shed (status 503), first token after - ms"),
            "{shown}"
        );
    }
}
