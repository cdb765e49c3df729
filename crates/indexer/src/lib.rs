//! The Conductor API: other routers query over HTTP how much of a prompt each engine holds.
//!
//! Publishers of KV events are registered and unregistered by request; each runs as an
//! [`event_sources::ZmqSource`] on the index that the queries read. The same routes serve two
//! roles: alone (`warmroute indexer`), and on a router's admin listener, where the router's own
//! workers are instances too ([`ResidentInstances`]).
//!
//! Not here: access control (the listener), the meaning of events (`kv-events`), the block index
//! (`kv-index`).
//!
//! **Invariant**: a query creates no state and takes no lock of the index, except that of the labels
//! of unknown media once there are some; its reply has a row for each instance of its tenant and for
//! nothing else.
//! **Invariant**: when an unregistration is answered, the blocks credited to that publisher are out
//! of the index, and no others.

mod body;
mod error;
mod field_map;
mod fields;
mod indexer;
mod msgpack;
mod query;
mod query_reply;
mod registration;
mod registry;
mod reply;
mod resident;
mod routes;
mod stores;
mod views;

pub use indexer::{Indexer, IndexerParts};
pub use resident::{ResidentInstance, ResidentInstances};
pub use routes::{PATHS, refusal, routes, stand_alone};
