//! One line of a trace as a request.

use std::{sync::Arc, time::Duration};

use kv_blocks::{BlockSize, EngineHash, HashScheme, PromptBlocks, SequenceHash};
use serde_json::{Map, Value};

use super::{SessionTurn, TraceError, TraceModel, TraceRequest};

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
    let names: Arc<[EngineHash]> = (chain(line, &ids, blocks).iter())
        .map(|hash| EngineHash(hash.0))
        .collect();
    Ok(TraceRequest {
        arrival_s: timestamp_ms / 1e3,
        prompt_tokens,
        output_tokens,
        blocks: whole_blocks(size, prompt_tokens, &names),
        names,
        turn: session(fields.fields).map(|session| SessionTurn { session, number: 0 }),
        pause: pause(fields.fields),
        tenant: fields.fields.get("tenant").and_then(Value::as_u64),
        model: fields.model()?,
    })
}

/// Returns the whole blocks of a prompt whose blocks have these names.
pub(crate) fn whole_blocks(
    size: BlockSize,
    prompt_tokens: u32,
    names: &[EngineHash],
) -> Arc<PromptBlocks> {
    let whole = size.whole_blocks(prompt_tokens) as usize;
    let chain = names.iter().take(whole).map(|name| SequenceHash(name.0));
    Arc::new(PromptBlocks::of_chain(SCHEME, size, chain.collect()))
}

/// Returns the number of the request's session: `session`, or a hash of the text in `session_id`.
fn session(fields: &Map<String, Value>) -> Option<u64> {
    let number = |name: &str| fields.get(name).and_then(Value::as_u64);
    number("session")
        .or_else(|| number("session_id"))
        .or_else(|| {
            let name = fields.get("session_id")?.as_str()?;
            let characters: Vec<u32> = name.chars().map(u32::from).collect();
            Some(SCHEME.extend(None, &characters).0)
        })
}

/// Returns the time from the end of the session's reply before it: `delay`, in ms.
fn pause(fields: &Map<String, Value>) -> Option<Duration> {
    let ms = fields.get("delay")?.as_f64()?;
    let ms = Some(ms).filter(|ms| (0.0..=LATEST_MS).contains(ms))?;
    Some(Duration::from_secs_f64(ms / 1e3))
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

    /// Returns the model: `model`, which `served_model` is the base of.
    fn model(&self) -> Result<Option<TraceModel>, TraceError> {
        let Some(id) = self.name("model")? else {
            return Ok(None);
        };
        let base = self.name("served_model")?;
        Ok(Some(TraceModel {
            base: base.unwrap_or_else(|| Arc::clone(&id)),
            id,
        }))
    }

    /// Returns the name of a model; `None` if there is none.
    fn name(&self, field: &'static str) -> Result<Option<Arc<str>>, TraceError> {
        if matches!(self.fields.get(field), None | Some(Value::Null)) {
            return Ok(None);
        }
        self.read(field, "the name of a model", |value| {
            let name = value.as_str().filter(|name| !name.is_empty())?;
            Some(Arc::<str>::from(name))
        })
        .map(Some)
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
