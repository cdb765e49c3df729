//! The vocabulary of KV-cache blocks: what a block is called, who holds it, and in which tier.
//!
//! Every other crate speaks in these types. Nothing here reads a clock, a socket or a file, and nothing here knows how
//! blocks are stored, looked up or announced.
//!
//! **Invariant**: equal tokens under equal [`HashScheme`] and [`BlockSize`] give equal [`SequenceHash`]es, on every
//! machine and in every release. Model, LoRA and salts are *not* in the hash: they stand beside it as [`Namespace`].

mod block;
mod chain;
mod moment;
mod namespace;
mod target;
mod tier;
mod update;

pub use block::{BlockHash, BlockSize, BlockSizeError, EngineHash, SequenceHash};
pub use chain::{HashScheme, PromptBlocks};
pub use moment::Moment;
pub use namespace::{Namespace, PromptIdentity};
pub use target::{DpRank, Role, Target, WorkerId};
pub use tier::Tier;
pub use update::{IndexUpdate, NamedBlocks, RemovedBlocks, StoredBlocks};
