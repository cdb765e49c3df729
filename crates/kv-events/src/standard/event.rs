//! One event of the standard contract, checked.

use std::sync::Arc;

use kv_blocks::{BlockSize, Namespace, PromptIdentity};

/// One event. Source: RFC 1527, contract MC8 and MC9.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StandardEvent {
    /// Its number in its stream: the only order there is.
    pub event_id: u64,
    /// The publisher's wall clock, milliseconds since 1970. Informational.
    pub timestamp_ms: Option<i64>,
    /// The stream it belongs to.
    pub stream: StreamKey,
    /// What happened.
    pub change: StandardChange,
    /// What a store calls the object, where it is no hash (Mooncake).
    pub object_key: Option<Arc<str>>,
}

/// The eight dimensions of a stream. What the envelope leaves open, or sends as null or as empty text, is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    /// `model_name`.
    pub model: Option<Arc<str>>,
    /// Tokens per block, 1 to 65,536.
    pub block_size: Option<u32>,
    /// `additional_salt`.
    pub salt: Option<Arc<str>>,
    /// `lora_name`; `None` is the base model.
    pub lora: Option<Arc<str>>,
    /// `tenant_id`.
    pub tenant: Option<Arc<str>>,
    /// Who owns the blocks: not always who serves them.
    pub backend_id: Option<Arc<str>>,
    /// Where the blocks are, as sent.
    pub medium: Option<Arc<str>>,
    /// Data-parallel rank.
    pub dp_rank: Option<u32>,
}

/// What happened to the blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StandardChange {
    /// Consecutive blocks became reusable.
    Stored {
        /// Their rolling hashes, first block first. Empty only where [`StandardEvent::object_key`] names the block.
        seq_hashes: Vec<u64>,
        /// How many blocks are in front of the first one; 0 is the beginning.
        base_block_idx: Option<u64>,
        /// The rolling hash of the block in front of the first one.
        parent_hash: Option<u64>,
        /// The tokens of all these blocks.
        token_ids: Option<Vec<u32>>,
    },
    /// Blocks are gone.
    Removed {
        /// Their rolling hashes. Empty only where [`StandardEvent::object_key`] names the block.
        seq_hashes: Vec<u64>,
        /// How many blocks are in front of the first one.
        base_block_idx: Option<u64>,
    },
    /// All blocks of the stream are gone.
    Cleared,
}

impl StandardChange {
    /// The value of `event_type`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Stored { .. } => "stored",
            Self::Removed { .. } => "removed",
            Self::Cleared => "cleared",
        }
    }
}

impl StreamKey {
    /// The same stream, with what it leaves open taken from a registration. Source: contract MC11.
    pub fn or(&self, registration: &Self) -> Self {
        let text = |own: &Option<Arc<str>>, other: &Option<Arc<str>>| {
            own.clone().or_else(|| other.clone())
        };
        Self {
            model: text(&self.model, &registration.model),
            block_size: self.block_size.or(registration.block_size),
            salt: text(&self.salt, &registration.salt),
            lora: text(&self.lora, &registration.lora),
            tenant: text(&self.tenant, &registration.tenant),
            backend_id: text(&self.backend_id, &registration.backend_id),
            medium: text(&self.medium, &registration.medium),
            dp_rank: self.dp_rank.or(registration.dp_rank),
        }
    }

    /// Where its blocks stand in an index, if the model and the block size are known. Tenant, backend, medium and rank are
    /// not part of that.
    pub fn namespace(&self) -> Option<Namespace> {
        Some(Namespace {
            model: self.model.clone()?,
            lora: self.lora.clone(),
            salt: self.salt.clone(),
            block_size: BlockSize::new(self.block_size?.into()).ok()?,
            identity: PromptIdentity::Tokens,
        })
    }
}
