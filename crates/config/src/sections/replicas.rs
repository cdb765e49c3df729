//! Section `replicas`: routers that share state. In this version each router runs by itself.

use std::time::Duration;

use settings::{ValueKind, kinds::int};

settings::section! {
    /// Section `replicas`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReplicasSection {
        /// Sharing of state between the routers of a fleet. `none`: each router has its own state.
        mode: ReplicaMode = "none", restart;
        /// Routers with the same namespace and component share state.
        namespace: String = "warmroute", later;
        /// Second part of the name under which routers share state.
        component: String = "router", later;
        /// NATS stream that the routers share.
        nats: ReplicaStream, live;
        /// The other routers.
        peers: Vec<String> = "[]", later;
        /// Report the load of running requests to the other routers (`--router-replica-sync`).
        load_sync: bool = "false", later;
        /// Discard the stream and the snapshot of earlier runs at the start
        /// (`--router-reset-states`). A single router has neither.
        reset_states: bool = "false", restart;
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
        /// URL of the NATS server.
        url: Option<String> = "~" in ValueKind::Stream(&["nats", "tls"]), later;
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
    }
    later "nats", "peers";
}
