//! Section `discovery`: sources of workers besides the configured ones.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde_json::{Map, Value};
use settings::{
    AddressRange,
    kinds::{ANY_PORT, SECONDS_OR_ZERO},
};

settings::section! {
    /// Section `discovery`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct DiscoverySection {
        /// File with a list of `workers` entries in YAML or JSON; it is read again when it changes.
        file: Option<PathBuf> = "~", restart;
        /// DNS names of workers; each address is one worker.
        dns: Vec<DnsName> = "[]", restart;
        /// Networks in which discovered workers, and those registered over the admin API, may be;
        /// the address is checked at each connection, after its name is resolved. Empty: anywhere but
        /// at metadata services and addresses of no single host. Workers of this configuration may be
        /// anywhere.
        allowed_networks: Vec<AddressRange> = "[]", restart;
        /// Discovery by the Kubernetes API.
        kubernetes: Option<serde_json::Value> = "~", later;
        /// File that stores which workers operators added and removed, for the next start
        /// (`--state-file`).
        state_file: Option<PathBuf> = "~", restart;
        /// Time for which an empty list from a source is ignored if the source listed workers
        /// before.
        empty_list_grace: Duration = "60s" in SECONDS_OR_ZERO, restart;
        /// A worker that a source removed and listed again within this time is next removed only
        /// after it has been missing for this time.
        flap_damping: Duration = "30s" in SECONDS_OR_ZERO, restart;
    }
}

settings::section! {
    /// An entry of `discovery.dns`.
    #[derive(Clone, Debug, PartialEq)]
    pub optional struct DnsName {
        /// Name to resolve. Required.
        host: String = "~", restart;
        /// Port of the workers. `auto`: from the SRV records of the name.
        port: Option<u16> = "auto" in ANY_PORT, restart;
        /// Scheme of the workers' URLs. With `https` only a server with a certificate for the name
        /// in the SRV record, or for the address, gets requests and keys, whoever answers the
        /// lookup.
        scheme: DnsScheme = "http", restart;
        /// Name server, as in 127.0.0.1:8600. Unset: that of the system.
        server: Option<SocketAddr> = "~", restart;
        /// Interval between lookups.
        interval: Duration = "10s", restart;
        /// Further keys for the entry of each worker found, such as `type` or `api_key`.
        worker: Map<String, Value> = "~", restart;
    }
}

settings::words! {
    /// `discovery.dns[].scheme`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DnsScheme {
        /// Unencrypted.
        Http = "http",
        /// With TLS.
        Https = "https",
    }
}

impl DiscoverySection {
    /// Returns whether workers may come from other sources than the configuration.
    pub fn finds_any(&self) -> bool {
        self.file.is_some() || !self.dns.is_empty() || self.state_file.is_some()
    }
}
