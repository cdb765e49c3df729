//! The file that `warmroute config init` writes.

/// Returns a commented file to start from: the engines to fill in, and the most frequently changed
/// keys at their defaults.
pub fn starter() -> &'static str {
    include_str!("starter.yaml")
}
