//! Turns a decision log into a workload: arrival times, lengths of prompts and replies, shared
//! blocks.

use std::fmt::Write;

use kv_blocks::BlockSize;
use serde::Serialize;
use serde_json::{Value, json};

use crate::decision_record::{DecisionRecord, RecordedOutcome};

/// Playable part of a log.
#[derive(Debug)]
pub(super) struct RecordedTrace {
    /// One request a line, in the layout that the simulator reads.
    pub(super) lines: String,
    /// Block size of every prompt.
    pub(super) block_size: BlockSize,
    /// Recorded results of the requests.
    pub(super) recorded: RecordedResults,
}

/// Recorded results of the requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct RecordedResults {
    /// Requests that are played.
    pub(super) requests: usize,
    /// Lines that are skipped: not a receipt of an answered request, no chain, or another block
    /// size.
    pub(super) skipped: usize,
    /// Requests with an unknown reply length: the mean of the others is used.
    pub(super) replies_of_unknown_length: usize,
    /// Share of the prompts' tokens that engines reported as cached; `None` if none did.
    pub(super) token_hit_ratio: Option<f64>,
    /// Mean time to the first token, of those that streamed.
    pub(super) ttft_mean_ms: Option<f64>,
}

/// Reason why a log cannot be played.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnplayableLog {
    #[error(
        "none of its {lines} lines has a chain, so nothing says which prompts have their beginnings in common: set \
         decisions.log.chains: true and record anew"
    )]
    NoChains { lines: usize },
    #[error(
        "there is no receipt of a request that got its reply in it: expected the file of decisions.log.path"
    )]
    Nothing,
}

/// One request.
#[derive(Debug)]
struct RecordedRequest {
    /// The fields of the line that name its model.
    model: [Value; 2],
    arrival_ms: f64,
    prompt_tokens: u32,
    reply_tokens: Option<u32>,
    ids: Vec<u64>,
}

/// Reads a log. A line that cannot be parsed, such as one that was cut when the disk was full, is
/// skipped and counted.
pub(super) fn read(text: &str) -> Result<RecordedTrace, UnplayableLog> {
    let mut recorded = RecordedResults::default();
    let mut requests = Vec::new();
    let mut models: Vec<(String, Option<String>)> = Vec::new();
    let mut block_size = None;
    let (mut receipts, mut chains, mut figures) = (0, 0, RequestSums::default());
    for text in text.lines().filter(|line| !line.trim().is_empty()) {
        let line = serde_json::from_str::<DecisionRecord>(text)
            .ok()
            .filter(|line| line.winner.is_some());
        let Some((line, outcome)) =
            line.and_then(|mut line| line.outcome.take().map(|outcome| (line, outcome)))
        else {
            recorded.skipped += 1;
            continue;
        };
        receipts += 1;
        chains += usize::from(line.chain.is_some());
        let size = line
            .prompt
            .block_size
            .and_then(|size| BlockSize::new(size).ok());
        match (size, request(&line, &outcome, &mut models)) {
            (Some(size), Some(request)) if *block_size.get_or_insert(size) == size => {
                figures.add(&outcome);
                requests.push(request);
            }
            _ => recorded.skipped += 1,
        }
    }
    let Some(block_size) = block_size else {
        return Err(if receipts > 0 && chains == 0 {
            UnplayableLog::NoChains { lines: receipts }
        } else {
            UnplayableLog::Nothing
        });
    };
    recorded.requests = requests.len();
    recorded.replies_of_unknown_length = requests
        .iter()
        .filter(|request| request.reply_tokens.is_none())
        .count();
    figures.write_to(&mut recorded);
    Ok(RecordedTrace {
        lines: lines(&requests),
        block_size,
        recorded,
    })
}

