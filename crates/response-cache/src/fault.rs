//! What goes wrong.

/// Something that a store did not do. Never a reason for a request to fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{store}: {reason}")]
pub struct StoreFault {
    /// Which store, such as `redis` or `s3`.
    pub store: &'static str,
    /// Whether it is to be left alone for a while.
    pub outage: bool,
    /// For people; holds no secret.
    pub reason: String,
}

/// Why the cache cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheStartError {
    /// This program cannot speak to the store.
    #[error(
        "response_cache needs {store} ({key} is {value}), and this program was built without it: build it with the \
         feature `{feature}`, or set {key} to another"
    )]
    NotBuilt {
        /// The store.
        store: &'static str,
        /// The key that asks for it.
        key: &'static str,
        /// Its value.
        value: &'static str,
        /// The feature of the build that has it.
        feature: &'static str,
    },
    /// The store is not named, or there are no connections to it.
    #[error("response_cache needs {store}, and there is none: set {key} and start again")]
    NoStore {
        /// The store.
        store: &'static str,
        /// The key that names it.
        key: &'static str,
    },
    /// What is said about the store cannot be used.
    #[error("{key}: {reason}")]
    Unusable {
        /// The key.
        key: &'static str,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
}
