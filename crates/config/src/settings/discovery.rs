//! Section `discovery`: workers that are found.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde_json::{Map, Value};

/// Section `discovery`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiscoverySection {
    /// File with a list of workers.
    pub file: Option<PathBuf>,
    /// Names that stand for workers.
    pub dns: Vec<DnsName>,
    /// File that keeps what operators added and took out.
    pub state_file: Option<PathBuf>,
    /// A source that suddenly names no worker is believed after this.
    pub empty_list_grace: Duration,
    /// A worker that came and went is believed gone after this.
    pub flap_damping: Duration,
}

impl DiscoverySection {
    /// Whether workers may come that the configuration does not name.
    pub fn finds_any(&self) -> bool {
        self.file.is_some() || !self.dns.is_empty() || self.state_file.is_some()
    }
}

/// An entry of `discovery.dns`.
#[derive(Clone, Debug, PartialEq)]
pub struct DnsName {
    /// The name.
    pub host: String,
    /// Port of the workers; `None`: SRV records say it.
    pub port: Option<u16>,
    /// Who is asked; `None`: the system's name servers.
    pub server: Option<SocketAddr>,
    /// Time between questions.
    pub interval: Duration,
    /// What else stands in each worker's entry.
    pub worker: Map<String, Value>,
}
