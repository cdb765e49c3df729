//! The fleet's KV events on NATS JetStream: published once, taken by every replica.
//!
//! | module | what it has |
//! |---|---|
//! | `names`, `message` | the names of one fleet on the server, and the form of a message |
//! | `ownership` | which replica publishes which stream: a state machine |
//! | `log`, `presence`, `publisher`, `consumer`, `ability` | [`EventLog`]: the tasks of one connection |
//! | `log_member`, `member`, `history` | [`LogMember`]: one worker's stream, its present and its past |
//! | `snapshot`, `snapshot_task`, `reset` | [`SnapshotStore`]: the index in the object store, when it is stored, and how all is discarded |
//!
//! Not here: what a batch means, and whether it continues what a replica has (`kv-events`), and the
//! sockets to the engines (`event-sources`).
//!
//! **Invariant**: nothing that routes or follows an engine waits for the server: messages go
//! through bounded queues, and what does not fit is dropped and counted. The log proves nothing by
//! itself: a reader takes a batch only as the continuation of the one it has.

mod ability;
mod consumer;
mod counts;
mod history;
mod log;
mod log_member;
mod member;
mod message;
mod names;
mod outbox;
mod ownership;
mod presence;
mod publisher;
mod report;
mod reset;
mod snapshot;
mod snapshot_task;

pub use counts::LogCounts;
pub use history::LogHistory;
pub use log::{EventLog, EventLogSettings};
pub use log_member::LogMember;
pub use member::LogDelivery;
pub use message::{LogBatch, LogMessage};
pub use names::{LogNameError, LogNames};
pub use ownership::StreamRole;
pub use report::{LogReport, ReplicaReport, SnapshotReport};
pub use reset::{ResetError, reset};
pub use snapshot::{RestoredSnapshot, SnapshotLock, SnapshotPointer, SnapshotStore};
pub use snapshot_task::{SnapshotSettings, SnapshotSource, SnapshotTask};
