//! One line of a trace as a request.

use std::sync::Arc;

use kv_blocks::{BlockSize, EngineHash, HashScheme, PromptBlocks, SequenceHash};
use serde_json::{Map, Value};

use super::{SessionTurn, TraceError, TraceRequest};

/// Conversion of ids into hashes. Any scheme would do: the simulated engines and the router's index
/// share one.
const SCHEME: HashScheme = HashScheme::Xxh3 {
    seed: 0x74_72_61_63_65,
};

/// Longest accepted prompt or reply, in tokens: beyond any model.
const LONGEST: u64 = 1 << 24;

/// Largest `timestamp`, in ms: a year.
const LATEST_MS: f64 = 366.0 * 86_400_000.0;

/// Longest piece of a trace in an error.
const SHOWN: usize = 60;

/// Parses one line, with at most `free_blocks` blocks.
pub(super) fn request(
    line: usize,
    text: &str,
    size: BlockSize,
    free_blocks: &mut usize,
) -> Result<TraceRequest, TraceError> {
    let fields: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| TraceError::NotJson {
            line,
            problem: error.to_string(),
        })?;
    let fields = LineFields {
        line,
        fields: &fields,
    };
    let timestamp_ms = fields.read("timestamp", "milliseconds, from 0 to a year", |value| {
        value.as_f64().filter(|ms| (0.0..=LATEST_MS).contains(ms))
    })?;
    let prompt_tokens = fields.tokens("input_length")?;
    let output_tokens = fields.tokens("output_length")?;
    let ids = fields.read(
        "hash_ids",
        "an array of whole numbers, one for each block",
        |value| {
            value
                .as_array()?
                .iter()
                .map(Value::as_u64)
                .collect::<Option<Vec<u64>>>()
        },
    )?;
    let blocks = prompt_tokens.div_ceil(size.tokens()) as usize;
    *free_blocks = free_blocks
        .checked_sub(blocks)
        .ok_or(TraceError::TooManyBlocks { line })?;
    let hashes = chain(line, &ids, blocks);
    let whole = size.whole_blocks(prompt_tokens) as usize;
    Ok(TraceRequest {
        arrival_s: timestamp_ms / 1e3,
        prompt_tokens,
        output_tokens,
        names: hashes.iter().map(|hash| EngineHash(hash.0)).collect(),
        blocks: Arc::new(PromptBlocks::of_chain(SCHEME, size, hashes[..whole].into())),
        turn: fields
            .fields
            .get("session")
            .and_then(Value::as_u64)
            .map(|session| SessionTurn { session, number: 0 }),
        tenant: fields.fields.get("tenant").and_then(Value::as_u64),
    })
}

/// Returns the hashes of this many blocks. Further ids are ignored; blocks without an id are shared
/// with no other request.
fn chain(line: usize, ids: &[u64], blocks: usize) -> Vec<SequenceHash> {
    let words = |kind: u64, number: u64| [kind, number].map(u64::to_le_bytes).concat();
    let own = |block: usize| words(1 + line as u64, block as u64);
    let mut parent = None;
    (0..blocks)
        .map(|block| {
            let identity = ids
                .get(block)
                .map_or_else(|| own(block), |id| words(0, *id));
            let tokens: Vec<u32> = identity
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                .collect();
            let hash = SCHEME.extend(parent, &tokens);
            parent = Some(hash);
            hash
        })
        .collect()
}

/// The fields of one line.
struct LineFields<'a> {
    line: usize,
    fields: &'a Map<String, Value>,
}

impl LineFields<'_> {
    fn tokens(&self, field: &'static str) -> Result<u32, TraceError> {
        self.read(field, "tokens, from 1 to 2^24", |value| {
            value
                .as_u64()
                .filter(|tokens| (1..=LONGEST).contains(tokens))
                .and_then(|tokens| tokens.try_into().ok())
        })
    }

    fn read<T>(
        &self,
        field: &'static str,
        expected: &'static str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, TraceError> {
        let value = self.fields.get(field);
        value.and_then(convert).ok_or_else(|| TraceError::BadField {
            line: self.line,
            field,
            found: value.map_or_else(|| "missing".to_owned(), shown),
            expected,
        })
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}
