//! List `pre_routing_hooks`.

use std::time::Duration;

/// A service that is called before a request is routed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookEntry {
    /// Its name.
    pub name: String,
    /// Its URL with the path.
    pub url: String,
    /// Time limit for its answer.
    pub timeout: Duration,
    /// Whether a request continues if the hook gives no usable answer.
    pub allow_on_error: bool,
    /// Status of a request that the hook rejects.
    pub reject_status: u16,
    /// Message to the client of a rejected request; `None` = the hook's message.
    pub reject_message: Option<String>,
    /// Model patterns; the hook is called only for models that match one. Empty = all.
    pub models: Vec<String>,
}
