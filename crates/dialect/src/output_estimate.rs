//! Estimates how many tokens an event of a stream carries whose engine does not count them.
//!
//! Most events carry one token. With speculative decoding, or a slow reader, they carry several, and
//! nothing but the length of the text tells how many.

use crate::json::{self, RawJson};

/// Bytes of text that count as a token.
const BYTES_PER_TOKEN: usize = 4;

/// Returns the tokens of an event: its token ids if it has any, else one for every four bytes of its
/// text, and at least one.
///
/// ```
/// let event = br#"{"choices":[{"index":0,"delta":{"content":"several words at once"}}]}"#;
/// assert_eq!(dialect::estimated_tokens(event), 5);
/// let event = br#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
/// assert_eq!(dialect::estimated_tokens(event), 1);
/// ```
pub fn estimated_tokens(data: &[u8]) -> u32 {
    let length = std::str::from_utf8(data).map_or(0, text_length);
    u32::try_from(length / BYTES_PER_TOKEN)
        .unwrap_or(u32::MAX)
        .max(1)
}

/// Returns the bytes of the text that an event adds to its reply.
fn text_length(event: &str) -> usize {
    let members = json::members(event).filter_map(Result::ok);
    let lengths = members.map(|(name, value)| match &*json::decode(name) {
        "choices" => {
            let choices = value.elements().into_iter().flatten();
            choices.map(choice_length).sum::<usize>()
        }
        // Of a message or a response.
        "delta" => delta_length(value),
        _ => 0,
    });
    lengths.sum()
}

/// Returns the bytes of a choice; a token id counts as those of one token.
fn choice_length(choice: RawJson<'_>) -> usize {
    let (mut text, mut ids) = (0, 0);
    for (name, value) in choice.members().into_iter().flatten() {
        match &*name {
            "token_ids" => ids = value.elements().map_or(0, |ids| ids.count()),
            "text" => text += string_length(value),
            "delta" => text += delta_length(value),
            _ => {}
        }
    }
    if ids > 0 { ids * BYTES_PER_TOKEN } else { text }
}

fn delta_length(delta: RawJson<'_>) -> usize {
    let Some(members) = delta.members() else {
        return string_length(delta);
    };
    let repeats_reasoning = delta.member("reasoning").is_some();
    let lengths = members.map(|(name, value)| match &*name {
        "role" | "type" | "stop_reason" | "stop_sequence" | "signature" => 0,
        // The same text under its older name.
        "reasoning_content" if repeats_reasoning => 0,
        "tool_calls" => {
            let calls = value.elements().into_iter().flatten();
            let functions = calls.filter_map(|call| call.member("function"));
            functions.map(function_length).sum::<usize>()
        }
        "function_call" => function_length(value),
        _ => string_length(value),
    });
    lengths.sum()
}

/// Returns the bytes of a call's name and arguments.
fn function_length(function: RawJson<'_>) -> usize {
    let members = function.members().into_iter().flatten();
    members.map(|(_, value)| string_length(value)).sum()
}

fn string_length(value: RawJson<'_>) -> usize {
    value.string().map_or(0, |text| text.len())
}
