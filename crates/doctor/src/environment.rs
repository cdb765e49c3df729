//! Facts about the process that the settings do not contain.

use config::Secret;
use fleet::HubCache;
#[cfg(feature = "nats")]
use nats_client::NatsDialer;

/// The process's environment besides its configuration.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// How clients' keys are configured outside the settings.
    pub keys: ClientKeys,
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

/// The keys of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientKeys {
    /// Whether clients must send a key.
    pub required: bool,
    /// Whether a key is an argument of this process.
    pub in_arguments: bool,
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
