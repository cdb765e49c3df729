//! The shared types of KV-cache blocks: their identities, their owners and their storage tiers.
//!
//! All other crates use these types. This crate reads no clock, socket or file, and does not know
//! how blocks are stored, looked up or announced.
//!
//! **Invariant**: equal tokens and multimodal items under equal [`HashScheme`] and [`BlockSize`]
//! give equal [`SequenceHash`]es, on every machine and in every release. Model, LoRA and salts are
//! *not* in the hash: they are in [`Namespace`].

mod block;
mod chain;
mod chain_head;
mod media;
mod moment;
mod namespace;
mod stream_position;
mod target;
mod tier;
mod update;

pub use block::{BlockHash, BlockSize, BlockSizeError, EngineHash, SequenceHash};
pub use chain::{HashScheme, PromptBlocks};
pub use media::{MediaHash, MediaItem, PromptMedia};
pub use moment::Moment;
pub use namespace::{Namespace, PromptIdentity};
pub use stream_position::StreamPosition;
pub use target::{DpRank, Role, Target, WorkerId};
pub use tier::Tier;
pub use update::{IndexUpdate, NamedBlocks, RemovedBlocks, StoredBlocks};
