//! Reads prompts outside chats.

use crate::{PromptPart, RawJson};

/// Reads the forms of `prompt` in `/v1/completions`: a text, token ids, or a list of either. A list
/// of one counts as its element.
pub(crate) fn of_completion(value: RawJson<'_>) -> PromptPart<'_> {
    if let Some(text) = value.string() {
        return PromptPart::Text(text);
    }
    let Some(mut elements) = value.elements() else {
        return PromptPart::None;
    };
    let Some(first) = elements.next() else {
        return PromptPart::None;
    };
    if matches!(first.as_str().as_bytes().first(), Some(b'"' | b'[')) {
        return match (elements.next(), first.string()) {
            (Some(_), _) => batch(value),
            (None, Some(text)) => PromptPart::Text(text),
            (None, None) => token_ids(first),
        };
    }
    token_ids(value)
}

fn batch(prompts: RawJson<'_>) -> PromptPart<'_> {
    let (mut text_bytes, mut ids) = (0, 0);
    for prompt in prompts.elements().into_iter().flatten() {
        match prompt.elements() {
            Some(list) => ids += list.count(),
            None => text_bytes += prompt.as_str().len(),
        }
    }
    PromptPart::Batch { text_bytes, ids }
}

/// Reads values whose texts and ids are computed, in any form: a text, ids, a list of either,
/// objects with texts.
pub(crate) fn computed<'a>(values: impl Iterator<Item = RawJson<'a>>) -> PromptPart<'a> {
    let (mut text_bytes, mut ids) = (0, 0);
    for value in values {
        let is_id = |id: &RawJson<'_>| {
            id.as_str()
                .starts_with(|first: char| first.is_ascii_digit())
        };
        match value.elements() {
            Some(list) => {
                for element in list {
                    match element.elements() {
                        Some(inner) => ids += inner.count(),
                        None if is_id(&element) => ids += 1,
                        None => text_bytes += element.as_str().len(),
                    }
                }
            }
            None => text_bytes += value.as_str().len(),
        }
    }
    PromptPart::Batch { text_bytes, ids }
}

/// Reads one prompt of token ids.
pub(crate) fn token_ids(value: RawJson<'_>) -> PromptPart<'_> {
    let ids = value.elements().and_then(|ids| {
        ids.map(|id| id.as_str().parse::<u32>().ok())
            .collect::<Option<Vec<_>>>()
    });
    match ids {
        Some(ids) if !ids.is_empty() => PromptPart::TokenIds(ids),
        _ => PromptPart::None,
    }
}
