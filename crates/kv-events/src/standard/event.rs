//! One event of the standard contract, checked.

use std::sync::Arc;

use kv_blocks::{BlockSize, Namespace, PromptIdentity};

use crate::vllm::Medium;

/// One event. Source: RFC 1527, contract MC8 and MC9.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StandardEvent {
    /// The event's number in its stream: the only order there is.
    pub event_id: u64,
    /// The publisher's wall clock, milliseconds since 1970. Informational.
    pub timestamp_ms: Option<i64>,
    /// The stream of the event.
    pub stream: StreamKey,
    /// The change that it reports.
    pub change: StandardChange,
    /// A store's name of the object, where it is not a hash (Mooncake).
    pub object_key: Option<Arc<str>>,
}

/// The place of an event in the order of its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNumber {
    /// The stream.
    pub stream: StreamKey,
    /// The event's number in it.
    pub event_id: u64,
}

/// The eight dimensions of a stream. A dimension that is absent, null or empty in the envelope is
/// `None`.
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
    /// The owner of the blocks, which may differ from the backend that serves them.
    pub backend_id: Option<Arc<str>>,
    /// The medium of the blocks, as sent.
    pub medium: Option<Arc<str>>,
    /// Data-parallel rank.
    pub dp_rank: Option<u32>,
}

/// A change of blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StandardChange {
    /// Consecutive blocks became reusable.
    Stored {
        /// Their rolling hashes, first block first. Empty only where [`StandardEvent::object_key`]
        /// names the block.
        seq_hashes: Vec<u64>,
        /// Blocks in front of the first one; 0 is the beginning.
        base_block_idx: Option<u64>,
        /// The rolling hash of the block in front of the first one.
        parent_hash: Option<u64>,
        /// The tokens of all blocks in the event.
        token_ids: Option<Vec<u32>>,
    },
    /// Blocks were removed.
    Removed {
        /// Their rolling hashes. Empty only where [`StandardEvent::object_key`] names the block.
        seq_hashes: Vec<u64>,
        /// Blocks in front of the first one.
        base_block_idx: Option<u64>,
    },
    /// All blocks of the stream were removed.
    Cleared,
}

impl StandardEvent {
    /// Returns whether the event only names an object of a store, as the Mooncake store's master
    /// does: by its key, or by a hash without model, block size, parent and tokens.
    pub fn names_only(&self) -> bool {
        let has_position = matches!(
            &self.change,
            StandardChange::Stored { parent_hash, token_ids, .. }
                if parent_hash.is_some() || token_ids.is_some()
        );
        let StreamKey {
            model, block_size, ..
        } = &self.stream;
        self.object_key.is_some() || model.is_none() && block_size.is_none() && !has_position
    }
}

impl StandardChange {
    /// Returns the value of `event_type`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Stored { .. } => "stored",
            Self::Removed { .. } => "removed",
            Self::Cleared => "cleared",
        }
    }
}

impl StreamKey {
    /// Returns this stream with open dimensions filled in from a registration. Source: contract
    /// MC11.
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

    /// Returns the meaning of its medium's name.
    pub fn medium(&self) -> Medium {
        Medium::parse(self.medium.as_deref(), None)
    }

    /// Returns whether its medium has an unknown name.
    pub fn has_unlisted_medium(&self) -> bool {
        self.medium() == Medium::Unlisted
    }

    /// Returns the namespace of its blocks in an index, if the model and the block size are known.
    /// Tenant, backend, medium and rank are not part of it.
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
