//! Section `replicas`: routers that share state.

use std::{path::PathBuf, time::Duration};

use settings::{ValueKind, kinds::int};

settings::section! {
    /// Section `replicas`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReplicasSection {
        /// How the routers of a fleet share state. `none`: each router has its own; `nats`: over a
        /// NATS server; `peers`: they reach each other's admin listeners.
        mode: ReplicaMode = "none", restart;
        /// Routers with the same namespace and component share state.
        namespace: String = "warmroute", restart;
        /// Second part of the name under which routers share state.
        component: String = "router", restart;
        /// NATS stream that the routers share.
        nats: ReplicaStream, live;
        /// The other routers, for mode `peers`: URLs of admin listeners (`http://host:9191`), or
        /// `dns:NAME:PORT` for every address of a name. Own addresses may be among them.
        peers: Vec<String> = "[]", restart;
        /// File of certificate authorities that are trusted for `https` peers beside those of the
        /// system, PEM.
        ca: Option<PathBuf> = "~", restart;
        /// Share the load of running requests with the other routers (`--router-replica-sync`).
        load_sync: bool = "false", restart;
        /// Discard the stream and the snapshot of earlier runs at the start
        /// (`--router-reset-states`). A single router has neither.
        reset_states: bool = "false", restart;
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
        /// URL of the NATS server.
        url: Option<String> = "~" in ValueKind::Stream(&["nats", "tls"]), restart;
        /// Name of the event stream.
        stream: String = "warmroute-kv", later;
        /// Retention time of events in the stream.
        retention: Duration = "1h", later;
        /// Number of messages in the stream after which a snapshot of the index replaces them
        /// (`--router-snapshot-threshold`).
        snapshot_threshold: u64 = "1000000" in int(1, u64::MAX), later;
    }
}

settings::words! {
    /// How routers of one fleet share what they know.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ReplicaMode {
        /// Each learns for itself.
        Alone = "none",
        /// They share a NATS server.
        Nats = "nats",
        /// They reach each other over HTTP.
        Peers = "peers",
    }
}
