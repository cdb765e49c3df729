//! Section `replicas`: routers that share state. In this version each router runs by itself.

use std::time::Duration;

use settings::{ValueKind, kinds::int};

settings::section! {
    /// Section `replicas`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReplicasSection {
        /// How routers of one fleet share what they know; `none` = each learns for itself.
        mode: ReplicaMode = "none", restart;
        /// Those of one namespace and component share.
        namespace: String = "warmroute", later;
        /// The second part of that name.
        component: String = "router", later;
        /// The stream that routers share.
        nats: ReplicaStream, live;
        /// The other routers.
        peers: Vec<String> = "[]", later;
        /// Tell the other routers which requests run where (`--router-replica-sync`).
        load_sync: bool = "false", later;
        /// Start without what earlier runs left in stream and snapshot (`--router-reset-states`); a
        /// router by itself leaves nothing.
        reset_states: bool = "false", restart;
        /// Time between comparisons of what each knows.
        digest_interval: Duration = "1s", later;
        /// A router that is not heard for this long is gone.
        peer_ttl: Duration = "15s", later;
    }
}

settings::section! {
    /// Section `replicas.nats`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReplicaStream {
        /// The server.
        url: Option<String> = "~" in ValueKind::Stream(&["nats", "tls"]), later;
        /// Name of the stream of events.
        stream: String = "warmroute-kv", later;
        /// How long the stream keeps events.
        retention: Duration = "1h", later;
        /// Messages in the stream at which a snapshot of the index takes their place
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
