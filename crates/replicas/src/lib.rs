//! Replicas: routers that share state.
//!
//! Every replica sends the changes of its own load to the others, which count it beside their own
//! (`routing::replication`), so that a fleet behind several routers is routed as if there were one.
//! Learned speeds, sessions, stored responses and cool-downs go the same way.
//!
//! | module | purpose |
//! |---|---|
//! | `wire` | the messages, and chains of blocks that they name by one hash |
//! | `load` | the router's changes as messages, and back |
//! | `peers` | pure: who is there, which changes are missing, when to fetch a whole load |
//! | `probe` | one look at the replicas that run, for the doctor |
//! | `transport` | HTTP between replicas, or a bus |
//! | `exchange` | the task that connects these with the router |
//! | `replicas` | the handle for the rest of the process |
//!
//! Not here: KV events and snapshots of the index, and the meaning of load.
//!
//! **Invariant**: no request and no decision waits for a peer or a bus.
//! **Invariant**: load of a peer that is lost is removed within `replicas.peer_ttl`; load that was
//! added or kept in error, within two digest intervals.

mod exchange;
mod identity;
mod load;
mod note_queue;
mod peer_snapshots;
mod peers;
mod probe;
mod replicas;
mod report;
mod settings_digest;
mod telemetry;
mod transport;
mod wire;

pub use identity::ReplicaIdentity;
pub use load::{SharedNote, WorkerDirectory};
pub use note_queue::NoteQueue;
pub use peer_snapshots::PeerSnapshots;
#[cfg(feature = "nats")]
pub use probe::probe_bus;
pub use probe::{PeerFailure, PeerProbe, ReplicaMismatch, SeenReplica, probe_peers};
pub use replicas::{LoadSink, ReplicaParts, ReplicaStartError, Replicas, SharedEvents};
pub use settings_digest::settings_digest;
pub use transport::{Feed, PeerAddressError};

/// Header of a feed with the sender's id.
pub const REPLICA_HEADER: &str = "x-warmroute-replica";
