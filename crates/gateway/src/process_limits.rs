//! Limits of the process.

/// Limits by the configuration, or by the system where the configuration leaves them to it.
#[derive(Clone, Copy, Debug)]
pub struct ProcessLimits {
    /// Memory budget, bytes; `None`: unlimited.
    pub memory_budget: Option<u64>,
    /// Most open client connections.
    pub max_connections: usize,
}
