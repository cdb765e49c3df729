//! Encodes the model's events in vLLM's format.

use std::sync::Arc;

use engine_model::CacheEvent;
use kv_blocks::{EngineHash, HashScheme, Tier};
use kv_events::vllm::{
    self, EventEncoding, EventLayout, HashForm, WireEvent, WireHash, WireKey, WireRemoved,
    WireStored,
};

use crate::{EventFormat, HashFormat};

/// The format of an engine's batches.
#[derive(Clone, Debug)]
pub(crate) struct WireFormat {
    encoding: EventEncoding,
    block_size: u32,
    /// The position + 1 is the number of an adapter.
    loras: Vec<Arc<str>>,
}

impl WireFormat {
    pub(crate) fn new(
        event_format: EventFormat,
        hash_format: HashFormat,
        block_size: u32,
        loras: Vec<Arc<str>>,
    ) -> Self {
        Self {
            encoding: EventEncoding {
                layout: match event_format {
                    EventFormat::Map => EventLayout::Map,
                    EventFormat::Array => EventLayout::Array,
                },
                hash_form: match hash_format {
                    HashFormat::Int => HashForm::Int,
                    HashFormat::Bytes => HashForm::Bytes,
                },
            },
            block_size,
            loras,
        }
    }

    pub(crate) fn batch(&self, ts: f64, rank: u32, events: &[CacheEvent]) -> Vec<u8> {
        let events: Vec<_> = events.iter().map(|event| self.event(event)).collect();
        vllm::encode(ts, Some(rank), &events, self.encoding)
    }

    fn event(&self, event: &CacheEvent) -> WireEvent {
        match event {
            CacheEvent::Stored {
                hashes,
                parent,
                tokens,
                lora,
                salt,
                media,
                tier,
            } => {
                let lora_id = lora
                    .as_ref()
                    .and_then(|name| self.loras.iter().position(|known| known == name));
                // Adapter first, then multimodal items, then the salt, as in vLLM; nil if a block
                // has none of them.
                let text = |key: &Arc<str>| WireKey::Text(key.to_string());
                let extra_keys = (0..hashes.len()).map(|index| {
                    let items = media
                        .get(index)
                        .into_iter()
                        .flatten()
                        .map(|(identifier, place)| WireKey::Item(identifier.to_string(), *place));
                    let salt = salt.as_ref().filter(|_| index == 0);
                    let lora = lora.iter().map(text);
                    let keys: Vec<_> = lora.chain(items).chain(salt.map(text)).collect();
                    (!keys.is_empty()).then_some(keys)
                });
                WireEvent::Stored(WireStored {
                    extra_keys: Some(extra_keys.collect()),
                    hashes: hashes.iter().map(|hash| digest(*hash)).collect(),
                    parent: parent.map(digest),
                    tokens: tokens.clone(),
                    block_size: self.block_size,
                    lora_id: lora_id.map(|index| index as u64 + 1),
                    lora_name: lora.as_ref().map(ToString::to_string),
                    medium: Some(medium(*tier).to_owned()),
                })
            }
            CacheEvent::Removed { hash, tier } => WireEvent::Removed(WireRemoved {
                hashes: vec![digest(*hash)],
                medium: Some(medium(*tier).to_owned()),
            }),
            CacheEvent::Cleared => WireEvent::Cleared,
        }
    }
}

fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "GPU",
        Tier::Host => "CPU",
        Tier::Disk | Tier::Remote => "STORAGE",
    }
}

/// Returns 32 bytes whose last eight are the model's own name of the block, as a real digest's
/// integer form is its low end.
fn digest(hash: EngineHash) -> WireHash {
    let mut digest = WireHash::from(hash.0);
    for (index, part) in digest.0[..24].chunks_exact_mut(8).enumerate() {
        let seed = index as u64;
        let low = u32::try_from(hash.0 & 0xffff_ffff).unwrap_or_default();
        let high = u32::try_from(hash.0 >> 32).unwrap_or_default();
        part.copy_from_slice(
            &HashScheme::Xxh3 { seed }
                .block_hash(&[low, high])
                .0
                .to_be_bytes(),
        );
    }
    digest
}
