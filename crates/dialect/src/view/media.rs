//! Reads the multimodal items of a prompt of token ids.

use super::MediaPlaceholder;
use crate::RawJson;

/// Reads vLLM's `features`: the hash and the place of each item, in lists of equal length for each
/// modality. `None` if the form is another.
///
/// Source: vLLM's `GenerateRequest`, as its `/v1/chat/completions/render` returns it.
pub(super) fn placeholders(features: RawJson<'_>) -> Option<Vec<MediaPlaceholder<'_>>> {
    // One walk: the items themselves may be here too, megabytes of them.
    let (mut hashes, mut places) = (None, None);
    for (key, value) in features.members()? {
        match &*key {
            "mm_hashes" => hashes = Some(value),
            "mm_placeholders" => places = Some(value),
            _ => {}
        }
    }
    let (hashes, places) = (hashes?, places?);
    let mut media = Vec::new();
    let mut modalities = 0;
    for (modality, hashes) in hashes.members()? {
        modalities += 1;
        let mut places = places.member(&modality)?.elements()?;
        for hash in hashes.elements()? {
            media.push(placeholder(hash, places.next()?)?);
        }
        if places.next().is_some() {
            return None;
        }
    }
    // A modality without hashes has tokens of unknown content.
    (places.members()?.count() == modalities).then_some(media)
}

fn placeholder<'a>(hash: RawJson<'a>, place: RawJson<'_>) -> Option<MediaPlaceholder<'a>> {
    let number = |key| {
        let value = place.member(key)?.integer()?;
        u32::try_from(value).ok()
    };
    Some(MediaPlaceholder {
        identifier: hash.string()?,
        offset: number("offset")?,
        length: number("length")?,
    })
}