/// Returns the request of a line; `None` if it cannot be played.
fn request(
    line: &DecisionRecord,
    outcome: &RecordedOutcome,
    models: &mut Vec<(String, Option<String>)>,
) -> Option<RecordedRequest> {
    if !matches!(&*outcome.kind, "ok" | "client_gone") || line.prompt.tokens == 0 {
        return None;
    }
    let chain = line
        .chain
        .as_ref()?
        .iter()
        .map(|hash| u64::from_str_radix(hash, 16).ok());
    // Equal tokens have equal hashes, also under different models, whose caches have nothing in
    // common.
    let namespace = (line.model.clone(), line.lora.clone());
    let number = models
        .iter()
        .position(|known| *known == namespace)
        .unwrap_or_else(|| {
            models.push(namespace);
            models.len() - 1
        });
    let apart = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Some(RecordedRequest {
        model: [Some(&line.model), line.served_model.as_ref()]
            .map(|name| json!(name.filter(|name| !name.is_empty()))),
        arrival_ms: line.arrival_ms(outcome)?,
        prompt_tokens: line.prompt.tokens,
        reply_tokens: outcome.completion_tokens.filter(|tokens| *tokens > 0),
        ids: chain
            .map(|hash| Some(hash? ^ apart))
            .collect::<Option<_>>()?,
    })
}

/// Writes the layout that the simulator reads, with times from the first arrival on.
fn lines(requests: &[RecordedRequest]) -> String {
    let first_ms = requests
        .iter()
        .map(|request| request.arrival_ms)
        .fold(f64::INFINITY, f64::min);
    let known: Vec<u32> = requests
        .iter()
        .filter_map(|request| request.reply_tokens)
        .collect();
    let sum: u64 = known.iter().copied().map(u64::from).sum();
    let mean = sum.checked_div(known.len() as u64).unwrap_or(1).max(1);
    let mut lines = String::new();
    for request in requests {
        let reply = request.reply_tokens.map_or(mean, u64::from);
        let arrival_ms = request.arrival_ms - first_ms;
        let [model, served_model] = &request.model;
        // Writing into a String does not fail.
        let _ = writeln!(
            lines,
            r#"{{"timestamp":{arrival_ms},"model":{model},"served_model":{served_model},"input_length":{},"output_length":{reply},"hash_ids":{:?}}}"#,
            request.prompt_tokens, request.ids
        );
    }
    lines
}

/// Sums over the requests that are played.
#[derive(Debug, Default)]
struct RequestSums {
    cached_tokens: u64,
    of_tokens: u64,
    ttft_ms: f64,
    streamed: u32,
}

impl RequestSums {
    fn add(&mut self, outcome: &RecordedOutcome) {
        if let Some((cached, of)) = outcome.cached_tokens.zip(outcome.prompt_tokens) {
            self.cached_tokens += u64::from(cached);
            self.of_tokens += u64::from(of);
        }
        if let Some(ttft_ms) = outcome.ttft_ms {
            self.ttft_ms += ttft_ms;
            self.streamed += 1;
        }
    }

