//! Section `replicas`: routers that share state.

use std::{path::PathBuf, time::Duration};

use settings::{
    ValueKind,
    kinds::{int, seconds},
};

settings::section! {
    /// Section `replicas`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReplicasSection {
        /// How the routers of a fleet share state. `none`: each router has its own. `nats`: they share
        /// the events of engines with a replay endpoint, and snapshots of the index, over a NATS
        /// server. `peers`: they reach each other's admin listeners.
        mode: ReplicaMode = "none", restart;
        /// Routers with the same namespace and component share state.
        namespace: String = "warmroute", restart;
        /// Second part of the name under which routers share state.
        component: String = "router", restart;
        /// NATS stream that the routers share.
        nats: ReplicaStream, restart;
        /// The other routers, for mode `peers`: URLs of admin listeners (`http://host:9191`), or
        /// `dns:NAME:PORT` for every address of a name. Own addresses may be among them.
        peers: Vec<String> = "[]", restart;
        /// File of certificate authorities that are trusted for `https` peers beside those of the
        /// system, PEM.
        ca: Option<PathBuf> = "~", restart;
        /// Share the load of running requests with the other routers (`--router-replica-sync`).
        load_sync: bool = "false", restart;
        /// Discard the stream and the snapshot of earlier runs at the start
        /// (`--router-reset-states`). A single router has neither. Refused while other routers of the
        /// fleet run.
        reset_states: bool = "false", restart;
        /// Let `reset_states` discard them even while other routers of the fleet run.
        force_reset: bool = "false", restart;
        /// Interval at which routers compare the digests of their load.
        digest_interval: Duration = "1s" in ValueKind::Duration { least: Duration::from_millis(100) },
            restart;
        /// Time without a message after which a router counts as gone, and its load with it.
        peer_ttl: Duration = "15s" in ValueKind::Duration { least: Duration::from_secs(1) }, restart;
    }
}

settings::section! {
    /// Section `replicas.nats`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReplicaStream {
        /// URL of the NATS server, which must have JetStream. Unset: the variable `NATS_SERVER`, or
        /// nats://127.0.0.1:4222.
        url: Option<String> = "~" in ValueKind::Stream(&["nats", "tls"]), restart;
        /// File with a token, or with credentials of the form `.creds`.
        credentials_file: Option<PathBuf> = "~", restart;
        /// Name of the event stream.
        stream: String = "warmroute-kv", restart;
        /// Retention time of events in the stream.
        retention: Duration = "1h" in seconds(10, 7 * 86_400), restart;
        /// Number of messages in the stream after which a snapshot of the index replaces them
        /// (`--router-snapshot-threshold`).
        snapshot_threshold: u64 = "1000000" in int(1, u64::MAX), restart;
    }
}

settings::words! {
    /// How routers of one fleet share what they know.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ReplicaMode {
        /// Each learns for itself.
        Alone = "none",
        /// Events, snapshots and state travel over a NATS server with JetStream.
        Nats = "nats",
        /// They reach each other over HTTP.
        Peers = "peers",
    }
}
