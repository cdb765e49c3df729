//! The Conductor API: who holds how much of a prompt, asked over HTTP by routers that are not this one.
//!
//! Publishers of KV events are registered and unregistered by request; each runs as an [`event_sources::ZmqSource`] on the
//! index that the queries read. The same routes serve two roles: alone (`warmroute indexer`), and on a router's admin
//! listener, where the router's own workers are instances too ([`Residents`]).
//!
//! Not here: who may ask (the listener's access rule), what events mean (`kv-events`), what is held (`kv-index`).
//!
//! **Invariant**: a query creates no state and takes no lock of the index; its answer has a row for each instance of its tenant
//! and for nothing else.
//! **Invariant**: what a publisher was credited with is gone from the index when its unregistration is answered, and nothing
//! else is.

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
pub use routes::{refusal, routes, stand_alone};
