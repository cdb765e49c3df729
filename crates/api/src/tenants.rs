//! Tenants.

use std::{collections::BTreeMap, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /admin/tenants`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TenantReports {
    /// Every tenant, by name.
    pub tenants: Vec<TenantReport>,
}

/// A tenant. Counts are since the start of the router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TenantReport {
    /// Its name.
    pub name: Arc<str>,
    /// Whether its key is accepted.
    pub enabled: bool,
    /// Requests that run now.
    pub in_flight: u64,
    /// Requests that wait for a worker.
    pub queued: u64,
    /// Requests with its key, also refused ones.
    pub requests: u64,
    /// Requests above a limit.
    pub limited: u64,
    /// Prompt tokens that workers reported.
    pub prompt_tokens: u64,
    /// Those of them that workers found in a cache.
    pub cached_tokens: u64,
    /// Tokens of replies that workers reported.
    pub completion_tokens: u64,
    /// Requests that ended in an error other than a limit.
    pub errors: u64,
    /// The operator's notes.
    pub metadata: BTreeMap<String, String>,
}
