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
        /// Sharing of state between the routers of a fleet. `none`: each router has its own state. `nats`:
        /// they share the events of engines with a replay endpoint, and snapshots of the index.
        mode: ReplicaMode = "none", restart;
        /// Routers with the same namespace and component share state.
        namespace: String = "warmroute", restart;
        /// Second part of the name under which routers share state.
        component: String = "router", restart;
        /// NATS stream that the routers share.
        nats: ReplicaStream, restart;
        /// The other routers.
        peers: Vec<String> = "[]", later;
        /// Report the load of running requests to the other routers (`--router-replica-sync`).
        load_sync: bool = "false", later;
        /// Discard the stream and the snapshot of earlier runs at the start
        /// (`--router-reset-states`). A single router has neither. Refused while other routers of the
        /// fleet run.
        reset_states: bool = "false", restart;
        /// Let `reset_states` discard them even while other routers of the fleet run.
        force_reset: bool = "false", restart;
        /// Interval between comparisons of the routers' states.
        digest_interval: Duration = "1s", later;
        /// Time without a message after which a router counts as gone.
        peer_ttl: Duration = "15s", later;
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
    }
    later "peers";
}
