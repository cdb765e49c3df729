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
mod fields;
mod medium;
mod update;

pub use batch::{EventBatch, VllmBatchError, decode, rank_of};
pub use encode::{
    EventEncoding, EventLayout, HashForm, WireEvent, WireHash, WireRemoved, WireStored, encode,
};
pub use event::{BlockRemoved, BlockStored, ExtraKey, VllmEvent, VllmEventError, WireTokens};
pub use medium::Medium;
pub use update::{IgnoredEvent, IgnoredReason, Normaliser, to_update};
