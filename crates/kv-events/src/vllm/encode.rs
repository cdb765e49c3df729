//! Encoding of batches as vLLM writes them, byte for byte.

use rmp::encode;

use super::{EventEncoding, EventLayout, HashForm, WireEvent, WireHash, WireKey};

/// Encodes a batch: an array of time, events and rank in every release.
pub fn encode(
    ts: f64,
    dp_rank: Option<u32>,
    events: &[WireEvent],
    encoding: EventEncoding,
) -> Vec<u8> {
    let mut writer = BatchWriter {
        out: Vec::new(),
        hash_form: encoding.hash_form,
    };
    writer.array(3);
    writer.float(ts);
    writer.array(events.len());
    for event in events {
        match encoding.layout {
            EventLayout::Map => writer.map_event(event),
            EventLayout::Array => writer.array_event(event),
        }
    }
    writer.optional_number(dp_rank.map(u64::from));
    writer.out
}

const KIND: &str = "full_attention";

struct BatchWriter {
    out: Vec<u8>,
    hash_form: HashForm,
}

impl BatchWriter {
    fn map_event(&mut self, event: &WireEvent) {
        match event {
            WireEvent::Stored(event) => {
                self.map(10 + usize::from(event.extra_keys.is_some()));
                self.entry("type", |w| w.text("BlockStored"));
                self.entry("block_hashes", |w| w.hashes(&event.hashes));
                self.entry("parent_block_hash", |w| w.optional_hash(event.parent));
                self.entry("token_ids", |w| w.tokens(&event.tokens));
                self.entry("block_size", |w| w.number(event.block_size.into()));
                self.entry("lora_id", |w| w.optional_number(event.lora_id));
                self.entry("medium", |w| w.optional_text(event.medium.as_deref()));
                self.entry("lora_name", |w| w.optional_text(event.lora_name.as_deref()));
                if event.extra_keys.is_some() {
                    self.entry("extra_keys", |w| w.extra_keys(event.extra_keys.as_deref()));
                }
                self.entry("group_idx", |w| w.number(0));
                self.entry("kv_cache_spec_kind", |w| w.text(KIND));
            }
            WireEvent::Removed(event) => {
                self.map(4);
                self.entry("type", |w| w.text("BlockRemoved"));
                self.entry("block_hashes", |w| w.hashes(&event.hashes));
                self.entry("medium", |w| w.optional_text(event.medium.as_deref()));
                self.entry("group_idx", |w| w.number(0));
            }
            WireEvent::Cleared => {
                self.map(1);
                self.entry("type", |w| w.text("AllBlocksCleared"));
            }
        }
    }

    fn array_event(&mut self, event: &WireEvent) {
        match event {
            WireEvent::Stored(event) => {
                self.array(12);
                self.text("BlockStored");
                self.hashes(&event.hashes);
                self.optional_hash(event.parent);
                self.tokens(&event.tokens);
                self.number(event.block_size.into());
                self.optional_number(event.lora_id);
                self.optional_text(event.medium.as_deref());
                self.optional_text(event.lora_name.as_deref());
                self.extra_keys(event.extra_keys.as_deref());
                self.number(0);
                self.text(KIND);
                self.optional_number(None);
            }
            WireEvent::Removed(event) => {
                self.array(4);
                self.text("BlockRemoved");
                self.hashes(&event.hashes);
                self.optional_text(event.medium.as_deref());
                self.number(0);
            }
            WireEvent::Cleared => {
                self.array(1);
                self.text("AllBlocksCleared");
            }
        }
    }

    fn entry(&mut self, key: &str, value: impl FnOnce(&mut Self)) {
        self.text(key);
        value(self);
    }

    fn hashes(&mut self, hashes: &[WireHash]) {
        self.array(hashes.len());
        for hash in hashes {
            self.hash(*hash);
        }
    }

    fn hash(&mut self, hash: WireHash) {
        match self.hash_form {
            HashForm::Int => self.number(hash.low()),
            HashForm::Bytes => infallible(encode::write_bin(&mut self.out, &hash.0)),
        }
    }

    fn optional_hash(&mut self, hash: Option<WireHash>) {
        match hash {
            Some(hash) => self.hash(hash),
            None => self.nil(),
        }
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        for token in tokens {
            self.number((*token).into());
        }
    }

    fn extra_keys(&mut self, blocks: Option<&[Option<Vec<WireKey>>]>) {
        let Some(blocks) = blocks else {
            return self.nil();
        };
        self.array(blocks.len());
        for block in blocks {
            let Some(keys) = block else {
                self.nil();
                continue;
            };
            self.array(keys.len());
            for key in keys {
                self.extra_key(key);
            }
        }
    }

    fn extra_key(&mut self, key: &WireKey) {
        match key {
            WireKey::Text(text) => self.text(text),
            WireKey::Item(identifier, place) => {
                self.array(2);
                self.text(identifier);
                infallible(encode::write_sint(&mut self.out, *place));
            }
        }
    }

    fn optional_number(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.number(number),
            None => self.nil(),
        }
    }

    fn optional_text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.nil(),
        }
    }

    fn array(&mut self, len: usize) {
        infallible(encode::write_array_len(&mut self.out, length(len)));
    }

    fn map(&mut self, pairs: usize) {
        infallible(encode::write_map_len(&mut self.out, length(pairs)));
    }

    fn number(&mut self, number: u64) {
        infallible(encode::write_uint(&mut self.out, number));
    }

    fn float(&mut self, number: f64) {
        infallible(encode::write_f64(&mut self.out, number));
    }

    fn text(&mut self, text: &str) {
        infallible(encode::write_str(&mut self.out, text));
    }

    fn nil(&mut self) {
        infallible(encode::write_nil(&mut self.out));
    }
}

fn length(len: usize) -> u32 {
    u32::try_from(len).expect("an engine publishes fewer than 2^32 blocks at once")
}

fn infallible<T, E: std::fmt::Debug>(written: Result<T, E>) {
    written.expect("writing to memory does not fail");
}
