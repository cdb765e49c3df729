//! Splits long values into pieces that fit into a line of a stream.
//!
//! **Invariant**: the pieces of a value joined are the value.

use std::borrow::Cow;

use crate::json::{self, RawJson};

/// List entries in one chunk.
const ENTRIES: usize = 128;
/// Minimum and maximum bytes of text in one chunk: many clients buffer a line in 64 KiB.
const BYTES: std::ops::RangeInclusive<usize> = 64..=8 * 1024;

/// Returns the pieces of a string's inside, about `count` of them; each is the inside of a string.
pub(super) fn texts(inner: &str, count: usize) -> impl Iterator<Item = &str> {
    let most = (inner.len() / count.max(1) + 1).clamp(*BYTES.start(), *BYTES.end());
    let mut rest = inner;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(cut(rest, most));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Returns the cut position so that at most `most` bytes come before it, and no escape and no
/// surrogate pair is split.
fn cut(inner: &str, most: usize) -> usize {
    if inner.len() <= most {
        return inner.len();
    }
    let mut at = 0;
    loop {
        let rest = &inner[at..];
        let plain = rest.find('\\').unwrap_or(rest.len());
        if at + plain >= most {
            return inner.floor_char_boundary(most);
        }
        let unit = escape_bytes(&rest[plain..]);
        if at + plain + unit > most {
            return at + plain;
        }
        at += plain + unit;
    }
}

/// Returns the length of the escaped character at the start.
fn escape_bytes(rest: &str) -> usize {
    let half = |from: usize| {
        rest.get(from..from + 4)
            .and_then(|digits| u16::from_str_radix(digits, 16).ok())
    };
    match rest.as_bytes().get(1) {
        Some(b'u') => {
            let pair = half(2).is_some_and(|high| (0xD800..0xDC00).contains(&high))
                && rest.get(6..8) == Some("\\u")
                && half(8).is_some_and(|low| (0xDC00..0xE000).contains(&low));
            if pair { 12 } else { 6 }
        }
        _ => 2,
    }
}

/// Returns the metadata beside the text of a choice, in groups: members of the choice, joined with
/// commas before each.
pub(super) fn beside(
    logprobs: Option<RawJson<'_>>,
    token_ids: Option<RawJson<'_>>,
) -> Vec<PieceMetadata> {
    // The members are read once: each may be long, and there are many groups.
    let members: Vec<(Cow<'_, str>, RawJson<'_>)> = logprobs
        .and_then(RawJson::members)
        .into_iter()
        .flatten()
        .collect();
    let lists: Vec<(&str, Vec<RawJson<'_>>)> = members
        .iter()
        .filter_map(|(name, value)| Some((&**name, value.elements()?.collect())))
        .collect();
    let ids: Vec<_> = token_ids
        .and_then(RawJson::elements)
        .into_iter()
        .flatten()
        .collect();
    let longest = lists
        .iter()
        .map(|(_, list)| list.len())
        .chain([ids.len()])
        .max()
        .unwrap_or(0);
    let groups = longest
        .div_ceil(ENTRIES)
        .max(usize::from(logprobs.is_some()));
    let mut all = vec![PieceMetadata::default(); groups];
    for (group, beside) in all.iter_mut().enumerate() {
        let slice = |list: &[RawJson<'_>]| {
            let entries = list
                .iter()
                .skip(group * ENTRIES)
                .take(ENTRIES)
                .map(|entry| entry.as_str());
            entries.collect::<Vec<_>>().join(",")
        };
        if logprobs.is_some() {
            let mut text = String::new();
            let mut object = json::ObjectWriter::open(&mut text);
            for (name, value) in &members {
                match lists.iter().find(|(list, _)| list == name) {
                    Some((_, list)) if group == 0 || list.len() > group * ENTRIES => {
                        object.raw(name, &format!("[{}]", slice(list)));
                    }
                    None if group == 0 => object.raw(name, value.as_str()),
                    _ => {}
                }
            }
            object.close();
            beside.logprobs = Some(text);
        }
        if ids.len() > group * ENTRIES {
            beside.token_ids = Some(format!("[{}]", slice(&ids)));
        }
    }
    all
}

/// One group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PieceMetadata {
    /// `None` if there are none.
    pub(super) logprobs: Option<String>,
    /// `None` if there are none, or no more.
    pub(super) token_ids: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_split_between_characters_in_any_encoding() {
        let inner = r#"é\ud83d\ude00\"\\\n"#.repeat(100);
        for count in [1, 7, 1000] {
            let pieces: Vec<_> = texts(&inner, count).collect();
            assert_eq!(pieces.concat(), inner);
            for piece in &pieces {
                let decoded = json::decode(&format!("\"{piece}\"")).into_owned();
                assert!(
                    json::whole(&format!("\"{piece}\"")).is_ok() && !decoded.contains('\u{fffd}'),
                    "{piece}"
                );
            }
            assert_eq!(pieces.len() > 1, count > 1);
        }
        assert_eq!(texts("", 3).count(), 0);
    }

    #[test]
    fn lists_are_split_across_chunks_and_other_values_are_sent_once() {
        let list = |from: usize, to: usize| {
            (from..to)
                .map(|n| n.to_string())
                .collect::<Vec<_>>()
                .join(",")
        };
        let logprobs = format!(
            r#"{{"content":[{}],"refusal":null,"refused":[]}}"#,
            list(0, ENTRIES + 2)
        );
        let ids = format!("[{}]", list(5, ENTRIES + 6));
        let groups = beside(json::whole(&logprobs).ok(), json::whole(&ids).ok());
        let expected = [
            PieceMetadata {
                logprobs: Some(format!(
                    r#"{{"content":[{}],"refusal":null,"refused":[]}}"#,
                    list(0, ENTRIES)
                )),
                token_ids: Some(format!("[{}]", list(5, ENTRIES + 5))),
            },
            PieceMetadata {
                logprobs: Some(format!(r#"{{"content":[{}]}}"#, list(ENTRIES, ENTRIES + 2))),
                token_ids: Some(format!("[{}]", ENTRIES + 5)),
            },
        ];
        assert_eq!(groups, expected);
        assert_eq!(beside(None, None), []);
        assert_eq!(
            beside(json::whole("{}").ok(), None)[0].logprobs.as_deref(),
            Some("{}")
        );
    }
}
