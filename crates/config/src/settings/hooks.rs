//! List `pre_routing_hooks`.

use std::time::Duration;

/// A service that is asked about a request before it is routed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookEntry {
    /// Its name.
    pub name: String,
    /// Where it is asked, with its path.
    pub url: String,
    /// Time for its answer.
    pub timeout: Duration,
    /// Whether a request goes on where the hook gives no usable answer.
    pub allow_on_error: bool,
    /// Status of a request that it rejects.
    pub reject_status: u16,
    /// What the client of a rejected request is told; `None` = what the hook says.
    pub reject_message: Option<String>,
    /// It is asked only about models that one of these matches; empty = about all.
    pub models: Vec<String>,
}
