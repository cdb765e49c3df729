//! Section `discovery`: sources of workers besides the configured ones.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde_json::{Map, Value};
use settings::kinds::{ANY_PORT, SECONDS_OR_ZERO};

settings::section! {
    /// Section `discovery`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct DiscoverySection {
        /// File with a list of entries of `workers`, in YAML or JSON, read again whenever it
        /// changes.
        file: Option<PathBuf> = "~", restart;
        /// Names that stand for workers: one worker for each address.
        dns: Vec<DnsName> = "[]", restart;
        /// Workers found by the Kubernetes API.
        kubernetes: Option<serde_json::Value> = "~", later;
        /// File that keeps the workers which operators added or took out, over a restart
        /// (`--state-file`).
        state_file: Option<PathBuf> = "~", restart;
        /// A source that suddenly names no worker at all is believed only after this.
        empty_list_grace: Duration = "60s" in SECONDS_OR_ZERO, restart;
        /// A worker that went and came again within this goes only after it has been missing for as
        /// long.
        flap_damping: Duration = "30s" in SECONDS_OR_ZERO, restart;
    }
}

settings::section! {
    /// An entry of `discovery.dns`.
    #[derive(Clone, Debug, PartialEq)]
    pub optional struct DnsName {
        /// The name. Required.
        host: String = "~", restart;
        /// Port of the workers; `auto` = the name is asked for SRV records, which say it.
        port: Option<u16> = "auto" in ANY_PORT, restart;
        /// Name server that is asked, such as 127.0.0.1:8600; unset = the system's.
        server: Option<SocketAddr> = "~", restart;
        /// Time between questions.
        interval: Duration = "10s", restart;
        /// What else stands in the entry of each worker found, such as `type` or `api_key`.
        worker: Map<String, Value> = "~", restart;
    }
}

impl DiscoverySection {
    /// Returns whether workers may come from other sources than the configuration.
    pub fn finds_any(&self) -> bool {
        self.file.is_some() || !self.dns.is_empty() || self.state_file.is_some()
    }
}
