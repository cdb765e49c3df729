//! Section `replicas`: routers that share state.

/// Section `replicas`, as far as this version supports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicasSection {
    /// Whether the start drops the state of earlier runs.
    pub reset_states: bool,
}
