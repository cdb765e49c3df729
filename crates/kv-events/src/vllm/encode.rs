//! Encoding of batches as vLLM writes them, byte for byte.

use rmp::encode;

/// Layout of an encoded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLayout {
    /// A map with the tag under `type`, as in vLLM from 0.24 on: fields at their default are left
    /// out, fields without a default are written as nil.
    Map,
    /// A positional array, as in vLLM 0.22 and 0.23: every field is written.
    Array,
}

/// Form of an encoded block hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashForm {
    /// The low 64 bits, unsigned.
    Int,
    /// The whole digest.
    Bytes,
}

/// Encoding of an engine's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventEncoding {
    /// The layout of each event.
    pub layout: EventLayout,
    /// The form of their hashes.
    pub hash_form: HashForm,
}

impl EventEncoding {
    /// The encoding of vLLM from 0.24 on, with its default hashes.
    pub const CURRENT: Self = Self {
        layout: EventLayout::Map,
        hash_form: HashForm::Int,
    };
}

/// A block's digest. An integer hash becomes the low 64 bits of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireHash(pub [u8; 32]);

impl WireHash {
    /// Returns the low 64 bits, which a reader uses as the block's key in either form.
    pub fn low(self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl From<u64> for WireHash {
    fn from(low: u64) -> Self {
        let mut digest = [0; 32];
        digest[24..].copy_from_slice(&low.to_be_bytes());
        Self(digest)
    }
}

/// An event to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireEvent {
    /// Blocks became reusable.
    Stored(WireStored),
    /// Blocks were removed from one medium.
    Removed(WireRemoved),
    /// The device cache was emptied.
    Cleared,
}

/// Blocks that became reusable. They are written as group 0, kind `full_attention`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireStored {
    /// The blocks, in sequence order.
    pub hashes: Vec<WireHash>,
    /// The block before the first one.
    pub parent: Option<WireHash>,
    /// Their tokens.
    pub tokens: Vec<u32>,
    /// Tokens per block.
    pub block_size: u32,
    /// The adapter's number.
    pub lora_id: Option<u64>,
    /// The adapter's name.
    pub lora_name: Option<String>,
    /// The medium of the blocks: `GPU` for an engine's own cache.
    pub medium: Option<String>,
    /// Further inputs of each block's hash (adapter name, then salt): one entry per block, or
    /// `None`.
    pub extra_keys: Option<Vec<Option<Vec<String>>>>,
}

/// Blocks that were removed from one medium. They are written as group 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireRemoved {
    /// The blocks.
    pub hashes: Vec<WireHash>,
    /// The medium that they left.
    pub medium: Option<String>,
}

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

    fn extra_keys(&mut self, blocks: Option<&[Option<Vec<String>>]>) {
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
                self.text(key);
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
