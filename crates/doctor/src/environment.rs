//! Facts about the process that the settings do not contain.

use config::Secret;
use fleet::HubCache;
#[cfg(feature = "nats")]
use nats_client::NatsDialer;

/// The process's environment besides its configuration.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Whether clients must send a key.
    pub api_key: bool,
    /// The limit of open files, if the system reports it.
    pub files: Option<FileLimit>,
    /// Token of the admin listeners, which replicas share.
    pub admin_token: Option<Secret>,
    /// How the NATS server of replicas is reached, or why that cannot be known; `None`: they use
    /// none.
    #[cfg(feature = "nats")]
    pub bus: Option<Result<NatsDialer, String>>,
    /// Hub cache where downloaded models may be on this machine.
    pub hub_cache: HubCache,
}

/// Open-file limit of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimit {
    /// Soft limit of open files.
    pub limit: u64,
    /// Files needed with as many clients as it would accept.
    pub needed: u64,
    /// Client connections that fit the limit.
    pub fitting_connections: usize,
}
