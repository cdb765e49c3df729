//! Section `replicas`: routers that share what they know.

/// Section `replicas`, as far as this version acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicasSection {
    /// Whether what earlier runs left is to be dropped at the start.
    pub reset_states: bool,
}
