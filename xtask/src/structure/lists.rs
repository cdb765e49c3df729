//! Comma-separated lists of tokens: arguments, fields, generic parameters.

use crate::rust_tokens::SourceToken;

/// Splits at the commas outside brackets. Empty parts are dropped.
pub(super) fn split_at_commas(tokens: &[SourceToken]) -> Vec<&[SourceToken]> {
    let mut parts = Vec::new();
    let mut depth = 0_i32;
    let mut start = 0;
    for at in 0..tokens.len() {
        depth += depth_change(tokens, at);
        if depth == 0 && tokens[at].is_sign(',') {
            parts.push(&tokens[start..at]);
            start = at + 1;
        }
    }
    parts.push(&tokens[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// Returns the position behind the list of generic parameters that opens at `open`.
pub(super) fn behind_generics(tokens: &[SourceToken], open: usize) -> usize {
    let mut depth = 0_i32;
    for at in open..tokens.len() {
        depth += depth_change(tokens, at);
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// `>` closes a bracket unless it is the end of an arrow.
fn depth_change(tokens: &[SourceToken], at: usize) -> i32 {
    let is = |sign| tokens[at].is_sign(sign);
    let in_arrow = at > 0 && (tokens[at - 1].is_sign('-') || tokens[at - 1].is_sign('='));
    if is('(') || is('[') || is('{') || is('<') {
        1
    } else if is(')') || is(']') || is('}') || (is('>') && !in_arrow) {
        -1
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rust_tokens::tokens;

    #[test]
    fn commas_inside_brackets_do_not_split() {
        let tokens = tokens("a: Map<K, (V, W)>, f: impl Fn(A, B) -> Map<C, D>, [u8; 2],");
        assert_eq!(split_at_commas(&tokens).len(), 3);
        assert!(split_at_commas(&[]).is_empty());
    }
}
