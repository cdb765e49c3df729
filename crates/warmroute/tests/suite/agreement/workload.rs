//! One workload in two forms: a trace for the simulator, prompts of token ids for engines.

use kv_blocks::BlockSize;
use serde_json::{Value, json};
use simulate::{Synthetic, Trace};

/// Tokens of a block in the trace and on the engines.
pub(crate) const BLOCK: u32 = 16;

/// The requests in the order of their arrival.
pub(crate) struct AgreementWorkload {
    lines: Vec<Value>,
}

impl AgreementWorkload {
    /// The requests of a synthetic workload that arrive in the first `seconds` seconds.
    pub(crate) fn of(name: &str, seconds: u64) -> Self {
        let synthetic: Synthetic = name.parse().unwrap();
        let text = synthetic.text(block_size()).unwrap();
        let mut lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        lines.sort_by_key(at_ms);
        lines.retain(|line| at_ms(line) < seconds * 1000);
        // The simulator spreads arrivals with equal times; this player does not.
        for next in 1..lines.len() {
            let earliest = at_ms(&lines[next - 1]) + 1;
            lines[next]["timestamp"] = json!(at_ms(&lines[next]).max(earliest));
        }
        Self { lines }
    }

    /// The same requests, far enough apart that no two overlap.
    pub(crate) fn one_by_one(mut self) -> Self {
        for (index, line) in self.lines.iter_mut().enumerate() {
            line["timestamp"] = json!(index * 1_000_000);
        }
        self
    }

    pub(crate) fn trace(&self) -> Trace {
        let lines: Vec<String> = self.lines.iter().map(Value::to_string).collect();
        Trace::read(&lines.join("\n"), block_size()).unwrap()
    }

    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Milliseconds from the first arrival to this one.
    pub(crate) fn arrival_ms(&self, request: usize) -> u64 {
        at_ms(&self.lines[request]) - at_ms(&self.lines[0])
    }

    /// The body of a request for a streamed completion of exactly this length.
    pub(crate) fn body(&self, request: usize) -> Value {
        let line = &self.lines[request];
        json!({
            "model": "sim", "prompt": tokens(line), "max_tokens": line["output_length"], "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        })
    }
}

fn block_size() -> BlockSize {
    BlockSize::new(u64::from(BLOCK)).unwrap()
}

fn at_ms(line: &Value) -> u64 {
    line["timestamp"].as_u64().unwrap()
}

/// Blocks with the same id have the same tokens; different blocks share no token.
fn tokens(line: &Value) -> Vec<u64> {
    let length = usize::try_from(line["input_length"].as_u64().unwrap()).unwrap();
    let blocks = line["hash_ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap());
    blocks
        .flat_map(|id| (0..u64::from(BLOCK)).map(move |index| id * u64::from(BLOCK) + index))
        .take(length)
        .collect()
}
