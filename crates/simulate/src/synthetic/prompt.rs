//! Conversion of prompt pieces into block ids.

use std::{collections::HashMap, fmt::Write};

use kv_blocks::BlockSize;

use super::SyntheticError;

/// Most blocks of all prompts of a workload, some 10 bytes of text each.
pub(super) const MOST_BLOCKS: usize = 1 << 24;

/// A planned request.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedRequest {
    /// Arrival, since the beginning.
    pub(super) at_ms: u64,
    /// The pieces of its prompt: a beginning that others share, and the rest.
    pub(super) parts: [PromptPiece; 2],
    /// Tokens of the reply.
    pub(super) output_tokens: u32,
    /// Number of its tenant, if the workload names them.
    pub(super) tenant: Option<u64>,
}

/// A piece of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PromptPiece {
    /// The text that the piece is the beginning of: equal numbers behind equal pieces are equal
    /// text.
    pub(super) text: u64,
    /// Length of the piece.
    pub(super) tokens: u32,
}

/// Whether requests name their conversation or run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sessions {
    Numbered,
    Unnamed,
}

/// The identity of a block across requests: the text it ends in, its index in the prompt, and how
/// much of it is filled.
type SharedBlockKey = (u64, u32, u32);

/// Returns all requests, one a line, if their blocks do not exceed `free_blocks`. Ids are assigned in the
/// order of first occurrence.
pub(super) fn written(
    planned: &[PlannedRequest],
    size: BlockSize,
    sessions: Sessions,
    mut free_blocks: usize,
) -> Result<String, SyntheticError> {
    let mut ids: HashMap<SharedBlockKey, usize> = HashMap::new();
    let mut text = String::new();
    for request in planned {
        let prompt: u32 = request.parts.iter().map(|part| part.tokens).sum();
        free_blocks = free_blocks
            .checked_sub(prompt.div_ceil(size.tokens()) as usize)
            .ok_or(SyntheticError::TooLong)?;
        let _ = write!(
            text,
            r#"{{"timestamp": {}, "input_length": {prompt}, "output_length": {}, "hash_ids": ["#,
            request.at_ms, request.output_tokens
        );
        for (index, key) in keys(&request.parts, prompt, size.tokens()).enumerate() {
            let next = ids.len();
            let comma = if index == 0 { "" } else { ", " };
            let _ = write!(text, "{comma}{}", ids.entry(key).or_insert(next));
        }
        text.push(']');
        if sessions == Sessions::Numbered {
            let _ = write!(text, r#", "session": {}"#, request.parts[1].text);
        }
        if let Some(tenant) = request.tenant {
            let _ = write!(text, r#", "tenant": {tenant}"#);
        }
        text.push_str("}\n");
    }
    Ok(text)
}

/// Returns the keys of a prompt's blocks. A block that reaches into a text belongs to that text:
/// its index determines the content before the text, since a text always follows the same pieces.
fn keys(parts: &[PromptPiece], prompt: u32, size: u32) -> impl Iterator<Item = SharedBlockKey> {
    let mut ends = parts.iter().scan(0, |end, part| {
        *end += part.tokens;
        Some((part.text, *end))
    });
    let mut reached = ends.next();
    (0..prompt.div_ceil(size)).map_while(move |block| {
        let end = block.saturating_add(1).saturating_mul(size).min(prompt);
        while reached.is_some_and(|(_, part_end)| part_end < end) {
            reached = ends.next();
        }
        reached.map(|(text, _)| (text, block, end - block * size))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(prompts: &[[(u64, u32); 2]]) -> Vec<String> {
        let parts =
            |prompt: &[(u64, u32); 2]| prompt.map(|(text, tokens)| PromptPiece { text, tokens });
        let planned: Vec<_> = prompts
            .iter()
            .map(|prompt| PlannedRequest {
                at_ms: 5,
                parts: parts(prompt),
                output_tokens: 7,
                tenant: None,
            })
            .collect();
        let text = written(
            &planned,
            BlockSize::new(100).unwrap(),
            Sessions::Unnamed,
            MOST_BLOCKS,
        )
        .unwrap();
        text.lines()
            .map(|line| line.split_once("\"input_length\": ").unwrap().1.to_owned())
            .collect()
    }

    #[test]
    fn a_shared_prefix_shares_only_its_full_blocks() {
        assert_eq!(
            lines(&[[(1, 250), (2, 100)], [(1, 250), (3, 100)]]),
            [
                r#"350, "output_length": 7, "hash_ids": [0, 1, 2, 3]}"#,
                r#"350, "output_length": 7, "hash_ids": [0, 1, 4, 5]}"#
            ]
        );
    }

    #[test]
    fn a_growing_prompt_keeps_its_full_blocks_and_not_the_partial_one() {
        assert_eq!(
            lines(&[
                [(1, 50), (2, 100)],
                [(1, 50), (2, 300)],
                [(1, 50), (2, 300)]
            ]),
            [
                r#"150, "output_length": 7, "hash_ids": [0, 1]}"#,
                r#"350, "output_length": 7, "hash_ids": [0, 2, 3, 4]}"#,
                r#"350, "output_length": 7, "hash_ids": [0, 2, 3, 4]}"#
            ]
        );
    }

    #[test]
    fn a_prompt_beyond_the_limit_is_rejected() {
        let request = PlannedRequest {
            at_ms: 0,
            parts: [PromptPiece {
                text: 0,
                tokens: 50,
            }; 2],
            output_tokens: 1,
            tenant: None,
        };
        let size = BlockSize::new(50).unwrap();
        assert!(written(&[request, request], size, Sessions::Unnamed, 4).is_ok());
        assert_eq!(
            written(&[request, request], size, Sessions::Unnamed, 3).unwrap_err(),
            SyntheticError::TooLong
        );
    }
}
