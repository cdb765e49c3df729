//! The file that `warmroute config init` writes.

/// A commented file to start from: the engines to fill in, and the keys that are changed most, at their defaults.
pub fn starter() -> &'static str {
    include_str!("starter.yaml")
}
