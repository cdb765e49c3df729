//! Settings of a controller: its address, its mode, its time limits.

use std::time::Duration;

use http::HeaderValue;
use net::WorkerUrl;

use crate::Instances;

/// Settings of one controller.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// Its base URL.
    pub url: WorkerUrl,
    /// The `authorization` header of every query; see [`bearer`].
    pub authorization: Option<HeaderValue>,
    /// The queries to make.
    pub mode: LookupMode,
    /// Interval between two occupancy polls.
    pub poll_interval: Duration,
    /// Time limit of a query that no request waits for.
    pub timeout: Duration,
    /// Time limit of a query that a request waits for; never more than `timeout`.
    pub lookup_budget: Duration,
    /// The mapping from instances to workers.
    pub instances: Instances,
}

/// The queries sent to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupMode {
    /// The occupancy of each instance.
    Occupancy,
    /// The occupancy, and for each prompt the matched tokens.
    PrefixLookup,
}

/// Returns a key as the header of a query, hidden in debug output. `None`: no header can carry it.
pub fn bearer(key: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {key}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("V29")]
    fn the_api_key_is_a_bearer_token_and_never_displayed() {
        let value = bearer("sk-hush").expect("it can stand in a header");
        assert_eq!(value.as_bytes(), b"Bearer sk-hush");
        assert!(!format!("{value:?}").contains("hush"));
        assert_eq!(bearer("two\nlines"), None);
    }
}