    fn write_to(&self, recorded: &mut RecordedResults) {
        recorded.token_hit_ratio =
            (self.of_tokens > 0).then(|| self.cached_tokens as f64 / self.of_tokens as f64);
        recorded.ttft_mean_ms =
            (self.streamed > 0).then(|| self.ttft_ms / f64::from(self.streamed));
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn line(second: u32, chain: Option<&[&str]>, change: impl FnOnce(&mut Value)) -> String {
        let mut line = json!({
            "schema": "warmroute.receipt/1", "at": format!("2026-11-20T17:41:{second:02}.500Z"), "model": "m",
            "lora": null, "prompt": {"source": "tokens", "tokens": 40, "block_size": 16, "new_tokens": 40},
            "winner": {"worker": "w1", "dp_rank": 0},
            "outcome": {
                "kind": "ok", "status": 200, "ttft_ms": 250.0, "duration_ms": 900.0, "prompt_tokens": 40,
                "completion_tokens": 7, "cached_tokens": 10, "drift_tokens": 0, "finish_reason": "stop",
            },
        });
        if let Some(chain) = chain {
            line["chain"] = json!(chain);
        }
        change(&mut line);
        line.to_string()
    }

    const CHAIN: Option<&[&str]> = Some(&["00000000000000aa", "ffffffffffffffff"]);

    fn played(log: &str) -> Vec<Value> {
        read(log)
            .unwrap()
            .lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    #[contract("V43")]
    fn receipts_become_requests_with_the_time_they_came_at() {
        let log = [
            line(10, CHAIN, |_| ()),
            line(12, CHAIN, |line| line["outcome"]["ttft_ms"] = Value::Null),
            line(11, CHAIN, |line| {
                line["outcome"]["completion_tokens"] = Value::Null
            }),
        ];
        let requests = played(&log.join("\n"));
        let of = |key: &str| {
            requests
                .iter()
                .map(|request| request[key].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of("timestamp"),
            [json!(0), json!(1350), json!(1000)],
            "a whole reply's receipt comes at its end"
        );
        assert_eq!(
            (of("input_length"), of("output_length")),
            (vec![json!(40); 3], vec![json!(7); 3])
        );
        assert_eq!(requests[0]["hash_ids"], json!([0xaa, u64::MAX]));
        let recorded = read(&log.join("\n")).unwrap().recorded;
        assert_eq!(
            (
                recorded.requests,
                recorded.skipped,
                recorded.replies_of_unknown_length
            ),
            (3, 0, 1)
        );
        assert_eq!(
            (recorded.token_hit_ratio, recorded.ttft_mean_ms),
            (Some(0.25), Some(250.0))
        );
    }

    #[test]
    fn what_cannot_be_played_is_left_out_and_counted() {
        let log = [
            line(10, CHAIN, |_| ()),
            line(10, None, |_| ()),
            line(10, CHAIN, |line| line["prompt"]["block_size"] = json!(32)),
            line(10, CHAIN, |line| {
                line["outcome"]["kind"] = json!("upstream_error")
            }),
            line(10, CHAIN, |line| line["outcome"] = Value::Null),
            line(10, CHAIN, |line| line["winner"] = Value::Null),
            line(10, CHAIN, |line| line["at"] = json!("yesterday")),
            line(10, Some(&["no hash"]), |_| ()),
            r#"{"schema": "warmroute.rec"#.to_owned(),
            String::new(),
        ];
        let recorded = read(&log.join("\n")).unwrap().recorded;
        assert_eq!((recorded.requests, recorded.skipped), (1, 8));
    }

    #[test]
    fn a_request_has_the_model_of_its_receipt_and_that_ones_base() {
        let log = [
            line(10, CHAIN, |_| ()),
            line(10, CHAIN, |line| {
                line["model"] = json!("a \"quoted\" name");
                line["served_model"] = json!("base");
            }),
        ];
        let text = read(&log.join("\n")).unwrap().lines;
        let trace = simulate::Trace::read(&text, BlockSize::new(16).unwrap()).unwrap();
        let models: Vec<[&str; 2]> = (trace.requests.iter())
            .filter_map(|request| request.model.as_ref())
            .map(|model| [&*model.id, &*model.base])
            .collect();
        assert_eq!(models, [["m", "m"], ["a \"quoted\" name", "base"]]);
    }

    #[test]
    fn models_and_adapters_have_nothing_in_common() {
        let red = |line: &mut Value| line["lora"] = json!("red");
        let other = |line: &mut Value| line["model"] = json!("n");
        let log = [
            line(10, CHAIN, |_| ()),
            line(10, CHAIN, red),
            line(10, CHAIN, other),
            line(10, CHAIN, red),
        ];
        let ids: Vec<Value> = played(&log.join("\n"))
            .iter()
            .map(|request| request["hash_ids"][0].clone())
            .collect();
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
        assert_eq!(ids[1], ids[3]);
    }

    #[test]
    #[contract("V43")]
    fn a_log_without_chains_says_what_to_set() {
        let problem = read(&line(10, None, |_| ())).unwrap_err();
        assert_eq!(problem, UnplayableLog::NoChains { lines: 1 });
        assert!(problem.to_string().contains("decisions.log.chains: true"));
        for nothing in ["", "\n", "[1]\n{}"] {
            assert_eq!(read(nothing).unwrap_err(), UnplayableLog::Nothing);
        }
    }
}
