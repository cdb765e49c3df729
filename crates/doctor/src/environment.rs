//! What the settings do not hold.

use fleet::HubCache;

/// What a process knows beside its configuration.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Whether clients must send a key.
    pub api_key: bool,
    /// The limit of open files, where the system tells.
    pub files: Option<FileLimit>,
    /// Where downloaded models may lie on this machine.
    pub hub_cache: HubCache,
}

/// Open files of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimit {
    /// How many it may have.
    pub limit: u64,
    /// How many it needs with as many clients as it would accept.
    pub needed: u64,
    /// Client connections that fit the limit.
    pub fitting_connections: usize,
}
