//! Events that are well formed and still cannot be used.

/// Why an event of the standard contract was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventRejection {
    /// Hashes of somebody else's making cannot be compared with ours.
    #[error(
        "stored event names its blocks by hash only, which is trusted where block_hash is xxh3: have the publisher send \
         token_ids, or set kv_events.block_hash: xxh3"
    )]
    NotStandard,
    /// Tokens cannot be cut into blocks of unknown size.
    #[error(
        "event has token_ids but no block_size: expected it in the event or in the registration"
    )]
    NoBlockSize,
    /// There are not as many tokens as the blocks hold.
    #[error("event has {found} token_ids: expected {expected}, block_size times seq_hashes")]
    TokenCount {
        /// Tokens in the event.
        found: usize,
        /// Tokens of its blocks.
        expected: u64,
    },
    /// The hashes do not follow from the tokens.
    #[error(
        "block {block} of the event has the hash {found}, but its token_ids give {expected}: check the publisher's hash \
         and seed against kv_events.block_hash and block_hash_seed"
    )]
    Mismatch {
        /// Which block of the event, from 0.
        block: usize,
        /// As published.
        found: u64,
        /// As computed.
        expected: u64,
    },
    /// A hash that stands for a whole prefix cannot come twice in one.
    #[error("event has a block twice, or a block as its own parent: expected every seq_hash once")]
    Repeated,
    /// Nothing says behind which block it belongs.
    #[error(
        "event begins at block {base}, but the blocks in front are unknown: have the publisher send parent_hash"
    )]
    Unplaced {
        /// Blocks in front of it.
        base: u64,
    },
    /// The object key is no block's name.
    #[error("event has no seq_hashes, and its object_key ends with no digest: expected either")]
    NoNames,
    /// Names alone say nothing about a device's cache.
    #[error(
        "event names blocks of the device without token_ids: expected a medium such as cpu or disk"
    )]
    OnDevice,
    /// Only a namespace of a tier can be cleared, and the event names none.
    #[error(
        "cleared event of {tier} names no model and block_size: expected them in the event or in the registration"
    )]
    NoNamespace {
        /// The tier that was cleared.
        tier: &'static str,
    },
}

impl EventRejection {
    /// A closed set of words, for a metric's label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::NotStandard => "not_standard",
            Self::NoBlockSize => "no_block_size",
            Self::TokenCount { .. } => "token_count",
            Self::Mismatch { .. } => "mismatch",
            Self::Repeated => "repeated",
            Self::Unplaced { .. } => "unplaced",
            Self::NoNames => "no_names",
            Self::OnDevice => "on_device",
            Self::NoNamespace { .. } => "no_namespace",
        }
    }
}
