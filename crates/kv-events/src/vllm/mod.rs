//! The vLLM payload: batches of events in msgpack. SGLang, LMCache, the simulated engines and several others speak it
//! with small differences, all of which are read here.
//!
//! [`decode`] turns bytes into [`Event`]s with every field the wire has, [`Normaliser`] turns events into what they mean
//! for an index, [`encode`] is the publisher's half. Nothing here knows who sent a batch or what came before it, except
//! that a [`Normaliser`] remembers which KV-cache groups a publisher has.
//!
//! Two encodings of an event are in the field, a positional array and a map with the tag under `type`; both are
//! accepted, event by event.

mod batch;
mod encode;
mod event;
mod fields;
mod medium;
mod update;

pub use batch::{EventBatch, VllmBatchError, decode, rank_of};
pub use encode::{EventLayout, HashForm, WireEvent, WireHash, WireRemoved, WireStored, encode};
pub use event::{BlockRemoved, BlockStored, ExtraKey, VllmEvent, VllmEventError, WireTokens};
pub use medium::Medium;
pub use update::{IgnoredEvent, IgnoredReason, Normaliser, to_update};
