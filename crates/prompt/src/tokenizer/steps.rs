//! Limits of a tokenizer's steps: their effect on a text's length, and their number.
//!
//! **Invariant**: accepted steps make a text longer by a bounded factor.

use base64::Engine as _;
use serde_json::{Map, Value};

use super::unique_keys::UniqueKeys;

/// Maximum number of steps, patterns and special tokens of all stages, nested ones included. Real
/// tokenizers have some hundred.
const MAX_NODES: usize = 8_192;

/// Maximum nesting of steps.
const MAX_DEPTH: usize = 16;

/// Maximum bytes of a pattern or another text. Patterns in use have up to 2 KB.
const MAX_TEXT_BYTES: usize = 8_192;

/// Maximum growth factor of a text over all steps. Steps in use add up to some hundred, each
/// counted by its worst case.
const MAX_GROWTH: usize = 1_024;

/// Maximum occurrences of a prompt in the template of special tokens around it.
const MAX_PROMPTS: usize = 1;

/// Maximum length of the text that a character table maps one character to, in bytes. Unicode's own
/// maximum is 33.
const MAX_CHARACTER_BYTES: usize = 48;

/// Maximum total growth factor of a checked character table.
const TABLE_GROWTH: usize = 16;

/// The totals over the stages of a file.
pub(super) struct PipelineSteps {
    nodes: usize,
    /// Growth factor before and after tokenization.
    growth: usize,
    decoded_growth: usize,
}

impl Default for PipelineSteps {
    fn default() -> Self {
        Self {
            nodes: 0,
            growth: 1,
            decoded_growth: 1,
        }
    }
}

impl PipelineSteps {
    /// Adds a stage.
    pub(super) fn add(&mut self, stage: &str, json: &str) -> Result<(), String> {
        let UniqueKeys(description) =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        let growth = self.walk(&description, 0)?;
        match stage {
            "decoder" => self.decoded_growth = self.decoded_growth.saturating_mul(growth),
            _ => self.growth = self.growth.saturating_mul(growth),
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let growth = self.growth.max(self.decoded_growth);
        if growth > MAX_GROWTH {
            return Err(format!(
                "its steps may make a text {growth} times longer, expected at most {MAX_GROWTH}"
            ));
        }
        Ok(())
    }

    /// Returns the growth factor of a step and its nested steps.
    fn walk(&mut self, value: &Value, depth: usize) -> Result<usize, String> {
        self.nodes += 1;
        if self.nodes > MAX_NODES || depth > MAX_DEPTH {
            return Err(format!(
                "its steps have more than {MAX_NODES} parts or {MAX_DEPTH} levels"
            ));
        }
        match value {
            Value::String(text) if text.len() > MAX_TEXT_BYTES => Err(format!(
                "a text of its steps has {} bytes, expected at most {MAX_TEXT_BYTES}",
                text.len()
            )),
            Value::Array(items) => self.walk_all(items.iter(), depth),
            Value::Object(step) => {
                let own = own_growth(step)?;
                let inner = step
                    .iter()
                    .filter(|(key, _)| *key != TABLE)
                    .map(|(_, value)| value);
                Ok(own.saturating_mul(self.walk_all(inner, depth)?))
            }
            _ => Ok(1),
        }
    }

    fn walk_all<'v>(
        &mut self,
        mut parts: impl Iterator<Item = &'v Value>,
        depth: usize,
    ) -> Result<usize, String> {
        parts.try_fold(1_usize, |growth, part| {
            Ok(growth.saturating_mul(self.walk(part, depth + 1)?))
        })
    }
}

/// The key of a character table, in base64.
const TABLE: &str = "precompiled_charsmap";

/// Returns the growth factor of a step alone.
fn own_growth(step: &Map<String, Value>) -> Result<usize, String> {
    let text = |key: &str| step.get(key).and_then(Value::as_str).unwrap_or_default();
    if let Some(table) = step.get(TABLE) {
        check_table(table)?;
    }
    Ok(match text("type") {
        "Replace" => {
            let content = text("content").len();
            match step
                .get("pattern")
                .and_then(|pattern| pattern.get("String"))
                .and_then(Value::as_str)
                .map(str::len)
            {
                Some(found @ 1..) => content.div_ceil(found).max(1),
                // A match may be empty, between any two letters.
                _ => content + 1,
            }
        }
        "Prepend" => text("prepend").len() + 1,
        "Precompiled" => TABLE_GROWTH,
        "NFKC" | "NFKD" | "Metaspace" => 4,
        "ByteLevel" => 2,
        "TemplateProcessing" => {
            let prompts = prompts_in(step.get("single")).max(prompts_in(step.get("pair")) / 2);
            if prompts > MAX_PROMPTS {
                return Err(format!(
                    "it repeats a prompt {prompts} times, expected at most {MAX_PROMPTS}"
                ));
            }
            1
        }
        _ => 1,
    })
}

/// Returns how often the first text occurs in a template of special tokens.
fn prompts_in(template: Option<&Value>) -> usize {
    let pieces = template.and_then(Value::as_array).into_iter().flatten();
    pieces
        .filter(|piece| piece.get("Sequence").is_some())
        .count()
}

/// Checks a character table: it starts with the size of its index in bytes; then the texts follow,
/// each ending with a zero byte.
fn check_table(table: &Value) -> Result<(), String> {
    let Some(table) = table.as_str() else {
        return if table.is_null() {
            Ok(())
        } else {
            Err(not_a_table())
        };
    };
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(table)
        .map_err(|_| not_a_table())?;
    let Some((size, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(());
    };
    let texts = rest
        .get(u32::from_le_bytes(*size) as usize..)
        .ok_or_else(not_a_table)?;
    let longest = texts
        .split(|byte| *byte == 0)
        .map(<[u8]>::len)
        .max()
        .unwrap_or(0);
    if longest > MAX_CHARACTER_BYTES {
        return Err(format!(
            "its table of characters replaces one by {longest} bytes, expected at most {MAX_CHARACTER_BYTES}"
        ));
    }
    Ok(())
}

fn not_a_table() -> String {
    "its table of characters cannot be read".to_owned()
}
