//! Routers that share state.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Name;

/// `GET /admin/replicas`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReplicaReports {
    /// Id of the router that answers, 16 hexadecimal digits, drawn when its process started.
    #[serde(rename = "self")]
    pub own: String,
    /// How state is shared.
    #[schemars(extend("enum" = ["none", "nats", "peers"]))]
    pub mode: Name,
    /// First part of the name under which state is shared.
    pub namespace: String,
    /// Second part of that name.
    pub component: String,
    /// Whether load is shared.
    pub load_sync: bool,
    /// Every replica that is known, this one first.
    pub replicas: Vec<ReplicaReport>,
    /// The latest snapshot of the index that the replicas share.
    pub snapshot: SharedSnapshot,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReplicaReport {
    /// Its id.
    pub id: String,
    /// Its admin listener.
    pub address: String,
    /// Version of its program.
    pub version: String,
    /// Seconds since it was first seen, or since its last return; of this router, since its start.
    pub since_s: f64,
    /// Seconds since its last message.
    pub last_seen_s: f64,
    /// `joining`: its load is being fetched. `refused`: it has another version or other settings,
    /// see `reason`.
    #[schemars(extend("enum" = ["live", "joining", "lost", "refused"]))]
    pub state: Name,
    /// Why it is refused.
    #[schemars(extend("enum" = ["version", "settings", null]))]
    pub reason: Option<Name>,
    /// Digest of its open requests as it reports it, 16 hexadecimal digits.
    pub load_digest: String,
    /// Its open requests as it reports them.
    pub open_requests: u64,
    /// Requests that wait in its queue as it reports them.
    pub queued_requests: u64,
    /// Its open requests that count here.
    pub counted_requests: u64,
    /// How often its whole load had to be fetched again.
    pub repairs: u64,
    /// Digest of its block index over all workers, 16 hexadecimal digits; `null` for an index that
    /// is too large to be read every time (`/admin/kv-index/digest` reads it).
    pub index_digest: Option<String>,
    /// Messages of the shared event stream that it has not applied.
    pub lag_messages: u64,
    /// Event streams that it publishes, as `worker/rank`.
    pub owns_streams: Vec<String>,
}

/// A snapshot of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SharedSnapshot {
    /// When it was stored, RFC 3339; `null`: there is none.
    pub at: Option<String>,
    /// Messages of the event stream since then.
    pub messages: u64,
    /// Its size.
    pub bytes: u64,
}
