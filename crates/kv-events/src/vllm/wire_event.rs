//! Events to publish, and the encodings that vLLM has used for them.

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
    /// Further inputs of each block's hash (adapter name, then multimodal items, then salt): one
    /// entry per block, or `None`.
    pub extra_keys: Option<Vec<Option<Vec<WireKey>>>>,
}

/// One further input of a block's hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireKey {
    /// An adapter's name or a salt.
    Text(String),
    /// A multimodal item's identifier, and the place of its first token relative to the first token
    /// of the block.
    Item(String, i64),
}

impl From<String> for WireKey {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Blocks that were removed from one medium. They are written as group 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireRemoved {
    /// The blocks.
    pub hashes: Vec<WireHash>,
    /// The medium that they left.
    pub medium: Option<String>,
}
