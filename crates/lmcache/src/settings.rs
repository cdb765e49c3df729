//! Where the controller is, and how long it is waited for.

use std::time::Duration;

use http::HeaderValue;
use net::WorkerUrl;

use crate::Instances;

/// Where the controller is, and how long it is waited for.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// Its base URL.
    pub url: WorkerUrl,
    /// The `authorization` of every question; see [`bearer`].
    pub authorization: Option<HeaderValue>,
    /// What it is asked.
    pub mode: LookupMode,
    /// Between two questions of how much each instance holds.
    pub poll_interval: Duration,
    /// Time for an answer that no request waits for.
    pub timeout: Duration,
    /// Time for one that a request waits for; never more than `timeout`.
    pub lookup_budget: Duration,
    /// Which instance is which worker's.
    pub instances: Instances,
}

/// What the controller is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupMode {
    /// How much each instance holds.
    Occupancy,
    /// That, and for each prompt how much of it.
    PrefixLookup,
}

/// A key as the header of a question, which debug output does not show. `None`: it cannot stand in one.
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
    fn a_key_is_a_bearer_token_that_is_not_shown() {
        let value = bearer("sk-hush").expect("it can stand in a header");
        assert_eq!(value.as_bytes(), b"Bearer sk-hush");
        assert!(!format!("{value:?}").contains("hush"));
        assert_eq!(bearer("two\nlines"), None);
    }
}
