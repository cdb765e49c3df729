//! `--fit FILE`: fits the engines' profile to the decision log of a router in front of them.

use std::{collections::HashMap, path::Path};

use engine_model::Profile;
use simulate::{FitResult, ServedRequest};

use crate::{decision_record::DecisionRecord, text_file};

/// Returns the profile fitted to a log; an error message if the log has too little data.
pub(super) fn read(path: &Path, base: &Profile) -> Result<FitResult, String> {
    let text = text_file::read(path).map_err(|error| error.to_string())?;
    simulate::fit(&served(&text), base).map_err(|error| error.to_string())
}

/// Returns the requests of a log that one engine served in one attempt. Other lines are skipped,
/// and so are lines that cannot be parsed, such as one that was cut when the disk was full.
fn served(text: &str) -> Vec<ServedRequest> {
    let mut engines = HashMap::new();
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<DecisionRecord>(line).ok());
    lines
        .filter_map(|line| {
            let (winner, outcome) = (line.winner.as_ref()?, line.outcome.as_ref()?);
            let here = line.attempts.len() <= 1
                && line.prefill.as_ref().is_none_or(|prefill| prefill.skipped);
            if !here || !matches!(&*outcome.kind, "ok" | "client_gone") {
                return None;
            }
            let arrival_ms = line.arrival_ms(outcome)?;
            let prompt_tokens = outcome.prompt_tokens.unwrap_or(line.prompt.tokens);
            let cached_tokens = line
                .cached_tokens(outcome)
                .filter(|cached| *cached <= prompt_tokens);
            let next = engines.len();
            Some(ServedRequest {
                engine: *engines.entry(winner.clone()).or_insert(next),
                sent_ms: arrival_ms + line.total_ms(),
                // The time depends on the cached tokens, so it counts only if their number is
                // known.
                first_token_ms: outcome
                    .ttft_ms
                    .filter(|_| cached_tokens.is_some())
                    .map(|ms| arrival_ms + ms),
                end_ms: arrival_ms + outcome.duration_ms,
                prompt_tokens,
                cached_tokens: cached_tokens.unwrap_or(0),
                output_tokens: outcome.completion_tokens,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn line(change: impl FnOnce(&mut Value)) -> String {
        let mut line = json!({
            "at": "2026-11-20T17:41:10.500Z", "model": "m", "lora": null,
            "prompt": {"source": "tokens", "tokens": 40, "block_size": 16}, "winner": {"worker": "w1", "dp_rank": 0},
            "prefill": null, "hold": {"held_ms": 30.0, "reason": "busy"}, "timing_us": {"decide": 5.0, "total": 2000.0},
            "attempts": [{"n": 1}],
            "outcome": {
                "kind": "ok", "status": 200, "ttft_ms": 250.0, "duration_ms": 900.0, "prompt_tokens": 41,
                "completion_tokens": 7, "cached_tokens": 16,
            },
        });
        change(&mut line);
        line.to_string()
    }

    #[test]
    fn a_request_is_sent_when_it_has_been_looked_at_and_held() {
        let log = [
            line(|_| ()),
            line(|line| line["winner"]["worker"] = json!("w2")),
            line(|line| line["winner"]["dp_rank"] = json!(1)),
            line(|line| line["outcome"]["cached_tokens"] = Value::Null),
            line(|line| {
                let row = |worker, tokens| json!({"target": {"worker": worker, "dp_rank": 0}, "predicted_cached_tokens": tokens});
                line["outcome"]["cached_tokens"] = Value::Null;
                line["candidates"] = json!([row("w2", 0), row("w1", 32)]);
            }),
        ];
        let served = served(&log.join("\n"));
        let first = &served[0];
        let since = |ms: f64| ms - (first.sent_ms - 32.0);
        assert_eq!(
            (
                since(first.sent_ms),
                first.first_token_ms.map(since),
                since(first.end_ms)
            ),
            (32.0, Some(250.0), 900.0)
        );
        assert_eq!(
            (
                first.prompt_tokens,
                first.cached_tokens,
                first.output_tokens
            ),
            (41, 16, Some(7))
        );
        assert_eq!(
            served.iter().map(|one| one.engine).collect::<Vec<_>>(),
            [0, 1, 2, 0, 0]
        );
        assert_eq!(
            served[3].first_token_ms, None,
            "nobody told what was computed"
        );
        assert_eq!(
            (served[4].first_token_ms, served[4].cached_tokens),
            (first.first_token_ms, 32),
            "as was expected"
        );
    }

    #[test]
    fn what_was_tried_twice_or_on_two_engines_or_got_no_reply_is_skipped() {
        let log = [
            line(|line| line["attempts"] = json!([{"n": 1}, {"n": 2}])),
            line(|line| {
                line["prefill"] =
                    json!({"target": null, "skipped": false, "reason": null, "ms": 3.0})
            }),
            line(|line| line["outcome"]["kind"] = json!("upstream_error")),
            line(|line| line["outcome"] = Value::Null),
            line(|line| line["winner"] = Value::Null),
            line(|line| line["at"] = json!("yesterday")),
            r#"{"at": "2026"#.to_owned(),
            line(|line| {
                line["prefill"] = json!({"target": null, "skipped": true, "reason": "under_threshold", "ms": null})
            }),
        ];
        assert_eq!(served(&log.join("\n")).len(), 1, "the last one");
    }
}
