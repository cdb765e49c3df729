//! The state of a log for operators.

use std::{collections::BTreeMap, sync::Arc};

use crate::{LogCounts, StreamRole};

/// The state of a log for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogReport {
    /// The name of this replica.
    pub replica: Arc<str>,
    /// Whether the log is in use.
    pub connected: bool,
    /// The last error, while there is one.
    pub last_error: Option<String>,
    /// Messages by outcome.
    pub counts: LogCounts,
    /// Messages that wait to be published.
    pub outbox: usize,
    /// The last message taken, in the log's sequence.
    pub taken: u64,
    /// Messages that the server had for this replica behind it.
    pub pending: u64,
    /// The joined streams by role.
    pub roles: BTreeMap<String, StreamRole>,
    /// The snapshot in force at the last look for one.
    pub snapshot: Option<SnapshotReport>,
    /// The replicas that are present.
    pub replicas: Vec<ReplicaReport>,
}

/// A snapshot of the index in the object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotReport {
    /// When it was made, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Its size.
    pub bytes: u64,
    /// Messages of the log that it does not cover.
    pub messages: u64,
}

/// A replica as this one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaReport {
    /// Its name.
    pub replica: Arc<str>,
    /// Whether it can publish.
    pub able: bool,
    /// The last message that it has taken, in the log's sequence.
    pub acknowledged: u64,
}
