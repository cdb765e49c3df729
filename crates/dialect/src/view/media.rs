//! Reads the multimodal items of a prompt of token ids.

use std::borrow::Cow;

use super::MediaPlaceholder;
use crate::RawJson;

/// Most modalities of one prompt: there are images, audio and videos.
const MODALITIES: usize = 16;
/// Longest identifier, bytes: engines send hashes, clients may name an item instead.
const IDENTIFIER: usize = 1024;

/// Reads vLLM's `features`: the hash and the place of each item, in lists of equal length for each
/// modality. `None` if the form is another, or beyond these limits.
///
/// Source: vLLM's `GenerateRequest`, as its `/v1/chat/completions/render` returns it.
pub(super) fn placeholders(features: RawJson<'_>) -> Option<Vec<MediaPlaceholder<'_>>> {
    // One walk: the items themselves may be here too, megabytes of them.
    let (mut hashes, mut places) = (None, None);
    for (key, value) in features.members()? {
        match &*key {
            "mm_hashes" => hashes = Some(modalities(value)?),
            "mm_placeholders" => places = Some(modalities(value)?),
            _ => {}
        }
    }
    let (mut hashes, mut places) = (hashes?, places?);
    // A modality without hashes has tokens of unknown content.
    hashes.sort_by(|(one, _), (other, _)| one.cmp(other));
    places.sort_by(|(one, _), (other, _)| one.cmp(other));
    let same = |((one, _), (other, _)): (&Modality<'_>, &Modality<'_>)| one == other;
    if hashes.len() != places.len() || !hashes.iter().zip(&places).all(same) {
        return None;
    }
    let mut media = Vec::new();
    for ((_, hashes), (_, places)) in hashes.into_iter().zip(places) {
        let mut places = places.elements()?;
        for hash in hashes.elements()? {
            media.push(placeholder(hash, places.next()?)?);
        }
        if places.next().is_some() {
            return None;
        }
    }
    Some(media)
}

/// A modality's name, and the list of its hashes or places.
type Modality<'a> = (Cow<'a, str>, RawJson<'a>);

fn modalities(value: RawJson<'_>) -> Option<Vec<Modality<'_>>> {
    let all: Vec<_> = value.members()?.take(MODALITIES + 1).collect();
    (all.len() <= MODALITIES).then_some(all)
}

fn placeholder<'a>(hash: RawJson<'a>, place: RawJson<'_>) -> Option<MediaPlaceholder<'a>> {
    let (mut offset, mut length) = (None, None);
    for (key, value) in place.members()? {
        let number = || u32::try_from(value.integer()?).ok();
        match &*key {
            "offset" => offset = number(),
            "length" => length = number(),
            _ => {}
        }
    }
    Some(MediaPlaceholder {
        identifier: hash.string().filter(|name| name.len() <= IDENTIFIER)?,
        offset: offset?,
        length: length?,
    })
}
