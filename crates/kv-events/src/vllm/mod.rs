//! The vLLM payload: batches of events in msgpack. SGLang, LMCache, the simulated engines and
//! several others use it with small differences, all of which are decoded here.
//!
//! [`decode`] turns bytes into [`VllmEvent`]s with every field of the wire format, [`Normaliser`]
//! turns events into index updates, [`encode`] is the publisher's half. Nothing here knows the
//! sender of a batch or the batches before it, except that a [`Normaliser`] remembers which
//! KV-cache groups a publisher has.
//!
//! Publishers use two encodings of an event, a positional array and a map with the tag under
//! `type`; both are accepted, event by event.

mod batch;
mod encode;
mod event;
mod event_error;
mod extra_keys;
mod fields;
mod ignored;
mod medium;
mod update;
mod values;
mod wire_event;

pub use batch::{EventBatch, VllmBatchError, decode, rank_of};
pub use encode::encode;
pub use event::{BlockLocation, BlockRemoved, BlockStored, KvCacheGroup, LoraAdapter, VllmEvent};
pub use event_error::VllmEventError;
pub use ignored::{IgnoredEvent, IgnoredReason};
pub use medium::Medium;
pub use update::{Normaliser, to_update};
pub use values::{ExtraKey, WireTokens};
pub use wire_event::{
    EventEncoding, EventLayout, HashForm, WireEvent, WireHash, WireKey, WireRemoved, WireStored,
};
