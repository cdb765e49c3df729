//! Prompts that the client sends as token ids.

use dialect::{Fidelity, MediaPlaceholder, PromptPart, RequestView};
use kv_blocks::{HashScheme, MediaItem, PromptBlocks, PromptMedia};
use routing::receipt::PromptSource;

use crate::tokenized_prompt::TokenizedPrompt;

/// Identifies a prompt of token ids; `None` if it is none.
pub(crate) fn identify(view: &RequestView<'_>, scheme: HashScheme) -> Option<TokenizedPrompt> {
    let (ids, media) = match &view.prompt {
        PromptPart::TokenIds(ids) => (ids, &[][..]),
        PromptPart::TokenIdsWithMedia { ids, media } => (ids, &media[..]),
        _ => return None,
    };
    let blocks = if media.is_empty() {
        Some(PromptBlocks::of_tokens(scheme, ids.as_slice().into()))
    } else {
        prompt_media(media)
            .map(|media| PromptBlocks::of_tokens_with_media(scheme, ids.as_slice().into(), media))
    };
    // The engine computes only the last of them, and decides itself how many, or puts other input
    // into the hashes: the blocks are unknown.
    let is_known =
        view.rendering.truncate_prompt_tokens.is_none() && view.fidelity == Fidelity::Exact;
    Some(match blocks.filter(|_| is_known) {
        Some(blocks) => TokenizedPrompt::of(PromptSource::Given, blocks),
        None => TokenizedPrompt::without_blocks(u32::try_from(ids.len()).unwrap_or(u32::MAX)),
    })
}

/// Returns the items of a prompt; `None` if two of them overlap or one has no tokens.
pub(crate) fn prompt_media(media: &[MediaPlaceholder<'_>]) -> Option<PromptMedia> {
    PromptMedia::new(media.iter().map(item).collect())
}

fn item(placeholder: &MediaPlaceholder<'_>) -> MediaItem {
    MediaItem {
        identifier: (&*placeholder.identifier).into(),
        offset: placeholder.offset,
        length: placeholder.length,
    }
}
