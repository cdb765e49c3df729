//! Finds the places where a text may be cut so that the concatenated ids of its pieces are those of
//! the whole.
//!
//! Merges and word boundaries reach across any letter, so only the added tokens that a library
//! finds before all other steps are candidates, and of those only the ones that no neighbour can
//! absorb, shift or hide. A model with steps that carry state from one piece to the next has no cut
//! points.
//!
//! **Invariant**: for a text T, the pieces' ids joined are T's ids without the tokens added to
//! whole prompts.

use serde_json::Value;

use super::added_token::AddedToken;

/// Steps that process each piece alone. Others may depend on the position in the text.
const WITHOUT_MEMORY: [&str; 11] = [
    "ByteLevel",
    "Digits",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Punctuation",
    "Split",
    "Whitespace",
    "WhitespaceSplit",
];

/// Maximum number of end tokens, more than any template writes; a text is searched for each of
/// them.
const MAX_TOKENS: usize = 8;

/// The texts of the tokens behind which a text may be cut.
#[derive(Debug)]
pub(super) struct CutPoints(Vec<String>);

impl CutPoints {
    /// Reads the cut points from a tokenizer file. `None` without any.
    pub(super) fn find(described: &Value, added: &[AddedToken]) -> Option<Self> {
        let steps =
            ["normalizer", "pre_tokenizer"].map(|step| described.get(step).unwrap_or(&Value::Null));
        if !steps.into_iter().all(without_memory) || added.iter().any(|token| token.single_word) {
            return None;
        }
        let plain = |token: &&AddedToken| token.literal && !token.content.is_empty();
        let alone = |token: &&AddedToken| {
            // Overlapping matches compete, and the result depends on where the text begins.
            added
                .iter()
                .all(|other| other == *token || !overlap(&token.content, &other.content))
                && !overlaps_itself(&token.content)
        };
        let mut ends: Vec<String> = added
            .iter()
            .filter(plain)
            .filter(alone)
            .filter(|token| ends_a_turn(&token.content))
            .map(|token| token.content.clone())
            .collect();
        ends.truncate(MAX_TOKENS);
        (!ends.is_empty()).then_some(Self(ends))
    }

    pub(super) fn tokens(&self) -> &[String] {
        &self.0
    }

    /// Returns the pieces of a text in order; each but the last ends with a token of this list.
    pub(super) fn split<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut ends: Vec<usize> = self
            .0
            .iter()
            .flat_map(|token| {
                text.match_indices(token.as_str())
                    .map(|(at, found)| at + found.len())
            })
            .chain([text.len()])
            .collect();
        ends.sort_unstable();
        ends.dedup();
        let mut start = 0;
        ends.into_iter()
            .map(move |end| &text[std::mem::replace(&mut start, end)..end])
    }

    /// Returns whether a piece ends with a cut token, and not at the end of the text.
    pub(super) fn ends(&self, piece: &str) -> bool {
        self.0.iter().any(|token| piece.ends_with(token.as_str()))
    }
}

/// Returns whether a step of the pipeline, with all steps inside it, is known to process each piece
/// alone.
fn without_memory(step: &Value) -> bool {
    let inside = |key| {
        step.get(key)
            .and_then(Value::as_array)
            .is_some_and(|steps| steps.iter().all(without_memory))
    };
    match step.get("type").and_then(Value::as_str) {
        None => step.is_null(),
        Some("Sequence") => inside("normalizers") || inside("pretokenizers"),
        Some(kind) => WITHOUT_MEMORY.contains(&kind),
    }
}

/// Returns whether a token ends a turn: templates in use end their turns with tokens of these
/// names. A cut elsewhere would be as exact, but less useful.
fn ends_a_turn(token: &str) -> bool {
    let token = token.to_ascii_lowercase();
    token == "</s>"
        || ["end", "eot", "eos", "eom"]
            .iter()
            .any(|word| token.contains(word))
}

/// Returns whether two different tokens can overlap in a text.
fn overlap(one: &str, other: &str) -> bool {
    one.contains(other)
        || other.contains(one)
        || tail_is_head(one, other)
        || tail_is_head(other, one)
}

fn tail_is_head(one: &str, other: &str) -> bool {
    (1..one.len().min(other.len()))
        .any(|shared| one.as_bytes().ends_with(&other.as_bytes()[..shared]))
}

fn overlaps_itself(token: &str) -> bool {
    tail_is_head(token, token)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(content: &str) -> AddedToken {
        AddedToken {
            content: content.to_owned(),
            single_word: false,
            literal: true,
        }
    }

    fn ends(added: &[AddedToken]) -> Vec<String> {
        CutPoints::find(&Value::Null, added).map_or(Vec::new(), |cuts| cuts.0)
    }

    #[test]
    fn pieces_end_with_their_token_and_join_to_the_text() {
        let cuts = CutPoints(vec!["<e>".into(), "<f>".into()]);
        let pieces = |text| cuts.split(text).collect::<Vec<_>>();
        assert_eq!(pieces("a<e>b<f><e> c"), ["a<e>", "b<f>", "<e>", " c"]);
        assert_eq!(pieces("a<e>"), ["a<e>"]);
        assert_eq!(pieces("a"), ["a"]);
        assert!(cuts.ends("a<e>") && !cuts.ends("a"));
    }

    #[test]
    fn only_tokens_that_nothing_can_shift_are_cut_points() {
        assert_eq!(ends(&[token("<|start|>"), token("<|end|>")]), ["<|end|>"]);
        let greedy = AddedToken {
            literal: false,
            ..token("<|end|>")
        };
        assert!(
            ends(&[greedy]).is_empty(),
            "the token includes following characters"
        );
        let words = AddedToken {
            single_word: true,
            ..token("word")
        };
        assert!(
            ends(&[token("<|end|>"), words]).is_empty(),
            "the token depends on its neighbours"
        );
        assert!(
            ends(&[token("<end>"), token("<end>x")]).is_empty(),
            "a longer token may match"
        );
        assert!(
            ends(&[token("<end>"), token("a<en")]).is_empty(),
            "an earlier token may include its first bytes"
        );
        assert!(
            ends(&[token("|end|")]).is_empty(),
            "two of the tokens may overlap"
        );
    }

    #[test]
    fn a_model_that_treats_the_first_piece_differently_has_none() {
        let end = [token("<|end|>")];
        let find = |pre_tokenizer: Value| {
            CutPoints::find(&json!({"pre_tokenizer": pre_tokenizer}), &end).is_some()
        };
        assert!(find(
            json!({"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]})
        ));
        assert!(!find(
            json!({"type": "Metaspace", "prepend_scheme": "first"})
        ));
        assert!(!find(
            json!({"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "Metaspace"}]})
        ));
        assert!(!find(json!({"kind": "unknown"})));
    }
}
