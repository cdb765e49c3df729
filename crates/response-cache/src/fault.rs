//! Errors of the cache and its stores.

/// An error of a store. It never makes a request fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{store}: {reason}")]
pub struct StoreFault {
    /// The name of the store, such as `redis` or `s3`.
    pub store: &'static str,
    /// Whether the store should be skipped for a while.
    pub outage: bool,
    /// The message for people; contains no secret.
    pub reason: String,
}

/// The reason why the cache cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheStartError {
    /// This program was built without support for the store.
    #[error(
        "response_cache needs {store} ({key} is {value}), and this program was built without it: build it with the \
         feature `{feature}`, or set {key} to another"
    )]
    NotBuilt {
        /// The store.
        store: &'static str,
        /// The key that selects it.
        key: &'static str,
        /// Its value.
        value: &'static str,
        /// The build feature that supports it.
        feature: &'static str,
    },
    /// The store is not configured, or there are no connections to it.
    #[error("response_cache needs {store}, and there is none: set {key} and start again")]
    NoStore {
        /// The store.
        store: &'static str,
        /// The key that configures it.
        key: &'static str,
    },
    /// The configuration of the store is invalid.
    #[error("{key}: {reason}")]
    Unusable {
        /// The key.
        key: &'static str,
        /// The fault, and the expected form.
        reason: String,
    },
}
