//! Section `discovery`: sources of workers besides the configured ones.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde_json::{Map, Value};

/// Section `discovery`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiscoverySection {
    /// File with a list of workers.
    pub file: Option<PathBuf>,
    /// DNS names that resolve to workers.
    pub dns: Vec<DnsName>,
    /// File that stores the workers added and removed by operators.
    pub state_file: Option<PathBuf>,
    /// Time after which a source that suddenly lists no worker is believed.
    pub empty_list_grace: Duration,
    /// Time after which the absence of a flapping worker is believed.
    pub flap_damping: Duration,
}

impl DiscoverySection {
    /// Returns whether workers may come from other sources than the configuration.
    pub fn finds_any(&self) -> bool {
        self.file.is_some() || !self.dns.is_empty() || self.state_file.is_some()
    }
}

/// An entry of `discovery.dns`.
#[derive(Clone, Debug, PartialEq)]
pub struct DnsName {
    /// Host name.
    pub host: String,
    /// Port of the workers; `None`: from SRV records.
    pub port: Option<u16>,
    /// DNS server; `None`: the system's name servers.
    pub server: Option<SocketAddr>,
    /// Time between queries.
    pub interval: Duration,
    /// Further keys of each worker's entry.
    pub worker: Map<String, Value>,
}
