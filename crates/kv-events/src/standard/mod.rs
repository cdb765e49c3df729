//! Events of the standard contract (RFC 1527): envelopes that name their model, salt and medium,
//! with blocks named by their plain rolling hashes. In JSON and msgpack; the format of the Mooncake
//! store's master is decoded too.
//!
//! [`decode_json`] and [`decode_msgpack`] turn bytes into [`StandardEvent`]s, [`StandardStreams`]
//! orders them, and an [`EnvelopeNormaliser`] converts those of one publisher into index updates,
//! by [`to_hashed`] or [`to_named`], within the scope of the publisher's registration.
//!
//! **Invariant**: an event never comes out of [`StandardStreams`] before the one in front of it,
//! unless a [`Hole`](StreamOutput::Hole) was reported.
//!
//! ```
//! use kv_blocks::HashScheme;
//! use kv_events::standard::{HashKeyedUpdate, decode_json, to_hashed};
//!
//! let event = br#"{"event_id": 7, "event_type": "stored", "model_name": "qwen", "block_size": 16,
//!     "medium": "cpu", "seq_hashes": ["16863443419780771464"], "base_block_idx": 0}"#;
//! let event = decode_json(event)?.remove(0)?;
//! let update = to_hashed(&event, HashScheme::default())?;
//! let HashKeyedUpdate::Stored { parent: None, hashes, .. } = update else { panic!() };
//! assert_eq!(hashes.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod decode;
mod encode;
mod event;
mod field;
mod field_access;
mod hash_keyed;
mod named;
mod normaliser;
mod read;
mod rejection;
mod streams;
mod value;

pub use decode::{MAX_EVENTS, decode, decode_json, decode_msgpack, is_standard};
pub use encode::{encode_json, encode_msgpack};
pub use event::{EventNumber, StandardChange, StandardEvent, StreamKey};
pub use hash_keyed::{HashKeyedUpdate, to_hashed};
pub use named::to_named;
pub use normaliser::{EnvelopeChange, EnvelopeNormaliser, EnvelopeUpdate};
pub use rejection::EventRejection;
pub use streams::{OrderingCounts, StandardStreams, StandardStreamsSettings, StreamOutput};
