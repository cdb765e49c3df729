//! What distinguishes blocks besides their tokens.

use std::sync::Arc;

use kv_blocks::MediaHash;

use super::{BlockStored, ExtraKey};

/// The inputs besides the tokens that distinguish blocks.
pub(super) struct ExtraKeys {
    pub(super) lora: Option<Arc<str>>,
    pub(super) salt: Option<Arc<str>>,
    /// The multimodal items of each block, up to the last block with any.
    pub(super) media: Vec<Option<MediaHash>>,
    /// Number of leading blocks of which all inputs are known.
    pub(super) known_blocks: usize,
}

impl ExtraKeys {
    /// Reads the extra keys. They name the adapter first (when it has a name), then multimodal
    /// items, then the salt (on the first block of a sequence only), then embeddings. Salts are
    /// bare strings, and so were multimodal identifiers in two releases: a bare string is a salt
    /// only where a salt can be, and with no other bare string. Where a bare identifier begins in
    /// its block is unknown.
    pub(super) fn read(event: &BlockStored) -> Self {
        let mut keys = Self {
            lora: lora(event),
            salt: not_empty(&event.cache_salt),
            media: Vec::new(),
            known_blocks: usize::MAX,
        };
        let mut salt = None;
        for (block, parts) in event.extra_keys.iter().flatten().enumerate() {
            let (items, rest) = split(event, parts);
            match rest {
                [] => {}
                [ExtraKey::Text(text)] if block == 0 && event.parent_block_hash.is_none() => {
                    salt = Some(Arc::clone(text));
                }
                // A bare identifier on a later block means that the one on the first block was not
                // a salt either.
                [ExtraKey::Text(_), ..] if salt.is_some() => {
                    keys.known_blocks = 0;
                    break;
                }
                _ => {
                    keys.known_blocks = block;
                    break;
                }
            }
            if let Some(hash) = MediaHash::of(items) {
                keys.media.resize(block, None);
                keys.media.push(Some(hash));
            }
        }
        keys.salt = keys.salt.or_else(|| not_empty(&salt));
        keys
    }
}

/// Returns the multimodal items of a block with their places, and the parts behind them.
fn split<'e>(
    event: &BlockStored,
    parts: &'e [ExtraKey],
) -> (impl Iterator<Item = (&'e str, i64)>, &'e [ExtraKey]) {
    let own = match parts.split_first() {
        Some((ExtraKey::Text(first), own)) if Some(first) == event.lora.name.as_ref() => own,
        _ => parts,
    };
    let is_item = |part: &&ExtraKey| matches!(part, ExtraKey::Item(..));
    let (items, rest) = own.split_at(own.iter().take_while(is_item).count());
    let items = items.iter().filter_map(|item| match item {
        ExtraKey::Item(identifier, place) => Some((&**identifier, *place)),
        _ => None,
    });
    (items, rest)
}

/// Returns the adapter's name, or its number where it has no name, spelt so that it equals no name.
fn lora(event: &BlockStored) -> Option<Arc<str>> {
    // Engines number adapters from 1 on.
    let number = || {
        event
            .lora
            .id
            .filter(|number| *number > 0)
            .map(|number| Arc::from(format!("lora_id:{number}")))
    };
    not_empty(&event.lora.name).or_else(number)
}

fn not_empty(text: &Option<Arc<str>>) -> Option<Arc<str>> {
    text.clone().filter(|text| !text.is_empty())
}
