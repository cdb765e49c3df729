//! Texts on which the two libraries are compared when a model is loaded.
//!
//! Each probe covers a difference between current tokenizers: word ends, composed characters,
//! grouping of digits, the length of a run, the reach of a special token, and the sizes at which
//! the fast library changes its algorithm.

use super::{
    added_token::AddedToken,
    prose::prose,
    samples::{PLAIN, REPEATED},
};

const REPEATS: [usize; 5] = [15, 17, 127, 130, 1_000];

/// Number of vocabulary tokens tried in contexts.
const ADDED: usize = 512;

/// Length of long texts: past the sizes at which the fast library uses its cache and several
/// threads.
const LONG_BYTES: usize = 9 << 10;
const SPREAD_BYTES: usize = 72 << 10;

/// Returns every probe, including those made of the model's own tokens and of `vocabulary`.
pub(super) fn all(added: &[AddedToken], vocabulary: &[String]) -> Vec<String> {
    let mut probes: Vec<String> = PLAIN.into_iter().map(str::to_owned).collect();
    probes.extend(
        REPEATED
            .iter()
            .flat_map(|text| REPEATS.map(|times| format!("x{}y", text.repeat(times)))),
    );
    probes.extend(
        added
            .iter()
            .take(ADDED)
            .map(|token| in_context(&token.content)),
    );
    probes.extend_from_slice(vocabulary);
    let prose = prose(SPREAD_BYTES);
    let head = &prose[..prose.floor_char_boundary(LONG_BYTES)];
    // Texts with a common beginning, one after the other: cached parts of the first may not leak
    // into the second.
    probes.extend(["", "s", "\n\n", "\u{301}"].map(|tail| format!("{head}{tail}")));
    if let Some(token) = added.first() {
        probes.push(head.replace(". ", &format!(".{}", token.content)));
    }
    probes.push(prose);
    probes
}

/// Returns texts in which `tokens` are next to text that could reach across them.
pub(super) fn around_cuts(tokens: &[String]) -> Vec<String> {
    let mut probes: Vec<String> = tokens.iter().map(|token| in_context(token)).collect();
    for token in tokens {
        probes.push(PLAIN.join(token));
        probes.push(tokens.concat().repeat(3) + token);
    }
    probes
}

/// Returns a text with a token between letters, spaces, marks and similar tokens, whole and broken.
fn in_context(token: &str) -> String {
    let shorter = token
        .char_indices()
        .next_back()
        .map_or("", |(last, _)| &token[..last]);
    let (lower, upper) = (token.to_lowercase(), token.to_uppercase());
    format!(
        "{token}a{token}b {token} c\n{token}\n  {token}  {token}{token}\t{token}é\u{301}{token}\u{301}{token}1{token}.{shorter} {shorter}{token} {lower} {upper} _{token}_ '{token}'s"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_hundreds_of_different_probes() {
        let token = AddedToken {
            content: "<|x|>".into(),
            single_word: false,
            literal: true,
        };
        let probes = all(&[token], &[]);
        let distinct: std::collections::HashSet<_> = probes.iter().collect();
        assert_eq!(distinct.len(), probes.len());
        assert!(probes.len() > 180, "{}", probes.len());
    }
}
