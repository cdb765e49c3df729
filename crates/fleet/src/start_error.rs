//! Why a fleet cannot start.

/// The reason why a fleet cannot start.
#[derive(Debug, thiserror::Error)]
pub enum FleetStartError {
    /// A worker's URL cannot be used. The configuration checks URLs with the same parser, so this
    /// is the last guard.
    #[error("worker {worker}: {error}")]
    Url {
        /// The worker's name.
        worker: String,
        /// The URL's error.
        error: net::WorkerUrlError,
    },
    /// No trust roots can be loaded to check a worker's certificate.
    #[error("worker {worker}: {error}")]
    Trust {
        /// The worker's name.
        worker: String,
        /// The error of the trust roots.
        error: net::TrustError,
    },
    /// A prefix stream cannot be followed.
    #[error("{0}")]
    Prefixes(String),
}
